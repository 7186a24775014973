#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds everything and runs the tests. Usage: tools/test.sh [options of ctest]
# For example `tools/test.sh -L ranks-6`, `tools/test.sh -R unit.safetensors -V`. `tools/test.sh -L
# unit` (or layer, property) builds that level only.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

targets=()
if [ "${1:-}" = "-L" ]; then
  case "${2:-}" in unit | layer | property) targets=("tests.$2") ;; esac
fi
"$here/build.sh" ${targets[@]+"${targets[@]}"}
exec timeout "${TESSERA_TEST_LIMIT_S:-3000}" \
  ctest --test-dir "$here/../build/${TESSERA_PRESET:-release}" --output-on-failure \
  --no-tests=error --parallel "$(nproc)" "$@"
