#!/usr/bin/env bash
# recorder.sh: the cost of TUTTI_TRACE on this machine. Appends commands and raw output to
# bench/results/recorder-<date>.txt. Needs a finished build, with its tests, in ${BUILD:-build} and a quiet
# machine. explain.sh measures `tutti explain` on such records.
#
#   events    ns of a call's records, apart from everything else
#   cost      all-reduces of two ranks on the emulator's free threads: on a communicator that records nothing,
#             and on one that does, in turns within a process. Two communicators differ by where their memory
#             lies, so there are many processes; `both off` are as many with two that record nothing.
. "$(dirname "$0")/bench.inc"
processes=${PROCESSES:-31}

compile recorder
say "events: $(TUTTI_TRACE=/dev/shm/ $quiet "$work/recorder" events)"
export TUTTI_EMU=mode=threads
for point in '8 200 300' '65536 50 100' '1048576 5 60' '67108864 1 8'; do
  read -r bytes calls pairs <<<"$point"
  for number in $(seq "$processes"); do
    for trace in off "/dev/shm/recorder.$$.trace"; do
      $quiet "$work/recorder" cost "$trace" 2 "$bytes" "$calls" "$pairs" >"$work/${trace##*.}.$number"
      sleep "${REST:-0}"
    done
    rm -f "/dev/shm/recorder.$$.trace"
  done
  say "$bytes bytes, both off: $(ratios "$work"/off.*)"
  say "$bytes bytes, off and on: $(ratios "$work"/trace.*)"
done
