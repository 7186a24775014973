# All cases on the CPU, and on the imitation of a GPU over both routes of messages: they hold, and
# the ledgers of memory and messages are the same to the byte. What fits each device, the chunks of
# block functions, is given.
#   cmake -DPROGRAM=tessera "-DLAUNCH=mpiexec -n 4" -DSCRATCH=dir -P devices.cmake
separate_arguments(launch UNIX_COMMAND "${LAUNCH}")
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})

# Runs parity and leaves what its ledgers counted in the variable `ledger`.
function(run_parity name device chunk_bytes)
  execute_process(COMMAND ${launch} ${PROGRAM} parity --device ${device} --chunk-bytes ${chunk_bytes}
                          --json ${SCRATCH}/${name}.json ${ARGN}
                  RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${name}: exit code ${code}\n${out}${err}")
  endif()
  file(STRINGS ${SCRATCH}/${name}.json counts REGEX
       "^ *\"(name|kind|saved_bytes|peak_bytes|pass|op|axis|count|messages|bytes|scope|purpose|live|peak)\":")
  set(ledger "${counts}" PARENT_SCOPE)
  set(output "${out}" PARENT_SCOPE)
endfunction()

# The lines in which two ledgers differ, each after its case.
function(compare_ledgers variable found expected)
  set(case)
  set(differences)
  foreach(own other IN ZIP_LISTS found expected)
    if(own MATCHES "\"name\"")
      set(case "${own}")
    endif()
    if(NOT own STREQUAL other)
      string(APPEND differences "${case} ${own} instead of ${other}\n")
    endif()
  endforeach()
  set(${variable} "${differences}" PARENT_SCOPE)
endfunction()

# Larger chunks show, and as nothing but peaks.
run_parity(small cpu 4096 --case transition)
set(expected "${ledger}")
run_parity(large cpu 1048576 --case transition)
compare_ledgers(differences "${ledger}" "${expected}")
string(REGEX REPLACE "[^\n]* \"peak(_bytes)?\": [0-9]+,? instead of [^\n]*\n" "" rest "${differences}")
if(differences STREQUAL "" OR NOT rest STREQUAL "")
  message(FATAL_ERROR "chunks of another size differ in '${differences}'")
endif()

run_parity(cpu cpu 65536)
set(expected "${ledger}")
list(LENGTH expected count)
if(count LESS 1000)
  message(FATAL_ERROR "only ${count} lines of counts in the report")
endif()
foreach(route IN ITEMS on:direct off:staged)
  string(REGEX MATCH "(.*):(.*)" unused ${route})
  set(ENV{TESSERA_CUDA_AWARE} ${CMAKE_MATCH_1})
  set(name ${CMAKE_MATCH_2})
  run_parity(${name} imitation 65536)
  if(NOT output MATCHES "messages: ${name} ")
    message(FATAL_ERROR "the messages were not ${name}:\n${output}")
  endif()
  if(NOT ledger STREQUAL expected)
    compare_ledgers(differences "${ledger}" "${expected}")
    message(FATAL_ERROR "${name}: the ledgers differ from those of the CPU:\n${differences}")
  endif()
endforeach()
