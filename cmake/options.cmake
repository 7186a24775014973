# All options of the project. Architecture flags are never a default.
option(TESSERA_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_TOOLS "Build the program tessera" ON)
option(TESSERA_ASSERTIONS "Check internal invariants (debug and audit presets)" OFF)
option(TESSERA_WERROR "Treat warnings in our own code as errors" ${PROJECT_IS_TOP_LEVEL})

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  option(TESSERA_CUDA "Build the CUDA device" ON)
else()
  option(TESSERA_CUDA "Build the CUDA device" OFF)
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
