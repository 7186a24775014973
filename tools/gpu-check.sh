#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All that needs a GPU, on one GPU in at most 8 minutes: builds, runs every kernel, every layer and
# all golden files on it, the compute sanitizer, the bench and the register spills. It needs a CUDA
# toolkit, a C++20 compiler, CMake and make or Ninja; no network. Headers come from deps/ in a tree
# of tools/gpu-bundle.sh, else from the system; without MPI it builds for one rank.
# Usage: tools/gpu-check.sh [BUILD FOLDER] [SECONDS]     (build/gpu-check 480)
# Exit code: 0 all well, 1 something failed, 3 no GPU: what needs none was done, the rest is named.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 3
build=${1:-build/gpu-check}
limit_s=${2:-480}
mkdir -p "$build"
summary=()
failed=0

has() { command -v "$1" >/dev/null 2>&1; }
note() {  # note STEP RESULT SECONDS
  summary+=("$(printf '%-28s %-52s %5d s' "$1" "$2" "$3")")
  if [[ "$2" == FAILED* ]]; then failed=1; fi
}
skip() { note "$1" "skipped: $2" 0; }

# step NAME SECONDS COMMAND...: the output goes to the screen and to BUILD/NAME.log. SECONDS are of
# 480 in all; with more or fewer, each step has its share of them.
step() {
  local name=$1 most=$((($2 * limit_s + 479) / 480)) begin=$SECONDS left=$((limit_s - SECONDS)) code
  shift 2
  printf '\n==== %s\n' "$name"
  if [ "$left" -lt 5 ]; then skip "$name" "no time left of $limit_s s"; failed=1; return 1; fi
  timeout "$((most < left ? most : left))" "$@" 2>&1 | tee "$build/$name.log"
  code=${PIPESTATUS[0]}
  case $code in
    0) note "$name" passed $((SECONDS - begin)) ;;
    124) note "$name" "FAILED: ran out of time" $((SECONDS - begin)) ;;
    *) note "$name" "FAILED with exit code $code" $((SECONDS - begin)) ;;
  esac
  return "$code"
}

finish() {
  printf '\n%s\n' "tessera gpu-check: ${gpu:-no GPU}, ${toolkit:-no CUDA toolkit}, $SECONDS s"
  printf '%s\n' "${summary[@]}"
  exit "$1"
}

# --- what this machine has -----------------------------------------------------------------------
nvcc=${CUDACXX:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
options=(-DCMAKE_BUILD_TYPE=Release -DTESSERA_CUDA=OFF)
if [ -n "$nvcc" ]; then
  PATH=$PATH:$(dirname "$nvcc")
  export CUDACXX=$nvcc
  toolkit="CUDA $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  options+=(-DTESSERA_CUDA=ON)
fi
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
options+=("-DCMAKE_CUDA_ARCHITECTURES=${architecture/./}")
if [ -z "$architecture" ]; then options[-1]=-DCMAKE_CUDA_ARCHITECTURES=90; fi
options+=("-DTESSERA_MPI=$(if has mpicc || has mpicxx; then echo ON; else echo OFF; fi)")
if [ -d deps ]; then options+=(-DTESSERA_DEPS=deps); fi
if has ninja; then options+=(-G Ninja); fi

# --- build ---------------------------------------------------------------------------------------
export CUDAFLAGS="${CUDAFLAGS:-} -Xptxas=-v" MAKEFLAGS=--output-sync  # for the spills
step configure 120 cmake -S . -B "$build" "${options[@]}" || finish 3
step build 400 cmake --build "$build" --parallel "$(nproc)" --target tests.gpu tessera_program ||
  finish 1

# --- with a GPU, by value ------------------------------------------------------------------------
tests=(ctest --test-dir "$build" --output-on-failure --no-tests=error)
if [ -z "$gpu" ] || [ -z "$nvcc" ]; then
  step imitation 240 "${tests[@]}" -L imitation --parallel "$(nproc)"
  for name in tests sanitizer bench; do skip "$name" "no GPU or no CUDA toolkit on this machine"; done
else
  step tests 240 "${tests[@]}" -L gpu -LE sanitizer
  # Where a GPU is, a test that finds none is broken.
  if grep -q '\*\*\*Skipped' "$build/tests.log"; then note "tests" "FAILED: some were skipped" 0; fi
  step bench 60 "$build/tools/tessera" bench layer --device cuda --dtype bf16 --tokens 512 \
    --product 4096 --case 'triangle_*' --case transition --case outer_product_mean
  if has compute-sanitizer; then
    step sanitizer 240 "${tests[@]}" -L sanitizer
  else
    skip sanitizer "compute-sanitizer is not installed"
  fi
fi
if [ -n "$nvcc" ]; then step spills 20 tools/spills.sh "$build/build.log"; fi

if [ "$failed" -ne 0 ]; then finish 1; fi
if [ -z "$gpu" ] || [ -z "$nvcc" ]; then finish 3; fi
finish 0
