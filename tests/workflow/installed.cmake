# One installation for all tests that want one: the fixture `installed`. Its prefix is
# build/PRESET/tests/workflow/installed/prefix, moved there from where it was installed.
set(TESSERA_INSTALLED ${CMAKE_CURRENT_BINARY_DIR}/installed)
add_test(NAME workflow.installed
  COMMAND ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR} -DSOURCE=${PROJECT_SOURCE_DIR}
          -DINSTALLED=${TESSERA_INSTALLED}
          -P ${CMAKE_CURRENT_SOURCE_DIR}/install.cmake)
set_tests_properties(workflow.installed PROPERTIES
  LABELS "workflow;ranks-1" TIMEOUT 120 FIXTURES_SETUP installed)

# tessera_installed_project(<name> SOURCE folder [OPTIONS -D...])
# The test workflow.<name>.build configures and builds a project of its own that finds tessera in
# the prefix. Programs of it are in ${TESSERA_INSTALLED}/<name>.
function(tessera_installed_project name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "SOURCE" "OPTIONS")
  add_test(NAME workflow.${name}.build
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${arg_SOURCE} -DBINARY=${TESSERA_INSTALLED}/${name}
            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/build_user.cmake --
            -DCMAKE_PREFIX_PATH=${TESSERA_INSTALLED}/prefix -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
            -DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS} -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} ${arg_OPTIONS})
  set_tests_properties(workflow.${name}.build PROPERTIES
    LABELS "workflow;ranks-1" TIMEOUT 600 FIXTURES_REQUIRED installed FIXTURES_SETUP built.${name})
endfunction()

# tessera_installed_run(<name> <run> RANKS n CODE c [TEXT regex] PROGRAM file ARGS ...)
# The test workflow.<name>.<run> starts a program of that project.
function(tessera_installed_run name run)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "RANKS;CODE;TEXT;PROGRAM" "ARGS")
  if(arg_RANKS GREATER 1 AND NOT TESSERA_MPI)
    return()
  endif()
  set(launch)
  if(arg_RANKS GREATER 1)
    set(launch ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} ${MPIEXEC_PREFLAGS})
  endif()
  add_test(NAME workflow.${name}.${run}
    COMMAND ${CMAKE_COMMAND} -DEXPECT_CODE=${arg_CODE} "-DEXPECT_TEXT=${arg_TEXT}" -DSECONDS=60
            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/run_program.cmake --
            ${launch} ${TESSERA_INSTALLED}/${name}/${arg_PROGRAM} ${arg_ARGS})
  tessera_launch_environment(environment ${arg_RANKS})
  set_tests_properties(workflow.${name}.${run} PROPERTIES
    LABELS "workflow;ranks-${arg_RANKS}" PROCESSORS ${arg_RANKS} TIMEOUT 90
    FIXTURES_REQUIRED built.${name} ENVIRONMENT "${environment}")
endfunction()

# The first program of docs/getting-started.md says the same on any mesh.
tessera_installed_project(first SOURCE ${PROJECT_SOURCE_DIR}/tools/examples/cpp_first)
foreach(ranks IN ITEMS 1 4 6)
  tessera_installed_run(first ${ranks}ranks RANKS ${ranks} CODE 0 TEXT "dx.0,3,7,5. = -0.2350119336"
                        PROGRAM first)
endforeach()
