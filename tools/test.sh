#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds everything and runs the tests. Usage: tools/test.sh [options of ctest]
# For example `tools/test.sh -L ranks-6`, `tools/test.sh -R unit.safetensors -V`.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

"$here/build.sh"
exec timeout "${TESSERA_TEST_LIMIT_S:-3000}" \
  ctest --test-dir "$here/../build/${TESSERA_PRESET:-release}" --output-on-failure \
  --no-tests=error --parallel "$(nproc)" "$@"
