# All cases on the CPU, and on the imitation of a GPU over both routes of messages: they hold, and
# the ledgers of memory and messages are the same. Peaks are left out: a few constants are made on
# the host before they are copied.
#   cmake -DPROGRAM=tessera "-DLAUNCH=mpiexec -n 4" -DSCRATCH=dir -P devices.cmake
separate_arguments(launch UNIX_COMMAND "${LAUNCH}")
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})

# Runs parity and leaves what its ledgers counted in the variable `ledger`.
function(run_parity name device)
  execute_process(COMMAND ${launch} ${PROGRAM} parity --device ${device} --json ${SCRATCH}/${name}.json
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${name}: exit code ${code}\n${out}${err}")
  endif()
  file(STRINGS ${SCRATCH}/${name}.json counts REGEX
       "^ *\"(name|kind|saved_bytes|pass|op|axis|count|messages|bytes|scope|purpose|live)\":")
  set(ledger "${counts}" PARENT_SCOPE)
  set(output "${out}" PARENT_SCOPE)
endfunction()

run_parity(cpu cpu)
set(expected "${ledger}")
list(LENGTH expected count)
if(count LESS 1000)
  message(FATAL_ERROR "only ${count} lines of counts in the report")
endif()
foreach(route IN ITEMS on:direct off:staged)
  string(REGEX MATCH "(.*):(.*)" unused ${route})
  set(ENV{TESSERA_CUDA_AWARE} ${CMAKE_MATCH_1})
  set(name ${CMAKE_MATCH_2})
  run_parity(${name} imitation)
  if(NOT output MATCHES "messages: ${name} ")
    message(FATAL_ERROR "the messages were not ${name}:\n${output}")
  endif()
  if(ledger STREQUAL expected)
    continue()
  endif()
  set(case)
  foreach(found wanted IN ZIP_LISTS ledger expected)
    if(found MATCHES "\"name\"")
      set(case "${found}")
    endif()
    if(NOT found STREQUAL wanted)
      message(SEND_ERROR "${name}: ${case} ${found} instead of ${wanted}")
    endif()
  endforeach()
  message(FATAL_ERROR "the ledgers differ from those of the CPU")
endforeach()
