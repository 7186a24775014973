#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the test programs, installed or in a build tree, on a number of ranks: a JUnit file and a log
# for each, and a summary. Programs that are for other numbers of ranks report themselves as skipped.
# Exit code: 0, 1 if one failed or none ran, 2 wrong usage.
# Usage: run-tests.sh [-n RANKS] [--launcher COMMAND] [--tests DIR] [--out DIR] [--gpus] [--dry-run] [LEVEL[/NAME]...]
#   -n          number of ranks: 4
#   --launcher  what starts ranks, without their number, such as "srun --mpi=pmix": $TESSERA_LAUNCHER
#               or mpiexec
#   --tests     folder of the levels: those of the installation or of build/release
#   --out       for results: ./tessera-tests
#   --gpus      one GPU of the node for each rank, see gpu-per-rank.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

ranks=4
launcher=${TESSERA_LAUNCHER:-mpiexec}
tests=
out=tessera-tests
dry_run=${TESSERA_DRY_RUN:-}
chosen=()
bind=()
while [ $# -gt 0 ]; do
  case "$1" in
    -n | --launcher | --tests | --out)
      [ $# -ge 2 ] || { echo "run-tests: $1 needs a value" >&2; exit 2; }
      case "$1" in
        -n) ranks=$2 ;;
        --launcher) launcher=$2 ;;
        --tests) tests=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2
      ;;
    --gpus) bind=("$here/gpu-per-rank.sh") && shift ;;
    --dry-run) dry_run=1 && shift ;;
    -*) echo "run-tests: unknown option $1" >&2; exit 2 ;;
    *) chosen+=("$1") && shift ;;
  esac
done
if [ -z "$tests" ]; then
  for tests in "$here/../../../libexec/tessera/tests" "$here/../../build/release/tests"; do
    if [ -d "$tests" ]; then break; fi
  done
fi
[ -d "$tests" ] || { echo "run-tests: no folder $tests; name it with --tests" >&2; exit 2; }
tests=$(cd "$tests" && pwd)
read -ra launch <<<"$launcher"

programs=()
for what in "${chosen[@]-}"; do
  case "$what" in
    */*) found=("$tests/${what%/*}/test_${what##*/}") ;;
    ?*) found=("$tests/$what"/test_*) ;;
    *) found=("$tests"/*/test_*) ;;
  esac
  for program in "${found[@]}"; do
    if [ -f "$program" ] && [ -x "$program" ]; then programs+=("$program"); fi
  done
done
[ ${#programs[@]} -gt 0 ] || { echo "run-tests: no test program in $tests" >&2; exit 2; }

if [ -z "$dry_run" ]; then
  mkdir -p "$out"
  out=$(cd "$out" && pwd)
  export TESSERA_TEST_LOG_DIR="$out/logs"
  # shellcheck source=tools/mpi_env.sh
  source "$here/../mpi_env.sh"
  set_mpi_env "$ranks"
fi

passed=0 skipped=0 failed=()
for program in "${programs[@]}"; do
  level=$(basename "$(dirname "$program")")
  name=$level.${program##*/test_}
  command=("${launch[@]}" -n "$ranks" ${bind[@]+"${bind[@]}"} "$program" -r junit -o "$out/$name.${ranks}ranks.xml")
  if [ -n "$dry_run" ]; then
    echo "${command[*]}"
    continue
  fi
  log=$out/$name.${ranks}ranks.log
  code=0
  timeout "${TESSERA_TEST_TIMEOUT:-300}" "${command[@]}" >"$log" 2>&1 </dev/null || code=$?
  case $code in
    0) passed=$((passed + 1)) && echo "passed   $name" ;;
    77) skipped=$((skipped + 1)) ;;
    *)
      failed+=("$name")
      echo "FAILED   $name: exit code $code; the end of $log:"
      tail -n 20 "$log" | sed 's/^/    /'
      ;;
  esac
done
if [ -n "$dry_run" ]; then exit 0; fi
echo "$ranks ranks: $passed passed, ${#failed[@]} failed, $skipped skipped since they are for other numbers; JUnit files in $out"
[ ${#failed[@]} -eq 0 ] && [ "$passed" -gt 0 ]
