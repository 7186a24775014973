# tools/cluster/run-tests.sh with a launcher that writes down how it is called:
#   cmake -DSCRIPT=... -DTESTS=... -DSCRATCH=... -DREAL_LAUNCHER=... -P run_tests.cmake
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH}/tests/unit)
foreach(name IN ITEMS exchange tensor)  # on 4 ranks and others, on 1 rank
  file(CREATE_LINK ${TESTS}/unit/test_${name} ${SCRATCH}/tests/unit/test_${name} SYMBOLIC)
endforeach()
set(ENV{REAL_LAUNCHER} ${REAL_LAUNCHER})
set(ENV{RECORD} ${SCRATCH}/record)

function(try code text)
  execute_process(COMMAND ${SCRIPT} ${ARGN} --tests ${SCRATCH}/tests --out ${SCRATCH}/out
                          --launcher "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/fake_launcher.sh --mpi=fake"
                  RESULT_VARIABLE found OUTPUT_VARIABLE output ERROR_VARIABLE output)
  message("${output}")
  if(NOT found STREQUAL code OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "${ARGN}: exit code ${found} instead of ${code}, or no '${text}'")
  endif()
endfunction()

try(0 "passed +unit.exchange.*4 ranks: 1 passed, 0 failed, 1 skipped" -n 4)
file(READ ${SCRATCH}/record record)
if(NOT record MATCHES "^--mpi=fake -n 4 [^\n]*/test_exchange -r junit -o [^\n]*/out/unit.exchange.4ranks.xml\n")
  message(FATAL_ERROR "the launcher was called with ${record}")
endif()
file(READ ${SCRATCH}/out/unit.tensor.4ranks.xml junit)
if(NOT junit MATCHES "<skipped message=\"for 1 ranks, not 4\">")
  message(FATAL_ERROR "skipped tests are not in the JUnit file:\n${junit}")
endif()

try(1 "0 passed, 0 failed, 1 skipped" -n 4 unit/tensor)
try(2 "no test program" -n 4 unit/absent)
try(2 "unknown option --nonsense" --nonsense)
try(0 "fake_launcher.sh --mpi=fake -n 6 [^\n]*/test_tensor -r junit" -n 6 --dry-run)
try(0 "-n 6 [^\n]*/gpu-per-rank.sh [^\n]*/test_tensor -r junit" -n 6 --gpus --dry-run)
file(WRITE ${SCRATCH}/tests/unit/test_broken "#!/bin/sh\necho the reason; exit 5\n")
file(CHMOD ${SCRATCH}/tests/unit/test_broken PERMISSIONS OWNER_READ OWNER_EXECUTE)
try(1 "FAILED +unit.broken: exit code 5.*the reason.*1 passed, 1 failed" -n 4)
