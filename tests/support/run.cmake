# run(<command> ...): ends the script with what the command said if it fails; else that is `output`.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "failed: ${command}\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()
