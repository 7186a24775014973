# cmake -DBUILD=... -DSOURCE=... -DSCRATCH=... -P install.cmake
# Installs, then configures, builds and runs a project that finds tessera by find_package: in the
# prefix, and in the build tree.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT code EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "failed: ${command}\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${SCRATCH})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${SCRATCH}/prefix)
foreach(place IN ITEMS prefix build)
  if(place STREQUAL prefix)
    set(where -DCMAKE_PREFIX_PATH=${SCRATCH}/prefix -DUSER_CHECKS_HEADERS=ON)
  else()
    set(where -Dtessera_DIR=${BUILD})
  endif()
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/${place}_user ${where}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_FLAGS=${FLAGS})
  run(${CMAKE_COMMAND} --build ${SCRATCH}/${place}_user --parallel 2)
  run(${SCRATCH}/${place}_user/user)
  if(NOT output MATCHES "tessera [0-9.]+: mesh dp=1 cp0=1 cp1=1, value 7")
    message(FATAL_ERROR "the program said: ${output}")
  endif()
endforeach()
run(${SCRATCH}/prefix/bin/tessera --version)
