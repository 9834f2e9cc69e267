#!/usr/bin/env bash
# cpu_peers.sh: the library's collectives on CPU cores beside Open MPI's and MPICH's over shared memory: the
# same sizes, the same figures, in turns within one sitting, ROUNDS times. Prints a table of the lowest
# medians, microseconds; everything that was run, with its raw output, goes to
# bench/results/cpu_peers-<date>.txt. Needs a finished build in ${BUILD:-build}, mpicc of both peers (Debian:
# openmpi-bin libopenmpi-dev mpich libmpich-dev; one that is missing is left out) and a quiet machine.
#
#   RANKS=2        ranks; ROUNDS=5; SECONDS_A_POINT=0.1
#   OPS=, MIN=8, MAX=67108864, FACTOR=8      what is measured: names, separated by commas; bytes
#   QUICK=1        tries the script itself with few points; keeps nothing
set -eu -o pipefail
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG TUTTI_EMU TUTTI_SEED TUTTI_TRACE
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=$here/results/cpu_peers-$(date +%Y-%m-%d).txt
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
  ! has mpicc.mpich || mpicc.mpich -O2 -o "$work/mpich" "$here/cpu_peers_mpi.c"
}

# keep COMMAND...: runs it and keeps command and output. A peer that fails is said, and left out.
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
  local place=(--bind-to core)
  [ "$ranks" -le "$(nproc)" ] || place=(--oversubscribe --bind-to none)
  keep "$work/tutti" --name tutti --ranks "$ranks" "${range[@]}"
  keep "$work/tutti" --name tutti-each --each 1 --ranks "$ranks" "${range[@]}"
  [ ! -x "$work/openmpi" ] || keep mpirun.openmpi "${place[@]}" -np "$ranks" --mca pml ob1 --mca btl self,vader \
    "$work/openmpi" --name openmpi "${range[@]}"
  [ ! -x "$work/mpich" ] || keep mpiexec.mpich -bind-to core -n "$ranks" "$work/mpich" --name mpich "${range[@]}"
}

# Lowest medians; the last column is the best peer's time over ours.
table() {
  awk '
    $8 != 0 { wrong += 1 }
    {
      key = $3 " " $4
      if (!(key in seen)) { seen[key] = 1; order[++count] = key }
      if (!((key, $1) in least) || $6 + 0 < least[key, $1]) least[key, $1] = $6 + 0
    }
    function figure(key, name) { return (key, name) in least ? sprintf("%.2f", least[key, name]) : "-" }
    END {
      printf "%-20s %10s %11s %11s %11s %11s %8s\n", "operation", "bytes", "tutti", "each", "openmpi", "mpich", "peers/us"
      for (i = 1; i <= count; i++) {
        key = order[i]
        split(key, part, " ")
        best = 0
        if ((key, "openmpi") in least) best = least[key, "openmpi"]
        if ((key, "mpich") in least && (best == 0 || least[key, "mpich"] < best)) best = least[key, "mpich"]
        ratio = best > 0 && least[key, "tutti"] > 0 ? sprintf("%.2f", best / least[key, "tutti"]) : "-"
        printf "%-20s %10s %11s %11s %11s %11s %8s\n", part[1], part[2], figure(key, "tutti"),
               figure(key, "tutti-each"), figure(key, "openmpi"), figure(key, "mpich"), ratio
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
