#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sets up, configures and builds. Usage: tools/build.sh [TARGET...]     (default: everything)
# TESSERA_PRESET chooses the preset (release); the result is in build/<preset>.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${TESSERA_PRESET:-release}

tools/setup.sh

# The largest sources take about 1.5 GB each.
jobs=$(nproc)
memory_kb=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
if [ $((memory_kb / 1500000)) -lt "$jobs" ]; then jobs=$((memory_kb / 1500000)); fi
if [ "$jobs" -lt 1 ]; then jobs=1; fi

if command -v ninja >/dev/null; then export CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}"; fi
log=build/configure-$preset.log
mkdir -p build
timeout 300 cmake --preset "$preset" >"$log" 2>&1 || { cat "$log"; exit 3; }
timeout "${TESSERA_BUILD_LIMIT_S:-3000}" \
  cmake --build "build/$preset" --parallel "$jobs" ${1+--target "$@"}
