#!/bin/sh
# hang.sh: jobs that hang on GPUs (hang.c). Checks the diagnosis of the watchdog while they hang and of
# `tutti explain` after they were killed, and that `tutti replay` reaches the recorded hang. Prints one
# `ok - ` or `not ok - ` line per check, and unexpected output; exit status 1: a check failed.
#
#     tests/gpu/hang.sh                 needs two GPUs; BUILD=build has gpu/hang and bin/tutti
build=${BUILD:-build}
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
failures=0

check() {
  if [ "$1" -eq 0 ]; then
    echo "ok - $2"
  else
    echo "not ok - $2"
    sed 's/^/    /' "$work/log"
    failures=$((failures + 1))
  fi
}

explain() { "$build/bin/tutti" explain "$work/$1.trace" 2>&1; }

# The watchdog has logged explain's first line, or kernels have detected the error and the communicator ended.
log_agrees() {
  if [ "$1" = count ]; then grep -q 'do not agree on operation' "$work/said"; else
    grep -Fq "operations make no progress: $(explain "$1" | head -n 1 | cut -c 1-60)" "$work/said"
  fi
}

# The condition for killing a process. On a busy machine another diagnosis may be true, and logged, before.
is_over() {
  if [ "$1" = fine ]; then grep -q 'has ended' "$work/said"; else log_agrees "$1"; fi &&
    explain "$1" | head -n 1 | grep -Eq "$2" # reading the state records the ends
}

# hangs SCENARIO PATTERN [PATTERN2]: explain's diagnosis matches the pattern, PATTERN2 once the process has
# been killed, and the watchdog has logged the same.
hangs() {
  TUTTI_TRACE=$work/$1.trace TUTTI_WATCHDOG_SECONDS=2 NCCL_DEBUG=WARN \
    "$build/gpu/hang" "$1" 120 >"$work/said" 2>&1 &
  process=$!
  until is_over "$1" "$2" || ! kill -0 "$process" 2>/dev/null; do sleep 0.1; done
  kill -KILL "$process" 2>/dev/null
  wait "$process" 2>/dev/null
  explain "$1" >"$work/log"
  head -n 1 "$work/log" | grep -Eq "${3:-$2}"
  check $? "$1: explain: $(head -n 1 "$work/log" | cut -c 1-150)"
  [ "$1" != fine ] || return 0
  log_agrees "$1"
  status=$?
  { echo '--- its own log:' && cat "$work/said"; } >>"$work/log"
  check $status "$1: the program's own log says so too"
  timeout 60 "$build/bin/tutti" replay "$work/$1.trace" >"$work/log" 2>&1
  check $? "$1: replay: $(sed -n 2p "$work/log" | cut -c 1-100)"
  if [ -n "${OUT:-}" ]; then cp "$work/$1.trace" "$OUT/"; fi
}

hangs fine '^nothing is wrong' '^the processes of ranks 0-[0-9]+ .* were killed, or crashed, while'
hangs absent '^rank [0-9]+ .* has not called operation #2'
hangs count '^rank [0-9]+ .* called AllReduce of (131072|262144) float32, .*(another count|and they differ)'
hangs alone '^rank 1 .* has no ncclRecv for operation #2 of rank 0'
hangs blocked '^rank [0-9]+ .* has launched operation #2, and its kernel has not started'
[ "$failures" -eq 0 ]
