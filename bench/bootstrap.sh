#!/usr/bin/env bash
# bootstrap.sh: how long it takes ranks to find each other, and how many bytes, by phase: up to 1,024 processes
# as threads and 256 as processes (bench/bootstrap.c), then 256 real ranks under `tutti launch`, from start to
# end. Prints it and keeps it, with a line about the machine, in bench/results/bootstrap-<date>.txt. Needs a
# finished build (`scons . tests`) in ${BUILD:-build}, and 16,384 descriptors.
set -eu -o pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=${RAW:-$here/results/bootstrap-$(date +%Y-%m-%d).txt}
mkdir -p "$(dirname "$raw")"
ulimit -n 16384

machine() {
  lscpu | sed -n 's/^Model name: *//p' | head -n 1
  echo "$(nproc) cores in use; Linux $(uname -r); $(cc --version | head -n 1)"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  uptime
}

cc -O2 -std=c11 -D_GNU_SOURCE -I"$here/../lib" -I"$here/../lib/backends/emu/cudart/include" -o "$work/bootstrap" \
  "$here/bootstrap.c" "$build/obj/libtutti_all.a" -pthread -ldl -lm -lexpat -lnettle

# Of all ranks: the slowest of each phase, and the bytes of one.
timings() {
  sed -n 's/.*Init timings: //p' "$work/log" | tr -c '0-9.\n' ' ' | awk '
    { for (i = 3; i <= 8; i++) if ($i > most[i]) most[i] = $i; ranks = $1 }
    END { printf "%d ranks: total %.0f ms: check-in %.0f, peer info in %d rounds %.0f, communicators %.0f, ",
                 ranks, most[3], most[4], most[5], most[6], most[7]
          printf "agreement %.0f; %d lines\n", most[8], NR }'
}

launched() {
  local begin end
  begin=$(date +%s%N)
  TUTTI_EMU=mode=threads NCCL_DEBUG=INFO "$build/bin/tutti" launch -n "$1" \
    "$build/tests/rank_program" --launched --ops all_reduce --bytes 8 --iterations 1 --deadline 200 >"$work/log" 2>&1
  end=$(date +%s%N)
  timings
  echo "$1 processes, an all-reduce of 8 bytes and the end: $(((end - begin) / 1000000)) ms"
}

{
  machine
  for count in 64 128 256 512 1024; do NCCL_SOCKET_IFNAME==lo "$work/bootstrap" threads $count; done
  for count in 64 128 256; do NCCL_SOCKET_IFNAME==lo "$work/bootstrap" processes $count; done
  for count in 64 128 256; do launched $count; done
} | tee -a "$raw"
