# Negative controls of the harness: tests that fail must fail, say so once, and end.
add_executable(failing support/failing.cpp)
target_link_libraries(failing PRIVATE tessera_test_support)
tessera_test_options(failing)

function(tessera_failing_test name case text)
  tessera_launch_environment(environment 4)
  add_test(NAME fault.harness.${name}
           COMMAND ${CMAKE_COMMAND} -DCODE=[1-9][0-9]* "-DTEXT=${text}" "-DONCE=${text}"
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/fault/run_fault.cmake --
                   ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 4 ${MPIEXEC_PREFLAGS}
                   $<TARGET_FILE:failing> ${case})
  set_tests_properties(fault.harness.${name} PROPERTIES
    PROCESSORS 4 TIMEOUT 120 LABELS "fault;ranks-4" ENVIRONMENT "${environment};${ARGN}")
endfunction()

tessera_failing_test(check [.check] "failed on rank 2 of 4")
tessera_failing_test(throw [.throw] "rank 2 failed and the others do not answer")
tessera_failing_test(ranks [.check] "registered for 3 ranks and runs on 4" TESSERA_TEST_RANKS=3)
