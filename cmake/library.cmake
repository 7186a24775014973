# Libraries come in two forms: `name` is the static one, `name_shared` is made of it whole, so that
# nothing is compiled twice. BUILD_SHARED_LIBS says which of them tessera::name is.
set(TESSERA_KIND "")
if(BUILD_SHARED_LIBS)
  set(TESSERA_KIND "_shared")
endif()

# Objects that may become part of a shared library. That functions of ours call each other directly
# is as before: nobody replaces them when the program starts.
function(tessera_library name)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name}_static)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>)
  add_library(tessera::${name}_static ALIAS ${name})
endfunction()

# tessera_shared_twin(<static library> <version script with the names that it exports>)
# Called when the usage requirements of the static library are complete.
function(tessera_shared_twin name exports)
  cmake_path(ABSOLUTE_PATH exports)
  add_library(${name}_shared SHARED ${exports})
  add_library(tessera::${name}_shared ALIAS ${name}_shared)
  foreach(property IN ITEMS COMPILE_DEFINITIONS COMPILE_FEATURES INCLUDE_DIRECTORIES)
    get_target_property(value ${name} INTERFACE_${property})
    if(value)
      set_target_properties(${name}_shared PROPERTIES INTERFACE_${property} "${value}")
    endif()
  endforeach()
  # While versions begin with 0, each minor one may change the interface.
  set_target_properties(${name}_shared PROPERTIES
    LINKER_LANGUAGE CXX OUTPUT_NAME ${name}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LINK_DEPENDS ${exports})
  target_link_libraries(${name}_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${name}>)
  target_link_options(${name}_shared PRIVATE LINKER:--version-script=${exports})
endfunction()
