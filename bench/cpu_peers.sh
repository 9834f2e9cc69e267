#!/usr/bin/env bash
# cpu_peers.sh: compares the library's collectives on CPU cores with Open MPI's and MPICH's over shared
# memory, or with Open MPI's and Gloo's over TCP on loopback: the same sizes and figures, in turns within one
# session, ROUNDS times. Prints a table of the lowest medians in microseconds; the commands with their raw
# output go to bench/results/cpu_peers-<date>.txt. Needs a finished build in ${BUILD:-build}, the peers
# (Debian: openmpi-bin libopenmpi-dev mpich libmpich-dev libgloo-dev; missing ones are left out) and a quiet
# machine.
#
#   TRANSPORT=shm        or tcp: every rank says that it is on a host of its own
#   RANKS=2        ranks; ROUNDS=5; SECONDS_A_POINT=0.1
#   OPS=, MIN=8, MAX=67108864, FACTOR=8      what is measured: names, separated by commas; bytes
#   QUICK=1        tries the script itself with few points; keeps nothing
set -eu -o pipefail
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG TUTTI_EMU TUTTI_SEED TUTTI_TRACE TUTTI_EVENTS
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
transport=${TRANSPORT:-shm}
raw=$here/results/cpu_peers-$(date +%Y-%m-%d).txt
[ "$transport" = shm ] || raw=${raw%.txt}-$transport.txt
ranks=${RANKS:-2} rounds=${ROUNDS:-5} seconds=${SECONDS_A_POINT:-0.1}
range=(--min "${MIN:-8}" --max "${MAX:-67108864}" --factor "${FACTOR:-8}")
if [ -n "${QUICK:-}" ]; then
  raw=$work/raw.txt rounds=1 seconds=0.005
  range=(--min 8 --max 4096 --factor 512)
fi
range+=(--seconds "$seconds")
[ -z "${OPS:-}" ] || range+=(--ops "$OPS")
mkdir -p "$(dirname "$raw")"
: >"$raw"

has() { command -v "$1" >"$work/which" 2>&1; }

compile() {
  # Word splitting is wanted: pkg-config's answer is a list of flags.
  # shellcheck disable=SC2046
  cc -O2 -o "$work/tutti" "$here/cpu_peers.c" -pthread \
    $(PKG_CONFIG_PATH=$build/lib/pkgconfig pkg-config --cflags --libs tutti-emu)
  ! has mpicc.openmpi || mpicc.openmpi -O2 -o "$work/openmpi" "$here/cpu_peers_mpi.c"
  if [ "$transport" = tcp ]; then
    g++ -O2 -std=c++17 -o "$work/gloo" "$here/cpu_peers_gloo.cc" -lgloo -lpthread 2>"$work/err" ||
      echo "cpu_peers.sh: no Gloo: $(head -n 1 "$work/err")" >&2
    return
  fi
  ! has mpicc.mpich || mpicc.mpich -O2 -o "$work/mpich" "$here/cpu_peers_mpi.c"
}

# keep COMMAND...: runs it and keeps command and output. A peer that fails is reported and left out.
keep() {
  printf '$ %s\n' "$*" | sed "s#$work/##g" >>"$raw"
  if "$@" >"$work/out" 2>"$work/err"; then
    tee -a "$work/all" <"$work/out" >>"$raw"
  else
    echo "cpu_peers.sh: this failed: $*" >&2
    tail -n 3 "$work/err" >&2
  fi
}

round() {
  local place=(--bind-to core) links=self,vader launch=("$build/bin/tutti" launch -n "$ranks" "$work/tutti")
  [ "$ranks" -le "$(nproc)" ] || place=(--oversubscribe --bind-to none)
  if [ "$transport" = tcp ]; then
    links="self,tcp --mca btl_tcp_if_include lo"
    keep "${launch[@]}" --processes 1 --hosts 1 --name tutti "${range[@]}"
    for algorithm in ring hd; do
      [ ! -x "$work/gloo" ] ||
        keep "$work/gloo" --name "gloo-$algorithm" --algorithm "$algorithm" --ranks "$ranks" "${range[@]}"
    done
  else
    keep "$work/tutti" --name tutti --ranks "$ranks" "${range[@]}"
    keep "$work/tutti" --name each --each 1 --ranks "$ranks" "${range[@]}"
    keep "${launch[@]}" --processes 1 --name processes "${range[@]}"
    [ ! -x "$work/mpich" ] ||
      keep mpiexec.mpich -bind-to core -n "$ranks" "$work/mpich" --name mpich "${range[@]}"
  fi
  # Word splitting is wanted: an option may follow.
  # shellcheck disable=SC2086
  [ ! -x "$work/openmpi" ] || keep mpirun.openmpi "${place[@]}" -np "$ranks" --mca pml ob1 --mca btl $links \
    "$work/openmpi" --name openmpi "${range[@]}"
}

# One column per name; the last is the best peer's time divided by ours across processes.
table() {
  local names="tutti each processes openmpi mpich" ours=processes peers="openmpi mpich"
  [ "$transport" = shm ] || names="tutti openmpi gloo-ring gloo-hd" ours=tutti peers="openmpi gloo-ring gloo-hd"
  awk -v names="$names" -v ours="$ours" -v peers="$peers" '
    $8 != 0 { wrong += 1 }
    {
      key = $3 " " $4
      if (!(key in seen)) { seen[key] = 1; order[++count] = key }
      if (!((key, $1) in least) || $6 + 0 < least[key, $1]) least[key, $1] = $6 + 0
    }
    END {
      columns = split(names, name, " ")
      others = split(peers, peer, " ")
      printf "%-20s %10s", "operation", "bytes"
      for (i = 1; i <= columns; i++) printf " %11s", name[i]
      printf " %8s\n", "peers/us"
      for (i = 1; i <= count; i++) {
        key = order[i]
        split(key, part, " ")
        printf "%-20s %10s", part[1], part[2]
        for (k = 1; k <= columns; k++)
          printf " %11s", (key, name[k]) in least ? sprintf("%.2f", least[key, name[k]]) : "-"
        best = 0
        for (k = 1; k <= others; k++)
          if ((key, peer[k]) in least && (best == 0 || least[key, peer[k]] < best)) best = least[key, peer[k]]
        known = best > 0 && least[key, ours] > 0
        printf " %8s\n", known ? sprintf("%.2f", best / least[key, ours]) : "-"
      }
      printf "points with wrong results: %d\n", wrong
    }' "$work/all"
}

{
  lscpu | sed -n 's/^Model name: *//p' | head -n 1
  echo "$(nproc) cores; Linux $(uname -r); $(git -C "$here" log -1 --format='commit %h' 2>"$work/err" || true)"
  ! has mpirun.openmpi || mpirun.openmpi --version | head -n 1
  ! has mpiexec.mpich || mpiexec.mpich --version | sed -n 's/^ *Version: */MPICH /p'
  uptime
} >>"$raw"
compile
for ((i = 0; i < rounds; i++)); do round; done
{
  echo
  table
} | tee -a "$raw"
sed -i "s#$(dirname "$here")/##g; s#$work/##g" "$raw"
[ -n "${QUICK:-}" ] || echo "raw output: bench/results/$(basename "$raw")"
