# What starts ranks, in the variables of FindMPI: MPIEXEC_EXECUTABLE, MPIEXEC_NUMPROC_FLAG and
# MPIEXEC_PREFLAGS. Included after find_package(MPI).
set(TESSERA_LAUNCHER "$ENV{TESSERA_LAUNCHER}" CACHE STRING
    "What starts ranks, without their number, such as \"srun --mpi=pmix\"; empty: mpiexec of the MPI")

# Distributions with several MPIs give each command a suffix: mpicxx.mpich belongs to mpiexec.mpich.
if(MPIEXEC_EXECUTABLE MATCHES "/mpiexec$" AND MPI_CXX_COMPILER MATCHES "(\\.[a-z0-9]+)$")
  find_program(launcher mpiexec${CMAKE_MATCH_1} NO_CACHE)
  if(launcher)
    set(MPIEXEC_EXECUTABLE ${launcher})
    unset(launcher)
  endif()
endif()

if(TESSERA_LAUNCHER)
  separate_arguments(options UNIX_COMMAND "${TESSERA_LAUNCHER}")
  list(POP_FRONT options program)
  find_program(launcher "${program}" NO_CACHE)
  if(NOT launcher)
    message(FATAL_ERROR "TESSERA_LAUNCHER=${TESSERA_LAUNCHER}: there is no program ${program}")
  endif()
  set(MPIEXEC_EXECUTABLE ${launcher})
  list(PREPEND MPIEXEC_PREFLAGS ${options})
endif()
