#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Registers, stack and spilled bytes of every GPU kernel, as ptxas reports them; exit code 1 if any
# kernel spills. Usage: tools/spills.sh [LOG]
# LOG is the output of a build with `-Xptxas=-v` in CUDAFLAGS. Without it, or if it compiled no
# kernel, the kernels are compiled here (in build/spills). CUDAARCHS chooses for what ("80;90").
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=${1:-}
if [ -z "$log" ] || ! grep -q "Compiling entry function" "$log"; then
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc) || { echo "nvcc is missing"; exit 3; }
  log=build/spills/build.log
  mkdir -p build/spills
  CUDACXX=$nvcc CUDAFLAGS="-Xptxas=-v" timeout 300 cmake --preset cuda -B build/spills \
    -DTESSERA_TESTS=OFF "-DCMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-80;90}" >/dev/null
  timeout 3000 cmake --build build/spills --clean-first --parallel "$(nproc)" \
    --target tessera_gpu_cuda >"$log" 2>&1 || { tail -n 30 "$log"; exit 3; }
fi

awk '
  /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2]; arch = quoted[4] }
  /bytes stack frame/ { stack = $1; stored = $5; loaded = $9 }
  /Used [0-9]+ registers/ && kernel != "" {
    match($0, /Used [0-9]+/)
    print arch, substr($0, RSTART + 5, RLENGTH - 5), stack, stored + loaded, kernel
    kernel = ""
  }' "$log" | c++filt | sort | uniq | awk '
  BEGIN { printf "%-7s %9s %6s %8s  %s\n", "arch", "registers", "stack", "spilled", "kernel" }
  {
    name = $0; sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ /, "", name)
    if (length(name) > 120) name = substr(name, 1, 117) "..."
    printf "%-7s %9d %6d %8d  %s\n", $1, $2, $3, $4, name
    kernels++; if ($4 > 0) spilling++; if ($2 > most) most = $2
  }
  END {
    printf "%d kernels, %d of them spill, at most %d registers\n", kernels, spilling, most
    exit kernels == 0 ? 3 : spilling > 0
  }'
