#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# PBS job: parity and tests on several nodes. Edit three lines, then `qsub pbs.sh`.
# `TESSERA_DRY_RUN=1 PBS_NODEFILE=file bash pbs.sh` prints the commands.
#PBS -N tessera -l walltime=00:30:00
# 1. Size of the job; with GPUs add :ngpus=4 to have as many as ranks.
#PBS -l select=2:ncpus=4:mpiprocs=4
# 2. Where Tessera is: its prefix, or its source folder with build/release in it.
tessera=${TESSERA_ROOT:-$HOME/tessera}
# 3. cpu or cuda.
device=cpu

set -euo pipefail
cd "${PBS_O_WORKDIR:-.}"
scripts=$tessera/share/tessera/cluster
if [ ! -d "$scripts" ]; then scripts=$tessera/tools/cluster; fi
ranks=$(grep -c . "$PBS_NODEFILE")
# An mpiexec that does not know PBS needs the list of nodes: "mpiexec --hostfile $PBS_NODEFILE".
exec "$scripts/job.sh" "$tessera" "${TESSERA_LAUNCHER:-mpiexec}" "$ranks" "$device"
