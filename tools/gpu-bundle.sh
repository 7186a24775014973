#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One archive for a GPU machine without network and without packages: the tracked files of this tree
# and, in deps/, the headers of its dependencies as they are installed here. There:
#   tar xf tessera-gpu.tar.gz && tessera/tools/gpu-check.sh
# Usage: tools/gpu-bundle.sh [FILE]     (tessera-gpu.tar.gz)
set -euo pipefail
file=$(realpath -m "${1:-tessera-gpu.tar.gz}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folders=()
IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
for root in ${prefixes[@]+"${prefixes[@]}"} /usr/local /usr; do
  folders+=("$root/include/eigen3" "$root/include")
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
deps=$scratch/tessera/deps
mkdir -p "$deps"
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$scratch/tessera"

# take MARKER WHAT...: copies from the first folder that has the marker.
take() {
  local marker=$1 folder
  shift
  for folder in "${folders[@]}"; do
    if [ -e "$folder/$marker" ]; then
      (cd "$folder" && cp -rL --parents "$@" "$deps")
      return
    fi
  done
  echo "$marker is not installed here: tools/setup.sh says what to install" \
       "(of Catch2 it must be version 2, which is one header)"
  exit 3
}

take Eigen/Core             Eigen
take fmt/format.h           fmt
take nlohmann/json.hpp      nlohmann
take CLI/CLI.hpp            CLI
take Random123/philox.h     Random123
take xxhash.h               xxhash.h
take catch2/catch.hpp       catch2

tar --create --gzip --file "$file" --directory "$scratch" tessera
echo "$file: $(du -h "$file" | cut -f1)"
