#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the format of the sources (clang-format 14; others differ in details) and of the scripts.
# Usage: tools/check_format.sh [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run -Werror)
if [ "${1:-}" = "--fix" ]; then mode=(-i); fi

format=$(command -v clang-format-14 || command -v clang-format) || {
  echo "clang-format is missing"
  exit 3
}
git ls-files -z '*.hpp' '*.cpp' '*.cu' '*.cuh' '*.c' '*.h' | xargs -0 -r "$format" "${mode[@]}"
git ls-files -z '*.sh' .ci/run | xargs -0 -r shellcheck -x
echo "format: well"
