#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How much of the GPU's code runs without a GPU: the lines of runtime/gpu that the tests of the
# imitation execute, and the lines that only a GPU executes, which no test here can reach.
# Usage: tools/coverage.sh     (the build is in build/coverage; needs gcovr)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v gcovr >/dev/null || { echo "gcovr is missing (package gcovr)"; exit 3; }

timeout 300 cmake --preset release -B build/coverage -DTESSERA_COVERAGE=ON >/dev/null
timeout 3000 cmake --build build/coverage --parallel "$(nproc)" \
  --target tests.gpu tessera_program unit.gpu_binding unit.gpu_device unit.gpu_launch unit.gpu_transport
find build/coverage -name '*.gcda' -delete
timeout 1200 ctest --test-dir build/coverage -R '^(imitation|unit[.]gpu)[._]' --output-on-failure --no-tests=error
gcovr --root . --object-directory build/coverage --filter 'runtime/gpu/' --print-summary

echo
echo "lines of code that only a GPU executes:"
# Neither empty nor a comment alone; of a header for both, the part for nvcc.
code() { grep -cvE '^[[:space:]]*(//.*)?$'; }
for_nvcc() { awk '/^#ifdef __CUDACC__/ { on = 1; next } /^#(else|endif)/ { on = 0 } on' "$1"; }
total=0
count() {  # count LINES FILE
  printf '%6d  %s\n' "$1" "$2"
  total=$((total + $1))
}
for file in runtime/gpu/cuda/*.*; do
  case $file in *.txt) ;; *) count "$(code <"$file")" "$file" ;; esac
done
for file in runtime/gpu/*.hpp; do
  if grep -q '^#ifdef __CUDACC__' "$file"; then count "$(for_nvcc "$file" | code)" "$file (for nvcc)"; fi
done
printf '%6d  in all\n' "$total"
