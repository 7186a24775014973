#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Writes down how it is called and starts the ranks with REAL_LAUNCHER.
set -euo pipefail
echo "$*" >>"$RECORD"
arguments=()
for argument in "$@"; do
  if [ "$argument" != --mpi=fake ]; then arguments+=("$argument"); fi
done
exec "$REAL_LAUNCHER" "${arguments[@]}"
