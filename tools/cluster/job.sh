#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the batch jobs slurm.sh and pbs.sh do: facts, parity of every layer, the tests. Results are in
# the folder where it runs. TESSERA_DRY_RUN=1 prints the commands instead.
# Usage: job.sh ROOT LAUNCHER RANKS DEVICE
#   ROOT is where Tessera is installed, or its source folder with build/release in it.
set -euo pipefail
root=$1 launcher=$2 ranks=$3 device=$4
dry_run=${TESSERA_DRY_RUN:-}

if [ -x "$root/bin/tessera" ]; then
  program=$root/bin/tessera folder=$root/libexec/tessera/tests scripts=$root/share/tessera
else
  program=$root/build/release/tools/tessera folder=$root/build/release/tests scripts=$root/tools
fi
if [ -z "$dry_run" ] && [ ! -x "$program" ]; then
  echo "job: there is neither $root/bin/tessera nor $program" >&2
  exit 3
fi

read -ra launch <<<"$launcher"
launch+=(-n "$ranks")
tests=("$scripts/cluster/run-tests.sh" -n "$ranks" --launcher "$launcher" --tests "$folder")
if [ "$device" = cuda ]; then
  launch+=("$scripts/cluster/gpu-per-rank.sh")
  tests+=(--gpus)
fi

run() {
  echo "+ $*"
  if [ -z "$dry_run" ]; then "$@"; fi
}

code=0
run "${launch[@]}" "$program" info || code=$?
run "${launch[@]}" "$program" parity --device "$device" --json parity.json || code=$?
run "${tests[@]}" || code=$?
exit $code
