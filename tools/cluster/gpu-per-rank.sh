#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a program with one GPU of the node visible to each rank, chosen by its number on the node. Where
# the scheduler has done so already, with `srun --gpus-per-task=1` for instance, nothing changes.
# Usage: LAUNCHER -n RANKS gpu-per-rank.sh PROGRAM [ARGUMENT...]
set -euo pipefail

# Open MPI and MPICH first: in a Slurm job their ranks inherit the variables of one srun task.
for variable in OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID PALS_LOCAL_RANKID MV2_COMM_WORLD_LOCAL_RANK SLURM_LOCALID; do
  rank=${!variable:-}
  if [ -n "$rank" ]; then break; fi
done
if [ -z "$rank" ]; then
  echo "gpu-per-rank: the launcher says nowhere which rank of the node this is" >&2
  exit 3
fi

if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
  IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  read -ra gpus <<<"$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | tr '\n' ' ')"
fi
if [ ${#gpus[@]} -ne 1 ]; then
  if [ "$rank" -ge ${#gpus[@]} ]; then
    echo "gpu-per-rank: $(hostname) has ${#gpus[@]} GPUs and at least $((rank + 1)) ranks; ask for fewer ranks per node" >&2
    exit 3
  fi
  export CUDA_VISIBLE_DEVICES=${gpus[$rank]}
fi
exec "$@"
