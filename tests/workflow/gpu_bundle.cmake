# cmake -DSCRIPT=tools/gpu-bundle.sh -DSCRATCH=... -P gpu_bundle.cmake
# The archive has the sources and all that cmake/bundled.cmake takes from deps/: its folder
# configures with nothing else, and does not without one of the headers.
include(${CMAKE_CURRENT_LIST_DIR}/../support/run.cmake)

file(REMOVE_RECURSE ${SCRATCH})
file(MAKE_DIRECTORY ${SCRATCH})
run(${SCRIPT} ${SCRATCH}/bundle.tar.gz)
file(ARCHIVE_EXTRACT INPUT ${SCRATCH}/bundle.tar.gz DESTINATION ${SCRATCH})
set(configure ${CMAKE_COMMAND} -S ${SCRATCH}/tessera -B ${SCRATCH}/build -DTESSERA_DEPS=deps
              -DTESSERA_MPI=OFF -DTESSERA_CUDA=OFF -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF
              -DCMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON)
run(${configure})
foreach(expected IN ITEMS "MPI +none" "Eigen +in [^\n]*/tessera/deps")
  if(NOT output MATCHES "${expected}")
    message(FATAL_ERROR "no '${expected}' in\n${output}")
  endif()
endforeach()

file(REMOVE ${SCRATCH}/tessera/deps/xxhash.h)
execute_process(COMMAND ${configure} RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
if(code EQUAL 0 OR NOT text MATCHES "has no xxhash.h")
  message(FATAL_ERROR "a missing header was not noticed: ${code}\n${text}")
endif()
