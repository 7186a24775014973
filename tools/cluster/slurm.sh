#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Slurm job: parity and tests on several nodes. Edit three lines, then `sbatch slurm.sh`.
# `TESSERA_DRY_RUN=1 SLURM_NTASKS=8 bash slurm.sh` prints the commands.
#SBATCH --job-name=tessera --time=00:30:00
# 1. Size of the job; with GPUs add --gpus-per-task=1.
#SBATCH --nodes=2 --ntasks-per-node=4
# 2. Where Tessera is: its prefix, or its source folder with build/release in it.
tessera=${TESSERA_ROOT:-$HOME/tessera}
# 3. cpu or cuda.
device=cpu

set -euo pipefail
scripts=$tessera/share/tessera/cluster
if [ ! -d "$scripts" ]; then scripts=$tessera/tools/cluster; fi
ranks=${SLURM_NTASKS:-$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))}
exec "$scripts/job.sh" "$tessera" "${TESSERA_LAUNCHER:-srun --mpi=pmix}" "$ranks" "$device"
