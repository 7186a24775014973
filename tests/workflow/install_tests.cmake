# cmake -DBUILD=... -DPREFIX=... -DLAUNCHER=... -P install_tests.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} --component tests --strip)
set(tests ${PREFIX}/libexec/tessera/tests)
run(${tests}/unit/test_safetensors)  # reads every golden file
if(NOT output MATCHES "All tests passed")
  message(FATAL_ERROR "the installed test said:\n${output}")
endif()
if(LAUNCHER)
  run(${PREFIX}/share/tessera/cluster/run-tests.sh -n 1 --launcher ${LAUNCHER} --out ${PREFIX}/../results
      unit/exchange unit/tensor)
  if(NOT output MATCHES "1 ranks: 2 passed, 0 failed")
    message(FATAL_ERROR "run-tests.sh said:\n${output}")
  endif()
endif()
run(${PREFIX}/bin/tessera parity --kind golden --case transition)
if(NOT output MATCHES "transition +golden.*1 of 1 hold")
  message(FATAL_ERROR "the installed program said:\n${output}")
endif()
file(GLOB programs ${tests}/*/test_*)
list(LENGTH programs count)
message(STATUS "${count} test programs")
