#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what the build needs and this machine lacks. As root on Debian or Ubuntu it calls apt-get
# for the missing packages only; otherwise it names them and stops with exit code 3. It upgrades
# nothing and changes no setting. An MPI compiler on the PATH, from modules for instance, is taken
# as it is. Usage: tools/setup.sh [--checks]     (--checks: also what .ci/run needs)
set -euo pipefail

if [ -n "${TESSERA_SKIP_SETUP:-}" ]; then exit 0; fi

missing=()
reasons=()

need() {  # need "PACKAGES" "REASON" CHECK...
  local packages=$1 reason=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  missing+=("$packages")
  reasons+=("$reason")
}

has_program() { command -v "$1"; }

# Looks where the compiler and CMake would: the system, CPATH, CMAKE_PREFIX_PATH.
has_header() {
  local root folder
  IFS=':;' read -ra folders <<<"/usr/include:/usr/local/include:${CPATH:-}"
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for root in ${prefixes[@]+"${prefixes[@]}"}; do folders+=("$root/include"); done
  for folder in "${folders[@]}"; do
    if [ -e "$folder/$1" ] || [ -e "$folder/eigen3/$1" ]; then return 0; fi
  done
  return 1
}

has_catch2() { has_header catch2/catch.hpp || has_header catch2/catch_test_macros.hpp; }

need "g++"                          "C++20 compiler"                     has_program "${CXX:-c++}"
need "cmake"                        "configures the build"               has_program cmake
need "ninja-build"                  "runs the build"                     has_program ninja
need "openmpi-bin libopenmpi-dev"   "MPI: messages between ranks"        has_program mpicxx
need "libeigen3-dev"                "matrix products on the CPU"         has_header Eigen/Core
need "libfmt-dev"                   "text of messages and tables"        has_header fmt/format.h
need "nlohmann-json3-dev"           "JSON of tensor files and reports"   has_header nlohmann/json.hpp
need "libcli11-dev"                 "command line of the program"        has_header CLI/CLI.hpp
need "librandom123-dev"             "counter-based random numbers"       has_header Random123/philox.h
need "libxxhash-dev"                "checksums of replicas"              has_header xxhash.h
need "catch2"                       "tests"                              has_catch2
if [ "${1:-}" = "--checks" ]; then
  need "clang-format"               "format of the sources"              has_program clang-format
  need "shellcheck"                 "checks of the scripts"              has_program shellcheck
  need "mpich libmpich-dev"         "a second MPI for the tests"         has_program mpicxx.mpich
  need "python3"                    "checks of sources and documentation" has_program python3
  need "gfortran"                   "Fortran module"                     has_program gfortran
  need "valgrind"                   "memory errors of an example"        has_program valgrind
  need "ccache"                     "builds that share objects"          has_program ccache
  need "doxygen"                    "API reference"                      has_program doxygen
  need "pkg-config"                 "the package without CMake"          has_program pkg-config
  need "dpkg-dev"                   "dependencies of Debian packages"    has_program dpkg-shlibdeps
fi

if [ ${#missing[@]} -gt 0 ]; then
  echo "missing on this machine:"
  for i in "${!missing[@]}"; do printf '  %-32s %s\n' "${missing[$i]}" "${reasons[$i]}"; done
  read -ra packages <<<"${missing[*]}"
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "install them, on Debian or Ubuntu with"
    echo "  sudo apt-get install --no-install-recommends ${packages[*]}"
    echo "(if they are where this script does not look: CMAKE_PREFIX_PATH, or TESSERA_SKIP_SETUP=1)"
    exit 3
  fi
  export DEBIAN_FRONTEND=noninteractive
  install=(timeout 900 apt-get install -y --no-install-recommends --no-upgrade --no-remove)
  timeout 300 apt-get update -qq || echo "the package lists could not be renewed; trying with the old ones"
  "${install[@]}" "${packages[@]}" || { echo "apt-get failed; see above"; exit 3; }
fi

version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" != 3.25 ]; then
  echo "CMake $version is too old: 3.25 or newer is needed"
  exit 3
fi
