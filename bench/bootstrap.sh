#!/usr/bin/env bash
# bootstrap.sh: how long processes take to find each other, and how many bytes that costs, by phase: rows of
# processes and of threads, each doubling of the parties, medians of ${RUNS:-3} runs by wall time. Raw output
# goes to bench/results/bootstrap-<date>.txt. Needs a finished build with its tests in ${BUILD:-build}, and a
# quiet machine. QUICK=1 tries the script itself with few parties, and keeps nothing.
set -eu -o pipefail
export LC_ALL=C NCCL_SOCKET_IFNAME==lo NCCL_DEBUG=WARN
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=$here/results/bootstrap-$(date +%Y-%m-%d).txt
runs=${RUNS:-3} processes="16 32 64 128 256" threads="64 128 256 512 1024"
if [ -n "${QUICK:-}" ]; then
  raw=$work/raw.txt runs=1 processes="4 8" threads="8 16"
fi
ulimit -n "$(ulimit -H -n)"
${CC:-gcc} -std=c11 -D_GNU_SOURCE -O2 -I"$here/../lib" -o "$work/bootstrap" "$here/bootstrap.c" \
  "$build/obj/libtutti_all.a" -l:libexpat.a -l:libsodium.a -lpthread -ldl -lm

printf '%s, %s processors, %s descriptors, %s\n' "$(uname -sr)" "$(nproc)" "$(ulimit -n)" "$(date -u +%FT%TZ)" >>"$raw"
# row HOW PARTIES: runs, kept; the one with the median wall time is printed.
row() {
  : >"$work/runs"
  for _ in $(seq "$runs"); do "$work/bootstrap" "$1" "$2" >>"$work/runs"; done
  tee -a "$raw" <"$work/runs" | sort -t: -k1,1 | awk '{ for (i = 1; i < NF; i++) if ($i == "wall") print $(i + 1), $0 }' |
    sort -n | awk '{ line[NR] = $0 } END { print line[int((NR + 1) / 2)] }' | cut -d' ' -f2-
}
for count in $processes; do row processes "$count"; done
for count in $threads; do row threads "$count"; done
