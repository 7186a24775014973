# CTest starts tests with what TESSERA_LAUNCHER says, from the command line or the environment:
#   cmake -DSOURCE=... -DSCRATCH=... -DPROGRAM=... -DREAL_LAUNCHER=... -P launcher.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../../support/run.cmake)
file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
set(fake "${CMAKE_CURRENT_LIST_DIR}/fake_launcher.sh --mpi=fake")
set(ENV{REAL_LAUNCHER} ${REAL_LAUNCHER})
set(ENV{RECORD} ${SCRATCH}/record)
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/launcher -DTESSERA_SOURCE=${SOURCE}
              -DPROGRAMS=${PROGRAM})

run(${configure} -B ${SCRATCH}/option "-DTESSERA_LAUNCHER=${fake}")
set(ENV{TESSERA_LAUNCHER} "${fake}")
run(${configure} -B ${SCRATCH}/variable)
foreach(way IN ITEMS option variable)
  file(REMOVE ${SCRATCH}/record)
  run(${CMAKE_CTEST_COMMAND} --test-dir ${SCRATCH}/${way} --no-tests=error)
  file(READ ${SCRATCH}/record record)
  if(NOT record STREQUAL "-n 4 --mpi=fake ${PROGRAM}\n")
    message(FATAL_ERROR "${way}: the launcher was called with ${record}")
  endif()
endforeach()

set(ENV{TESSERA_LAUNCHER} "no-such-launcher --mpi=fake")
execute_process(COMMAND ${configure} -B ${SCRATCH}/absent RESULT_VARIABLE code ERROR_VARIABLE text OUTPUT_QUIET)
if(code EQUAL 0 OR NOT text MATCHES "no program[ \n]+no-such-launcher")
  message(FATAL_ERROR "a launcher that does not exist: exit code ${code}, ${text}")
endif()
