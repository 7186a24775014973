# All options of the project; README.md has them as a table. Architecture flags are never a default:
# the instruction set is chosen at run time.
option(TESSERA_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_TEST_HOOKS "Deliberate mistakes that the mutation tests switch on" ${TESSERA_TESTS})
option(TESSERA_TOOLS "Build the program tessera" ${PROJECT_IS_TOP_LEVEL})
option(TESSERA_MPI "Messages between ranks; without it one rank and no MPI" ON)
option(TESSERA_ASSERTIONS "Check internal invariants (presets debug, audit and asan)" OFF)
if(PROJECT_IS_TOP_LEVEL)
  option(TESSERA_WERROR "Treat warnings in our own code as errors" "$ENV{TESSERA_WERROR}")
endif()
set(TESSERA_DEPS "" CACHE STRING "Folder with the headers of all dependencies, instead of packages")
if(PROJECT_IS_TOP_LEVEL AND NOT TESSERA_DEPS)  # what is installed must find its packages
  set(installs ON)
else()
  set(installs OFF)
endif()
option(TESSERA_INSTALL "Define the rules of `cmake --install`" ${installs})
option(TESSERA_COVERAGE "Count which lines of the GPU code its imitation executes" OFF)
set(TESSERA_SANITIZERS "" CACHE STRING "Sanitizers to build with, such as address,undefined")

if(TESSERA_TESTS AND NOT TESSERA_TOOLS)
  message(FATAL_ERROR "TESSERA_TESTS needs TESSERA_TOOLS: the tests use its harness")
endif()

# On where a CUDA compiler is. The presets other than `cuda` turn it off, for a quick build.
if(NOT DEFINED TESSERA_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(has_cuda ON)
  else()
    set(has_cuda OFF)
  endif()
endif()
option(TESSERA_CUDA "Build the CUDA device" ${has_cuda})

if(TESSERA_INSTALL)
  include(GNUInstallDirs)
  set(TESSERA_INSTALL_TESTSDIR ${CMAKE_INSTALL_LIBEXECDIR}/tessera/tests)
  # Installed programs find our library wherever the prefix is, and those of others where they were.
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
  if(BUILD_SHARED_LIBS)
    foreach(folder IN ITEMS ${CMAKE_INSTALL_BINDIR} ${TESSERA_INSTALL_TESTSDIR}/level)
      file(RELATIVE_PATH up ${CMAKE_INSTALL_PREFIX}/${folder} ${CMAKE_INSTALL_FULL_LIBDIR})
      list(APPEND CMAKE_INSTALL_RPATH $ORIGIN/${up})
    endforeach()
  endif()
endif()

# On where a Fortran compiler is. The module is installed as source, which needs none here.
set(has_fortran OFF)
if(PROJECT_IS_TOP_LEVEL AND TESSERA_TOOLS AND TESSERA_MPI AND NOT DEFINED TESSERA_FORTRAN)
  include(CheckLanguage)
  check_language(Fortran)
  if(CMAKE_Fortran_COMPILER)
    set(has_fortran ON)
  endif()
endif()
option(TESSERA_FORTRAN "Install and test the Fortran module" ${has_fortran})

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

if(TESSERA_SANITIZERS)
  string(APPEND CMAKE_CXX_FLAGS " -fsanitize=${TESSERA_SANITIZERS} -fno-sanitize-recover=all"
                                " -fno-omit-frame-pointer")
endif()
