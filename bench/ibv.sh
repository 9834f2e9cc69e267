#!/usr/bin/env bash
# ibv.sh: measures the ibv net, perftest and bare verbs on Soft-RoCE, in the guest of tests/test_softroce.sh:
# one device, and two with a wire between them. Prints the results and keeps them, with a line about the
# machine, in bench/results/ibv-<date>.txt. Bandwidths, and the times in their tables, use a clock that counts
# instructions, so they are the same on any machine, busy or not; rounds between two processes use the
# machine's clock on two emulated cores, and need two idle cores. Needs a finished build in ${BUILD:-build} in
# which that test has run, and Debian's perftest. ROUNDS=n: number of those rounds, in turns with perftest's.
set -eu -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${BUILD:-$here/../build}" && pwd)
raw=${RAW:-$here/results/ibv-$(date +%Y-%m-%d).txt}
mkdir -p "$(dirname "$raw")" "$build/bench"
for program in ibv ibv_round; do
  cc -std=gnu11 -O2 -I "$here/../lib" "$here/$program.c" "$build/obj/libtutti_all.a" -lnettle -lexpat -lzstd \
    -lpthread -ldl -lm -o "$build/bench/$program"
done
guest() { "$here/../tests/softroce/run.sh" "$build/softroce" "$1" 600 "$here/ibv_guest.sh" "$build" "${@:2}"; }
{
  lscpu | sed -n 's/^Model name: *//p' | head -n 1
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  uptime
  for wires in one two; do
    echo "## Soft-RoCE in qemu, devices: $wires; a clock that counts instructions"
    CLOCK=instructions IDLE=skipped guest "$wires" bandwidth 1 # by that clock, one round is like the next
    echo "## Soft-RoCE in qemu, devices: $wires; the machine's clock, two cores"
    CORES=2 guest "$wires" round "${ROUNDS:-5}"
  done
} | tee "$raw"
