#!/bin/sh
# test_repeat.sh: runs that fail repeat as runs that pass do: with threads of one process, the same seed gives
# the same events, byte for byte, the same results and the same report, and records that differ only in what
# cannot repeat (times, processes, addresses).
# runner: 20 s
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
# A deadlock is found at once. A thread that gets no CPU for this long would end the repeatable part of a run.
export TUTTI_STALL_SECONDS=50 NCCL_DEBUG=WARN
# run SCENARIO SEED NUMBER: files $work/e NUMBER (events), t (records), o (results and the report, without its
# times, process and thread, and with addresses where addr2line may have had no time to find the line)
run() {
  TUTTI_SEED=$2 TUTTI_EVENTS=$work/e$3 TUTTI_TRACE=$work/t$3 TUTTI_EMU=devices=4,lag=30,chunk=1000 \
    timeout 60 "$build/tests/failing_program" "$1" >"$work/output" 2>&1
  echo "status $?" >>"$work/output"
  sed -e 's/^\[[^]]*\] [^ ]* \[[0-9]*\] //' -e 's/, for [0-9]* s when the files were taken//' \
    -e 's/ at failing_program[^,]*//g' "$work/output" >"$work/o$3"
}
# SCENARIO SEED: whether two runs are equal
repeats() {
  rm -f "$work"/[eot][12]
  run "$1" "$2" 1
  run "$1" "$2" 2
  cmp "$work/e1" "$work/e2" && cmp "$work/o1" "$work/o2" && "$tutti" trace diff "$work/t1" "$work/t2" &&
    grep -q '^status 1$' "$work/o1" && grep -q deadlock "$work/o1"
}

# What the two last runs differ in.
differences() {
  cat "$work/log"
  diff "$work/o1" "$work/o2" | head -n 20
  for i in 1 2; do "$tutti" trace dump "$work/e$i" >"$work/d$i" 2>&1; done
  diff "$work/d1" "$work/d2" | head -n 20
}

for scenario in absent cycle late; do
  other= seeds=40
  [ $scenario = cycle ] && seeds=100
  for seed in $(seq $seeds); do
    repeats $scenario "$seed" >"$work/log" 2>&1 && continue
    [ -n "$other" ] || differences >"$work/first"
    other="$other $seed"
  done
  [ -z "$other" ] || cp "$work/first" "$work/log" # of the first seed, for check
  [ -z "$other" ]
  check $? "$scenario: $seeds seeds give the same events, results, reports and records twice$other"
done
run absent 1 1
run absent 2 2
! cmp -s "$work/e1" "$work/e2"
check $? 'another seed gives other events'

# Programs that configure the emulator themselves, as bench does, write their events too.
for name in TUTTI_EVENTS TUTTI_MOVES; do
  env "$name=$work/bench" "$tutti" bench all_reduce --ranks 2 -e 8 >"$work/log" 2>&1 &&
    "$tutti" trace dump "$work/bench" >"$work/log" 2>&1 && grep -q '^1 kernel comm .* begins' "$work/log" &&
    "$tutti" bench all_reduce --ranks 2 -e 8 --trace "$work/flag" >"$work/log" 2>&1 &&
    cmp "$work/bench" "$work/flag" >"$work/log" 2>&1
  check $? "$name gives the events of bench, as --trace does"
  rm -f "$work/bench"
done
[ "$failures" -eq 0 ]
