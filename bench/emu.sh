#!/usr/bin/env bash
# emu.sh: measures the emulator on this machine and prints one short table. The commands with their raw output
# and a line about the machine go to bench/results/emu-<date>.txt. Needs a finished build in ${BUILD:-build}
# and a quiet machine. QUICK=1 tests the script itself with small numbers, and keeps no results.
#
#   guarded   8 ranks on one core, all-reduce of 64 KiB in chunks of 64 bytes: steps count, bytes do not
#   ring      1,024 ranks on one channel, one loop of the ring (64 bytes a chunk), out of place and in place
#   seeds     8 ranks at tiny constants, a process a seed, on two cores
#   threads   2 ranks, 64 MiB of floats, in free threads; beside it memcpy of the same bytes by 1 and 2
#             threads, in turns within one sitting
#   size      of libnccl.so.2 after strip
#   memory    bytes that a communicator holds a rank: made; after an all-reduce; after sends to all as well
set -eu -o pipefail
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG TUTTI_EMU TUTTI_SEED TUTTI_TRACE TUTTI_EVENTS
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
tutti=$build/bin/tutti
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
raw=$here/results/emu-$(date +%Y-%m-%d).txt
repeats=5 calls=100 ring_ranks=1024 seeds=1000 bytes=67108864 rounds=7 iterations=5
if [ -n "${QUICK:-}" ]; then
  raw=$work/raw.txt repeats=2 calls=1 ring_ranks=64 seeds=20 bytes=1048576 rounds=2 iterations=2
fi
protocols="Simple LL LL128"
mkdir -p "$(dirname "$raw")"
: >"$raw"

# row NAME VALUE...: a line of the table, also kept.
row() {
  printf '%-34s %s\n' "$1" "$2" | tee -a "$work/table"
}

# keep COMMAND...: runs it, keeps command and output, and leaves the output in $work/out.
keep() {
  printf '$ %s\n' "$*" | sed "s#$build/#build/#g; s#$work/##g" >>"$raw"
  "$@" >"$work/out" 2>&1 || { cat "$work/out" >&2; exit 1; }
  cat "$work/out" >>"$raw"
}

median() { sort -g | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

machine() {
  lscpu | sed -n 's/^Model name: *//p' | head -n 1
  echo "$(nproc) cores in use; Linux $(uname -r); $(cc --version | head -n 1)"
  "$tutti" --version
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  uptime
}

guarded() {
  local core protocol turn
  core=$(taskset -cp $$ | sed -E 's/.*: *([0-9]+).*/\1/')
  for protocol in $protocols; do
    for turn in $(seq "$repeats"); do
      keep taskset -c "$core" "$tutti" bench all_reduce --ranks 8 --channels 1 -b 64K -e 64K -c 0 -n "$calls" --rate -q \
        --chunk 64 --proto "$protocol" --seed "$turn"
      sed -n 's/.*moves.s \([^ ]*\) steps.s \(.*\)/\1 \2/p' "$work/out" >>"$work/rate.$protocol"
    done
    row "guarded, 8 ranks, $protocol" "$(cut -d' ' -f2 "$work/rate.$protocol" | median) steps/s, $(
      cut -d' ' -f1 "$work/rate.$protocol" | median) events/s"
  done
}

ring() {
  local protocol size=$((ring_ranks * 64))
  for protocol in $protocols; do
    keep /usr/bin/time -v "$tutti" bench all_reduce --ranks "$ring_ranks" --channels 1 -b $size -e $size \
      -c 0 -n 1 --rate -q --chunk 64 --proto "$protocol"
    row "ring, $ring_ranks ranks, $protocol" "$(awk '
      /^# Emulator/ { steps = $6; seconds = $8 }
      /Elapsed/ { elapsed = $NF }
      /Maximum resident/ { kilobytes = $NF }
      END { printf "%.2f s an all-reduce of %d steps, %.0f MiB at most, %s with start and end",
            seconds / 2, steps / 2, kilobytes / 1024, elapsed }' "$work/out")"
  done
}

