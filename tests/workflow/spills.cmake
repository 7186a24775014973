# cmake -DSCRIPT=tools/spills.sh -DSCRATCH=... -P spills.cmake
# Logs as ptxas writes them, of kernels that spill and that do not.
set(head "ptxas info    : Compiling entry function '_ZN7tessera8gpu_cuda")
set(well "${head}5twiceIfEEvPT_' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
")
set(spilling "${head}4manyEPKdPd' for 'sm_90'
    1488 bytes stack frame, 1728 bytes spill stores, 1960 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 1488 bytes cumulative stack size
")

function(expect log code)
  file(WRITE ${SCRATCH}/ptxas.log "${log}")
  execute_process(COMMAND ${SCRIPT} ${SCRATCH}/ptxas.log
                  RESULT_VARIABLE found OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT found EQUAL code)
    message(FATAL_ERROR "exit code ${found} instead of ${code}:\n${text}")
  endif()
  foreach(expected IN LISTS ARGN)
    if(NOT text MATCHES "${expected}")
      message(FATAL_ERROR "no '${expected}' in\n${text}")
    endif()
  endforeach()
endfunction()

expect("${well}" 0 "sm_90 +8 +0 +0 +void tessera::gpu_cuda::twice<float>" "1 kernels, 0 of them spill")
expect("${well}${spilling}" 1 "sm_90 +32 +1488 +3688 +tessera::gpu_cuda::many"
       "2 kernels, 1 of them spill, at most 32 registers")
