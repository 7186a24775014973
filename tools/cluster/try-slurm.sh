#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A Slurm cluster of one node on this Debian machine, as long as the script runs: srun with PMIx, the
# wrong way to call it, CTest with srun, and the batch job slurm.sh. Needs root and a build in
# build/release. Installs what Slurm needs and removes it again; configuration, keys, sockets and state
# are in a folder of their own.
# Usage: tools/cluster/try-slurm.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
program=$source/build/release/tools/tessera
scratch=$(mktemp -d)
cpus=8  # that the node claims to have
installed=()

fail() {
  echo "try-slurm: $1"
  tail -n 5 "$scratch"/*.log 2>/dev/null || true
  exit 1
}

cleanup() {
  local file
  for file in slurmd slurmctld munged; do
    if [ -s "$scratch/$file.pid" ]; then kill "$(cat "$scratch/$file.pid")" 2>/dev/null || true; fi
  done
  if [ ${#installed[@]} -gt 0 ]; then
    apt-get -qq -o DPkg::Lock::Timeout=300 purge -y "${installed[@]}" >/dev/null 2>&1 || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT

install_slurm() {
  local before
  before=$(dpkg-query -W -f '${Package}\n' | sort)
  export DEBIAN_FRONTEND=noninteractive
  # Without a policy the packages would start daemons with a configuration that is not ours.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    no_daemons=1
  fi
  timeout 600 apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge >"$scratch/apt.log" 2>&1 || fail "apt-get failed"
  if [ -n "${no_daemons:-}" ]; then rm /usr/sbin/policy-rc.d; fi
  mapfile -t installed < <(dpkg-query -W -f '${Package}\n' | sort | comm -13 <(echo "$before") -)
  echo "installed for now: ${installed[*]}"
}

start_slurm() {
  local node
  node=$(hostname -s)
  dd if=/dev/urandom of="$scratch/munge.key" bs=128 count=8 status=none
  chmod 400 "$scratch/munge.key"
  mkdir "$scratch/state" "$scratch/spool"
  chmod 755 "$scratch"
  munged --force --key-file="$scratch/munge.key" --socket="$scratch/munge.socket" \
    --pid-file="$scratch/munged.pid" --log-file="$scratch/munged.log" --seed-file="$scratch/munged.seed"
  export SLURM_CONF=$scratch/slurm.conf
  cat >"$SLURM_CONF" <<CONF
ClusterName=try
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=26817
SlurmdPort=26818
AuthType=auth/munge
AuthInfo=socket=$scratch/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
NodeName=$node NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
  slurmctld
  slurmd
  for _ in $(seq 60); do
    if [ "$(sinfo -h -o %t 2>/dev/null)" = idle ]; then break; fi
    sleep 0.5
  done
  sinfo
  [ "$(sinfo -h -o %t)" = idle ] || fail "the node is not idle"
}

[ "$(id -u)" -eq 0 ] || fail "needs root, to install and start Slurm"
[ -x "$program" ] || fail "$program is not there; build it"
export TESSERA_THREADS=1 TESSERA_TIMEOUT_S=60

echo "==== Slurm"
install_slurm
start_slurm
srun --version
srun --mpi=list 2>&1

echo "==== srun --mpi=pmix: parity on 4 ranks"
timeout 300 srun -n 4 --mpi=pmix "$program" parity --case 'triangle_*' --case msa_module || fail "parity"

echo "==== srun without PMI: Open MPI refuses"
code=0
timeout 60 srun -n 4 --mpi=none "$program" parity >"$scratch/none.log" 2>&1 || code=$?
sed -n '1,/^Please/p' "$scratch/none.log"
echo "exit code $code"
if [ "$code" -eq 0 ] || grep -q ' hold' "$scratch/none.log"; then fail "four separate runs passed for one"; fi

mpich=$source/build/mpich/tools/tessera
if [ -x "$mpich" ]; then
  echo "==== srun --mpi=pmi2: parity with MPICH"
  timeout 300 srun -n 4 --mpi=pmi2 "$mpich" parity --case 'triangle_*' || fail "parity with MPICH"
  echo "==== srun without PMI: MPICH starts four programs that do not know of each other"
  code=0
  timeout 60 srun -n 4 --mpi=none "$mpich" parity >"$scratch/none.log" 2>&1 || code=$?
  cat "$scratch/none.log"
  echo "exit code $code"
  [ "$code" -eq 3 ] || fail "four separate runs were not refused with exit code 3"
  grep -q 'InitError.*SLURM_NTASKS=4' "$scratch/none.log" || fail "the message does not name the reason"
else
  echo "==== MPICH: not tried, since there is no build/mpich"
fi

echo "==== CTest with TESSERA_LAUNCHER='srun --mpi=pmix'"
programs=$(printf '%s;' "$source"/build/release/tests/unit/test_{collectives,exchange,mesh,relayout,timeout})
TESSERA_LAUNCHER="srun --mpi=pmix" cmake -S "$source/tests/workflow/cluster/launcher" -B "$scratch/ctest" \
  "-DTESSERA_SOURCE=$source" "-DPROGRAMS=${programs%;}" >"$scratch/cmake.log" || fail "cmake"
ctest --test-dir "$scratch/ctest" --parallel 2 --output-on-failure --no-tests=error || fail "ctest"

echo "==== sbatch slurm.sh"
cd "$scratch"
export TESSERA_ROOT=$source
timeout 600 sbatch --wait --nodes=1 --ntasks-per-node=4 --output="$scratch/job.txt" "$here/slurm.sh" || {
  cat "$scratch/job.txt"
  fail "the job"
}
cat "$scratch/job.txt"
echo "==== well"
