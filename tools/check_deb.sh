#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the Debian packages of a build tree, installs them, runs the program, builds a program of a
# user, removes them, and looks for what is left. As root. Into an empty folder with the package
# database of this machine, so that dependencies are checked and the machine stays as it is; with
# --system into the machine itself. Usage: tools/check_deb.sh [--system] [BUILD]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

system=
if [ "${1:-}" = "--system" ]; then system=yes; shift; fi
build=${1:-build/release}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "check_deb: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "needs root: files of packages belong to root"

cpack -G DEB --config "$build/CPackConfig.cmake" -B "$scratch/packages" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; fail "cpack failed"; }
packages=("$scratch"/packages/*.deb)
for package in "${packages[@]}"; do
  dpkg-deb --field "$package" Package Version Architecture Depends
done
dpkg-deb --field "$scratch"/packages/tessera_*.deb Depends | grep -q 'libc6.*mpi' ||
  fail "the dependencies of tessera lack the libraries that it links"

dpkg=(dpkg)
root=
if [ -z "$system" ]; then
  root=$scratch/root
  mkdir -p "$root/var/lib" "$root/etc" "$scratch/bin"
  cp -a /var/lib/dpkg "$root/var/lib/"
  # The scripts of the packages call ldconfig: for that folder, not for the machine.
  printf '#!/bin/sh\nexec /sbin/ldconfig -r "%s"\n' "$root" >"$scratch/bin/ldconfig"
  chmod +x "$scratch/bin/ldconfig"
  export PATH="$scratch/bin:$PATH"
  dpkg=(dpkg --root="$root" --no-triggers --force-script-chrootless)
fi
files() { find "$root/usr" "$root/etc" "$root/opt" -path '*tessera*' 2>/dev/null | sort; }
[ -z "$(files)" ] || fail "there are files of tessera before it is installed: $(files | head -n 3)"

"${dpkg[@]}" --install "${packages[@]}" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg --install"; }
"${dpkg[@]}" --listfiles tessera tessera-dev | sort -u >"$scratch/files"
count=0
while read -r file; do
  [ -e "$root$file" ] || fail "$file is in the package and was not installed"
  [ -d "$root$file" ] || count=$((count + 1))
done < <(grep '^/' "$scratch/files")
libdir=$(dirname "$(grep -m 1 'libtessera[.]so' "$scratch/files")")
export LD_LIBRARY_PATH="$root$libdir:${LD_LIBRARY_PATH:-}"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
  "$root/usr/bin/tessera" parity --case transition >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "parity"; }
cmake -S tests/workflow/installed_user -B "$scratch/user" -DCMAKE_PREFIX_PATH="$root/usr" \
  -DUSER_LINKS=tessera::tessera_shared >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "find_package"; }
cmake --build "$scratch/user" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "build against the package"; }
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "$scratch/user/user"

"${dpkg[@]}" --purge tessera-dev tessera >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "dpkg --purge"; }
[ -z "$(files)" ] || fail "left after removal: $(files | head -n 5)"
while read -r file; do
  [ -d "$root$file" ] || [ ! -e "$root$file" ] || fail "left after removal: $file"
done < <(grep '^/' "$scratch/files")
echo "check_deb: $count files installed, used and removed"
