#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the program and compares every distributed layer with its serial form and with the goldens.
# Usage: tools/parity.sh [options of `tessera parity`]     TESSERA_RANKS chooses the ranks (4).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ranks=${TESSERA_RANKS:-4}

"$here/build.sh" tessera_program
# shellcheck source=tools/mpi_env.sh
source "$here/mpi_env.sh"
set_mpi_env "$ranks"
exec timeout "${TESSERA_RUN_LIMIT_S:-1800}" \
  mpirun -n "$ranks" "$here/../build/${TESSERA_PRESET:-release}/tools/tessera" parity "$@"
