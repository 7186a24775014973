# `cmake --install`, and `find_package(tessera)` for the prefix and for the build tree. Components:
# runtime (program, shared libraries), devel, scripts; on demand only, by `--component tests`: tests.
if(NOT TESSERA_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera tessera_shared EXPORT tesseraTargets
        ARCHIVE COMPONENT devel
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel)
if(TESSERA_TOOLS)
  install(TARGETS tessera_program RUNTIME COMPONENT runtime)
  install(TARGETS tessera_harness tessera_program_library EXPORT tesseraTargets
          ARCHIVE COMPONENT devel)
  install(FILES tools/program.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera COMPONENT devel)
  install(DIRECTORY tools/harness DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera COMPONENT devel
          FILES_MATCHING PATTERN "*.hpp" PATTERN cases EXCLUDE)
endif()
if(TESSERA_TOOLS)
  install(TARGETS tessera_c tessera_c_shared EXPORT tesseraTargets
          ARCHIVE COMPONENT devel
          LIBRARY COMPONENT runtime NAMELINK_COMPONENT devel)
  install(FILES bindings/c/tessera.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT devel)
endif()
if(TESSERA_FORTRAN)
  install(TARGETS tessera_fortran EXPORT tesseraTargets)
  install(DIRECTORY bindings/fortran DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera COMPONENT devel
          FILES_MATCHING REGEX "[.][fF]90$")
endif()
# All headers but those for our own sources; workflow.install.headers compiles what remains.
foreach(folder IN ITEMS runtime mesh autodiff layers)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera/${folder}
          COMPONENT devel
          FILES_MATCHING PATTERN "*.hpp"
          REGEX "/runtime/[a-z]+$" EXCLUDE
          REGEX "/(runtime/check|runtime/out_of_memory|mesh/door|mesh/traffic|mesh/transfer)[.]hpp$" EXCLUDE)
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/include/tessera/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera COMPONENT devel)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(FILES tools/mpi_env.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera COMPONENT scripts)
install(DIRECTORY tools/cluster DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera COMPONENT scripts
        USE_SOURCE_PERMISSIONS PATTERN "try-*" EXCLUDE)
if(TESSERA_TESTS)
  install(DIRECTORY tests/golden DESTINATION ${TESSERA_INSTALL_TESTSDIR}
          COMPONENT tests EXCLUDE_FROM_ALL)
endif()

install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir} COMPONENT devel)
export(EXPORT tesseraTargets NAMESPACE tessera:: FILE ${PROJECT_BINARY_DIR}/tesseraTargets.cmake)

set(TESSERA_SELECTED tessera_static)
set(TESSERA_SELECTED_C tessera_c_static)
if(BUILD_SHARED_LIBS)
  set(TESSERA_SELECTED tessera_shared)
  set(TESSERA_SELECTED_C tessera_c_shared)
endif()
configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT devel)

# For builds without CMake.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
get_target_property(definitions tessera INTERFACE_COMPILE_DEFINITIONS)
set(pc_definitions "")
if(definitions)
  list(TRANSFORM definitions PREPEND " -D" OUTPUT_VARIABLE pc_definitions)
  string(JOIN "" pc_definitions ${pc_definitions})
endif()
set(pc_libraries "")
if(TESSERA_CUDA)
  set(pc_libraries " -L${CUDAToolkit_LIBRARY_DIR} -lcudart -lcublas")
endif()
set(pc_files tessera)
if(TESSERA_TOOLS)
  list(APPEND pc_files tessera-c)
endif()
foreach(name IN LISTS pc_files)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT devel)
endforeach()
