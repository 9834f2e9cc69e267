#!/usr/bin/env bash
# sim.sh: time and memory of the simulator: the ring all-reduce of 1 MiB that is used to measure other
# simulators, larger ones, trees, PAT, and nodes that are folded; then its accuracy against measurements.
# Needs a finished build and /usr/bin/time. Prints each command with user seconds and peak memory, and appends
# that to bench/results/sim-<date>.txt; OUT names another folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tutti=${BUILD:-$here/../build}/bin/tutti
out=${OUT:-$here/results}/sim-$(date +%Y-%m-%d).txt
mkdir -p "$(dirname "$out")"

timed() {
  printf '\n$ tutti sim %s\n' "$*"
  { /usr/bin/time -f '%U s user, %e s, %M KiB' "$tutti" sim "$@" --rate; } 2>&1 | grep -v '^#'
}

{
  printf '======== bench/sim.sh\n%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *//')"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  printf 'load %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)"
  for nodes in 8 16 32 64 128; do
    timed all_reduce -b 1M -e 1M --algo ring --proto LL --channels 1 --exact --nodes $nodes --gpus 8
  done
  timed all_reduce -b 1M -e 1M --algo ring --proto Simple --channels 1 --exact --nodes 128 --gpus 8
  timed all_reduce -b 1M -e 1M --algo ring --proto LL --channels 1 --exact --nodes 512 --gpus 8
  timed all_reduce -b 1M -e 1M --algo tree --proto Simple --channels 1 --exact --nodes 2048 --gpus 8
  timed all_reduce -b 1M -e 1M --algo tree --proto Simple --channels 1 --exact --nodes 16384 --gpus 1
  timed all_gather -b 1M -e 1M --algo pat --channels 1 --nodes 16384 --gpus 1
  timed all_reduce -b 64M -e 64M --algo ring --proto LL --channels 1 --nodes 65536 --gpus 1
  timed all_reduce -b 64M -e 64M --algo ring --proto LL --channels 1 --nodes 8192 --gpus 8
  timed all_reduce -b 1M -e 1M --algo tree --proto Simple --channels 1 --nodes 8192 --gpus 8
  timed all_reduce -b 8 -e 8G -f 2 --nodes 128 --gpus 8 --machine dgx-h100
  timed all_reduce -b 64M -e 64M --algo tree --proto LL128 --channels 16 --nodes 2048 --gpus 8
  timed alltoall -b 64M -e 64M --nodes 32 --gpus 8
  timed alltoall -b 64M -e 64M --nodes 64 --gpus 8
  timed alltoall -b 64M -e 64M --nodes 128 --gpus 8
  printf '\n$ bench/sim_accuracy.py\n'
  python3 "$here/sim_accuracy.py"
} | tee -a "$out"
