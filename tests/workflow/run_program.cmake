# Runs a program and holds what it did against what it should have done:
#   cmake -DEXPECT_CODE=2 -DEXPECT_TEXT=regex -DEXPECT_ONCE=regex -DSECONDS=20 -P run_program.cmake -- command...
include(${CMAKE_CURRENT_LIST_DIR}/../support/command.cmake)

execute_process(COMMAND ${command} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err
                TIMEOUT ${SECONDS})
message("${out}${err}")
if(NOT code STREQUAL EXPECT_CODE)
  message(FATAL_ERROR "exit code ${code} instead of ${EXPECT_CODE}")
endif()
if(EXPECT_TEXT AND NOT "${out}${err}" MATCHES "${EXPECT_TEXT}")
  message(FATAL_ERROR "the output does not match '${EXPECT_TEXT}'")
endif()
if(EXPECT_ONCE)
  string(REPLACE ";" "," text "${out}${err}")  # a semicolon would split a match in two
  string(REGEX MATCHALL "${EXPECT_ONCE}" matches "${text}")
  list(LENGTH matches times)
  if(NOT times EQUAL 1)
    message(FATAL_ERROR "'${EXPECT_ONCE}' occurs ${times} times instead of once")
  endif()
endif()
