# `find_package(tessera)` gives tessera::tessera, from the build tree or from where it is installed.
if(NOT TESSERA_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera EXPORT tesseraTargets)
# All headers but those for our own sources; the test workflow.install compiles what remains.
foreach(folder IN ITEMS runtime mesh autodiff layers)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera/${folder}
          FILES_MATCHING PATTERN "*.hpp"
          REGEX "/runtime/[a-z]+$" EXCLUDE
          REGEX "/(runtime/check|mesh/door|mesh/traffic)[.]hpp$" EXCLUDE)
endforeach()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir})
export(EXPORT tesseraTargets NAMESPACE tessera:: FILE ${PROJECT_BINARY_DIR}/tesseraTargets.cmake)

configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake DESTINATION ${package_dir})
