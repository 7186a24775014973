#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Several hosts on one Linux machine: network namespaces behind a bridge, each with a name of its own,
# and Open MPI between them over TCP. Runs the parity cases on all hosts; then cuts one host off in
# the middle of a run and checks that the job ends in time, with exit code 4 and a message that names
# the lost rank. Needs root, iproute2 and Open MPI 4; leaves nothing behind.
# Usage: tools/cluster/try-network.sh [PROGRAM]        (build/release/tools/tessera)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$(realpath "${1:-$here/../../build/release/tools/tessera}")
hosts=4
limit=10  # TESSERA_TIMEOUT_S of the run that is cut
grace=30  # seconds after that in which the launcher must have noticed, too
scratch=$(mktemp -d)
bridge=tsrbr

cleanup() {
  local host
  for ((host = 0; host < hosts; host++)); do
    ip netns pids "tsr$host" 2>/dev/null | xargs -r kill -9
    ip link del "tsrv$host" 2>/dev/null || true
    ip netns del "tsr$host" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$scratch"
}
trap cleanup EXIT

fail() {
  echo "try-network: $1"
  exit 1
}

[ "$(id -u)" -eq 0 ] || fail "needs root, to make network namespaces"
command -v ip >/dev/null || fail "needs the program ip (package iproute2)"
mpirun --version | grep -q 'Open MPI' || fail "needs mpirun of Open MPI"

# Hosts 10.199.0.10, .11, ... Open MPI's launcher waits for the daemon of a lost host until TCP gives
# the connection up, which takes Linux a quarter of an hour unless it is told to try less often.
ip link add "$bridge" type bridge
ip link set "$bridge" up
for ((host = 0; host < hosts; host++)); do
  ip netns add "tsr$host"
  ip link add "tsrv$host" type veth peer name eth0 netns "tsr$host"
  ip link set "tsrv$host" master "$bridge" up
  ip -n "tsr$host" addr add "10.199.0.$((10 + host))/24" dev eth0
  ip -n "tsr$host" link set lo up
  ip -n "tsr$host" link set eth0 up
  ip netns exec "tsr$host" sysctl -qw net.ipv4.tcp_retries2=5
done

# Open MPI's idea of ssh: `agent HOST COMMAND...`, where HOST is an address from the list above.
cat >"$scratch/agent" <<'AGENT'
#!/usr/bin/env bash
host=$((${1##*.} - 10))
shift
exec ip netns exec "tsr$host" unshare --uts sh -c 'hostname "$0" && exec sh -c "$1"' "node$host" "$*"
AGENT
chmod +x "$scratch/agent"

list=10.199.0.10:1
for ((host = 1; host < hosts; host++)); do list+=,10.199.0.$((10 + host)):1; done
# shellcheck disable=SC2016,SC2054
launch=(ip netns exec tsr0 unshare --uts sh -c 'hostname node0 && exec "$@"' launch
  mpirun --host "$list" -n "$hosts" --mca plm_rsh_agent "$scratch/agent" --mca plm rsh
  --mca btl tcp,self --mca btl_tcp_if_include 10.199.0.0/24 --mca oob_tcp_if_include 10.199.0.0/24
  --mca pml ob1 --allow-run-as-root --bind-to none)

echo "==== $hosts hosts"
# shellcheck disable=SC2016
timeout 60 "${launch[@]}" sh -c 'echo "$(hostname): $(ip -4 -o addr show eth0 | awk "{print \$4}")"' | sort

echo "==== parity across them"
timeout 600 "${launch[@]}" -x TESSERA_THREADS=1 "$program" parity --case 'triangle_*' --case msa_module ||
  fail "parity across hosts does not hold"

echo "==== one host is cut off in the middle of a run"
log=$scratch/log
TESSERA_TIMEOUT_S=$limit timeout 300 "${launch[@]}" -x TESSERA_THREADS=1 -x TESSERA_TIMEOUT_S \
  "$program" parity --kind parity --case 'triangle_*' --size medium --tokens 512 >"$log" 2>&1 &
job=$!
sleep 8
kill -0 "$job" 2>/dev/null || { cat "$log"; fail "the run was over before the link was cut"; }
ip link set tsrv2 down
cut=$SECONDS
code=0
wait "$job" || code=$?
took=$((SECONDS - cut))
cat "$log"
echo "ended $took s after the link was cut, with exit code $code"
[ "$took" -le $((limit + grace)) ] || fail "that is more than $((limit + grace)) s"
[ "$code" -eq 4 ] || fail "the exit code should be 4"
grep -Eq 'TimeoutError.*(rank\(s\) 2|rank 2)' "$log" || fail "no message names rank 2"
echo "==== well"
