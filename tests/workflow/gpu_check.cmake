# cmake -DSCRIPT=tools/gpu-check.sh -DSCRATCH=... -P gpu_check.cmake
# The script with a timeout(1) that only tells its limit: steps have their shares of the given time.
file(REMOVE_RECURSE ${SCRATCH})
file(COPY ${SCRIPT} DESTINATION ${SCRATCH}/tools)
file(WRITE ${SCRATCH}/bin/timeout "#!/bin/sh\necho \"limit $1 of $*\"\n")
file(WRITE ${SCRATCH}/bin/nvidia-smi "#!/bin/sh\necho 9.0\n")
file(WRITE ${SCRATCH}/bin/nvcc "#!/bin/sh\necho release 12.0\n")
file(CHMOD_RECURSE ${SCRATCH}/bin PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(ENV{PATH} ${SCRATCH}/bin:$ENV{PATH})
set(ENV{CUDACXX} ${SCRATCH}/bin/nvcc)

foreach(limits IN ITEMS "480 120 400" "4800 1200 4000" "48 12 40" "7 2 6")
  string(REPLACE " " ";" limits ${limits})
  list(POP_FRONT limits total configure build)
  execute_process(COMMAND ${SCRATCH}/tools/gpu-check.sh build ${total}
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0 OR NOT output MATCHES "limit ${configure} of [^\n]*-S .*limit ${build} of [^\n]*--build")
    message(FATAL_ERROR "exit code ${code}, no limits ${configure} and ${build} of ${total} s:\n${output}")
  endif()
endforeach()
