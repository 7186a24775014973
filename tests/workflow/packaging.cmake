# The package as others meet it: found, linked, moved, made a part of another build, packed.
set(said "tessera ${PROJECT_VERSION}: mesh dp=1 cp0=1 cp1=1, value 7")
foreach(kind IN ITEMS static shared)
  tessera_installed_project(install.${kind} SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/installed_user
                            OPTIONS -DUSER_LINKS=tessera::tessera_${kind})
  tessera_installed_run(install.${kind} run RANKS 1 CODE 0 TEXT "${said}" PROGRAM user)
endforeach()
# Every installed header, each on its own.
tessera_installed_project(install.headers SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/installed_user
                          OPTIONS -DUSER_CHECKS_HEADERS=ON)
# The build tree, without installation.
tessera_installed_project(install.build_tree SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/installed_user
                          OPTIONS -Dtessera_DIR=${PROJECT_BINARY_DIR})
tessera_installed_run(install.build_tree run RANKS 1 CODE 0 TEXT "${said}" PROGRAM user)

# The component `tests`, with the golden files: test programs and the program find them there.
add_test(NAME workflow.install.tests
  COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DPREFIX=${TESSERA_INSTALLED}/prefix
          -DLAUNCHER=${MPIEXEC_EXECUTABLE} -P ${CMAKE_CURRENT_SOURCE_DIR}/install_tests.cmake)
tessera_launch_environment(environment 1)
set_tests_properties(workflow.install.tests PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 120
  FIXTURES_REQUIRED installed ENVIRONMENT "${environment}")

tessera_installed_project(install.components SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/package_user)

# The symbols of the shared library; the objects, which show them all, are the negative control.
foreach(library IN ITEMS tessera_shared tessera)
  set(name workflow.symbols.${library})
  add_test(NAME ${name}
    COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${library}>
            -DNM_OPTIONS=$<$<STREQUAL:${library},tessera_shared>:--dynamic>
            -P ${CMAKE_CURRENT_SOURCE_DIR}/symbols.cmake)
  set_tests_properties(${name} PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 60)
endforeach()
set_tests_properties(workflow.symbols.tessera PROPERTIES
  PASS_REGULAR_EXPRESSION "names are not ours")

find_program(TESSERA_PKG_CONFIG NAMES pkg-config pkgconf)
mark_as_advanced(TESSERA_PKG_CONFIG)
if(TESSERA_PKG_CONFIG)
  set(compiler ${CMAKE_CXX_COMPILER})
  if(TESSERA_MPI)
    set(compiler ${MPI_CXX_COMPILER})
  endif()
  foreach(kind IN ITEMS static shared)
    add_test(NAME workflow.pkg_config.${kind}
      COMMAND ${CMAKE_COMMAND} -DPREFIX=${TESSERA_INSTALLED}/prefix -DPACKAGE=tessera -DKIND=${kind} -DSTANDARD=c++20
              -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/installed_user/main.cpp
              -DSCRATCH=${TESSERA_INSTALLED}/pkg_config.${kind} -DPKG_CONFIG=${TESSERA_PKG_CONFIG}
              -DCOMPILER=${compiler} -DFLAGS=${CMAKE_CXX_FLAGS} -DEXPECT=${said}
              -P ${CMAKE_CURRENT_SOURCE_DIR}/pkg_config.cmake)
    tessera_launch_environment(environment 1)
    set_tests_properties(workflow.pkg_config.${kind} PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 120
      FIXTURES_REQUIRED installed ENVIRONMENT "${environment}")
  endforeach()
endif()

# As a part of another project.
function(tessera_parent_test name)
  add_test(NAME workflow.parent.${name}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/parent
            -DBINARY=${CMAKE_CURRENT_BINARY_DIR}/parent.${name} -DGENERATOR=${CMAKE_GENERATOR}
            -P ${CMAKE_CURRENT_SOURCE_DIR}/parent.cmake --
            -DPARENT_SOURCE=${PROJECT_SOURCE_DIR} -DTESSERA_CUDA=OFF
            -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS} ${ARGN})
  set_tests_properties(workflow.parent.${name} PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 120)
endfunction()
tessera_parent_test(add_subdirectory)
tessera_parent_test(fetch_content -DPARENT_FETCHES=ON -DFETCHCONTENT_FULLY_DISCONNECTED=ON)
tessera_parent_test(leaks -DPARENT_LEAKS=ON)
set(leaks "variable WITH_EVERYTHING.*CMAKE_CXX_FLAGS.*WITH_MORE.*COMPILE_DEFINITIONS.*target leak\n")
set_tests_properties(workflow.parent.leaks PROPERTIES PASS_REGULAR_EXPRESSION "${leaks}")

find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  foreach(option IN ITEMS "" --self-test)
    set(name workflow.spack_recipe${option})
    add_test(NAME ${name} COMMAND Python3::Interpreter
      ${CMAKE_CURRENT_SOURCE_DIR}/check_spack.py ${PROJECT_SOURCE_DIR} ${option})
    set_tests_properties(${name} PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 30)
  endforeach()
endif()

add_test(NAME workflow.version
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
          -DPROGRAM=$<TARGET_FILE:tessera_program> -P ${CMAKE_CURRENT_SOURCE_DIR}/version.cmake)
set_tests_properties(workflow.version PROPERTIES LABELS "workflow;ranks-1" TIMEOUT 30)

# Packages are for Debian, and their files belong to root.
find_program(TESSERA_SHLIBDEPS NAMES dpkg-shlibdeps)
mark_as_advanced(TESSERA_SHLIBDEPS)
if(TESSERA_SHLIBDEPS AND TESSERA_USER_IS_ROOT AND TESSERA_MPI)
  add_test(NAME workflow.debian_packages
    COMMAND ${PROJECT_SOURCE_DIR}/tools/check_deb.sh ${PROJECT_BINARY_DIR})
  tessera_launch_environment(environment 1)
  set_tests_properties(workflow.debian_packages PROPERTIES
    LABELS "workflow;package;ranks-1" TIMEOUT 300 ENVIRONMENT "${environment}")
endif()
