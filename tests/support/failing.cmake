# Negative controls of the harness: tests that fail must fail, say so once, and end; tests for another
# number of ranks are skipped; and all of it is in the JUnit file.
add_executable(failing support/failing.cpp)
tessera_rank_counts(rank_counts ${CMAKE_CURRENT_SOURCE_DIR}/support/failing.cpp)
tessera_tell_rank_counts(failing ${rank_counts})
target_link_libraries(failing PRIVATE tessera_test_support)
tessera_test_options(failing)

find_package(Python3 QUIET COMPONENTS Interpreter)

# tessera_failing_test(<name> <case> RANKS n CODE regex TEXT regex JUNIT regex [ENVIRONMENT ...])
# The text occurs once; what support/read_junit.py says of the file matches JUNIT.
function(tessera_failing_test name case)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "RANKS;CODE;TEXT;JUNIT" "ENVIRONMENT")
  set(junit ${CMAKE_CURRENT_BINARY_DIR}/failing.${name}.xml)
  tessera_launch_environment(environment ${arg_RANKS})
  add_test(NAME fault.harness.${name}
           COMMAND ${CMAKE_COMMAND} "-DCODE=${arg_CODE}" "-DTEXT=${arg_TEXT}" "-DONCE=${arg_TEXT}"
                   -P ${CMAKE_CURRENT_SOURCE_DIR}/fault/run_fault.cmake --
                   ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} ${MPIEXEC_PREFLAGS}
                   $<TARGET_FILE:failing> ${case} -r junit -o ${junit})
  set_tests_properties(fault.harness.${name} PROPERTIES
    PROCESSORS ${arg_RANKS} TIMEOUT 120 LABELS "fault;ranks-${arg_RANKS}"
    ENVIRONMENT "${environment};${arg_ENVIRONMENT}")
  if(Python3_FOUND AND arg_JUNIT)
    set_tests_properties(fault.harness.${name} PROPERTIES FIXTURES_SETUP junit_${name})
    add_test(NAME fault.harness.${name}.junit
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/support/read_junit.py ${junit})
    set_tests_properties(fault.harness.${name}.junit PROPERTIES
      FIXTURES_REQUIRED junit_${name} PASS_REGULAR_EXPRESSION "${arg_JUNIT}" LABELS "fault;ranks-1")
  endif()
endfunction()

tessera_failing_test(check [.check] RANKS 4 CODE 1 TEXT "failed on rank 2 of 4"
  JUNIT "'tests': 2, 'failures': 1, 'errors': 0.*in vain: failure: failed on rank 2 of 4: rank 2: .*2 != 2 a <message> & \"more\".*holds: passed")
tessera_failing_test(throw [.throw] RANKS 4 CODE "[1-9][0-9]*"
  TEXT "rank 2 failed and the others do not answer"
  JUNIT "'failures': 1.*rank 2 failed and the others did not answer: rank 2: .*the rank is lost")
# Rank 0 leaves its file when a rank dies that says nothing.
tessera_failing_test(die [.die] RANKS 4 CODE "[1-9][0-9]*" TEXT "rank 2 says farewell"
  JUNIT "'errors': 1.*dies: error: the test case did not end")
tessera_failing_test(skip [.check] RANKS 3 CODE 77 TEXT "skipped .for 4 ranks, not 3.: one rank checks in vain"
  ENVIRONMENT TESSERA_TEST_RANKS=3
  JUNIT "'tests': 2, 'failures': 0, 'errors': 0, 'skipped': 2.*in vain: skipped: for 4 ranks, not 3")
tessera_failing_test(ranks [.check] RANKS 4 CODE 3 TEXT "registered for 3 ranks and runs on 4"
  ENVIRONMENT TESSERA_TEST_RANKS=3)
