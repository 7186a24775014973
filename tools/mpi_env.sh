# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced. What a run on this machine needs beyond the defaults, for Open MPI only and only where
# needed; cmake/testing.cmake is the same for CTest. Nothing outside the calling shell changes.

# Cores that a process may use, hyper-threads not counted: what Open MPI takes for slots.
usable_cores() {
  local physical allowed
  allowed=$(nproc)
  physical=$(lscpu -p=Core,Socket 2>/dev/null | grep -v '^#' | sort -u | wc -l)
  if [ "$physical" -gt 0 ] && [ "$physical" -lt "$allowed" ]; then
    echo "$physical"
  else
    echo "$allowed"
  fi
}

# set_mpi_env RANKS
set_mpi_env() {
  local ranks=$1
  mpirun --version 2>/dev/null | grep -q 'Open MPI' || return 0
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  # In a batch job the scheduler says how many ranks fit.
  if [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}" ] && [ "$ranks" -gt "$(usable_cores)" ]; then
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  fi
  # Copying out of another process is usually forbidden in a container, and the attempt is fatal.
  if [ -e /.dockerenv ] || [ -e /run/.containerenv ]; then
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
  fi
}
