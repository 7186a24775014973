# The batch jobs print what they would run, and ranks find their GPUs:
#   cmake -DSOURCE=... -DSCRATCH=... -P jobs.cmake
include(${CMAKE_CURRENT_LIST_DIR}/../../support/run.cmake)
set(scripts ${SOURCE}/tools/cluster)
file(REMOVE_RECURSE ${SCRATCH})
file(WRITE ${SCRATCH}/nodes "a\na\nb\nb\n")
set(job ${CMAKE_COMMAND} -E env TESSERA_DRY_RUN=1 TESSERA_ROOT=${SOURCE})

function(hold text)
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "no '${text}' in\n${output}")
  endif()
endfunction()

run(${job} SLURM_JOB_NUM_NODES=2 SLURM_NTASKS_PER_NODE=3 bash ${scripts}/slurm.sh)
hold("srun --mpi=pmix -n 6 [^\n]*tessera parity --device cpu --json parity.json")
hold("run-tests.sh -n 6 --launcher srun --mpi=pmix --tests ")
run(${job} PBS_NODEFILE=${SCRATCH}/nodes PBS_O_WORKDIR=${SCRATCH} bash ${scripts}/pbs.sh)
hold("mpiexec -n 4 [^\n]*tessera parity --device cpu")

# With the third line edited.
file(READ ${scripts}/slurm.sh text)
string(REPLACE "device=cpu" "device=cuda" text "${text}")
file(WRITE ${SCRATCH}/slurm.sh "${text}")
run(${job} SLURM_NTASKS=8 bash ${SCRATCH}/slurm.sh)
hold("srun --mpi=pmix -n 8 [^\n]*gpu-per-rank.sh [^\n]*tessera parity --device cuda")
hold("run-tests.sh -n 8 [^\n]* --gpus\n")

# bind(<code> <text> <variable>=<value>...)
function(bind code text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} ${scripts}/gpu-per-rank.sh printenv CUDA_VISIBLE_DEVICES
                  RESULT_VARIABLE found OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT found STREQUAL code OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "${ARGN}: exit code ${found}, ${output}")
  endif()
endfunction()
bind(0 "^5\n" OMPI_COMM_WORLD_LOCAL_RANK=1 SLURM_LOCALID=0 CUDA_VISIBLE_DEVICES=4,5)
bind(0 "^4\n" SLURM_LOCALID=3 CUDA_VISIBLE_DEVICES=4)
bind(3 "has 2 GPUs and at least 3 ranks" MPI_LOCALRANKID=2 CUDA_VISIBLE_DEVICES=4,5)
foreach(variable IN ITEMS OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID PALS_LOCAL_RANKID
                          MV2_COMM_WORLD_LOCAL_RANK SLURM_LOCALID)
  unset(ENV{${variable}})
endforeach()
bind(3 "the launcher says nowhere" CUDA_VISIBLE_DEVICES=4,5)