# One process a seed, two at a time.
seeds_run() {
  seq "$seeds" | xargs -P 2 -I SEED "$tutti" bench all_reduce --ranks 8 -b 1K -e 1K --seed SEED --slots 2 \
    --chunk 64 --channels 2 --flag-bits 5 --depth 2 --lag 50 --proto "$1" -q >"$work/seeds"
  awk '{ if ($9 != 0 || $13 != 0) wrong += 1 } END { print NR " runs, " wrong + 0 " wrong" }' "$work/seeds"
}

seeds() {
  local protocol begin end
  for protocol in $protocols; do
    begin=$(date +%s.%N)
    keep seeds_run "$protocol"
    end=$(date +%s.%N)
    row "seeds, 8 ranks, $protocol" "$(cat "$work/out") in $(
      echo "$end $begin" | awk '{ printf "%.1f", $1 - $2 }') s"
  done
}

gigabytes() { awk -v bytes="$bytes" '{ printf "%.2f GB/s (%.0f us)", bytes / $1 / 1e3, $1 }'; }

threads() {
  local round
  keep cc -O2 -pthread -o "$work/memcpy" "$here/memcpy.c"
  for round in $(seq "$rounds"); do
    keep "$work/memcpy" 1 "$bytes" "$iterations"
    cat "$work/out" >>"$work/copy.1"
    keep "$tutti" bench all_reduce --ranks 2 -b "$bytes" -e "$bytes" -c 0 -n "$iterations" -w 1 --threads -q
    awk '{ print $6 }' "$work/out" >>"$work/copy.out"
    awk '{ print $10 }' "$work/out" >>"$work/copy.in"
    keep "$work/memcpy" 2 "$bytes" "$iterations"
    cat "$work/out" >>"$work/copy.2"
  done
  row "threads, 2 ranks, out of place" "$(median <"$work/copy.out" | gigabytes)"
  row "threads, 2 ranks, in place" "$(median <"$work/copy.in" | gigabytes)"
  row "memcpy, 1 thread" "$(median <"$work/copy.1" | gigabytes)"
  row "memcpy, 2 threads, each" "$(median <"$work/copy.2" | gigabytes)"
}

size() {
  keep strip -o "$work/libnccl.so.2" "$build/lib/libnccl.so.2"
  keep wc -c "$work/libnccl.so.2"
  row "libnccl.so.2, stripped" "$(awk '{ printf "%.0f KiB", $1 / 1024 }' "$work/out")"
}

memory() {
  local ranks
  # Word splitting is wanted: pkg-config's answer is a list of flags.
  # shellcheck disable=SC2046
  keep cc -o "$work/comm_memory" "$here/comm_memory.c" $(PKG_CONFIG_PATH=$build/lib/pkgconfig \
    pkg-config --cflags --libs tutti-emu)
  for ranks in 2 8; do
    keep "$work/comm_memory" $ranks
    row "communicator of $ranks, a rank" "$(awk '{
      printf "%.0f KiB; %.1f MiB after an all-reduce; %.1f MiB after sends to all as well",
      $1 / 1024, $2 / 1048576, $3 / 1048576 }' "$work/out")"
  done
  for ranks in 8 16 32; do
    keep env TUTTI_EMU=mode=threads,net=1,devices=$ranks,nodes=$ranks "$work/comm_memory" $ranks
    row "of $ranks nodes, a rank" "$(awk '{
      printf "%.1f MiB after an all-reduce; %.1f MiB after sends to all as well", $2 / 1048576, $3 / 1048576 }' "$work/out")"
  done
}

machine | tee -a "$work/table" >>"$raw"
echo >>"$raw"
cat "$work/table"
echo
for part in guarded ring seeds threads size memory; do $part; done
{
  echo
  echo "The table:"
  cat "$work/table"
} >>"$raw"
# Removes this machine's paths.
sed -i "s#$(dirname "$here")/##g; s#$work/##g" "$raw"
[ -n "${QUICK:-}" ] || echo "raw output: bench/results/$(basename "$raw")"
