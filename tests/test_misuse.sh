#!/bin/sh
# test_misuse.sh: what a program has not given back when it ends, calls in a child of a fork, and messages
# that are never received, with one process and with several. Each report has the line that made what is
# leaked; the right programs end with status 0 and without a word. Prints one `ok - ` or `not ok - ` line per
# check and fails if a check failed.
# runner: 3 s
. "$(dirname "$0")/script.inc"
use_build
export TUTTI_INIT_TIMEOUT_SECONDS=20 NCCL_DEBUG=WARN
unset TUTTI_LEAK_CHECK NCCL_CHECK_MODE NCCL_CHECK_POINTERS

# run STATUS WORD: the program ends with this status.
run() {
  timeout 60 "$build/tests/misuse_program" "$2" >"$work/log" 2>&1
  found=$?
  [ "$found" -eq "$1" ]
  noted $? "status $found is $1"
  [ "$found" -eq "$1" ]
}

has() {
  grep -Eq -e "$1" "$work/log"
  noted $? "a line like $1"
}

silent() {
  ! grep -q 'NCCL WARN' "$work/log"
  noted $? 'no warning'
}

site='at misuse_program\.c:[0-9]+ \([a-z_]+\)'
for mode in guarded threads; do
  export TUTTI_EMU="mode=$mode,devices=4"
  run 0 right && silent
  check $? "$mode: a program that gives everything back ends with status 0"
  run 23 leaks && has "leak: ranks 0 to 1 of comm '.*', made by ncclCommInitRank $site, never destroyed; " &&
    has '^end$'
  check $? "$mode: communicators that are never destroyed are named, and the status is 23"
  run 23 finalizes && has "made by ncclCommInitRank $site, finalized and never destroyed"
  check $? "$mode: and those that are only finalized"
  run 23 registers && has "leak: rank 0 of comm '.*' never deregistered the buffer of 16 bytes .* $site; "
  check $? "$mode: registered memory"
  run 23 operator && has "leak: rank 0 of comm '.*' never destroyed the operator .* $site; call nccl"
  check $? "$mode: an operator"
  run 23 memory && has "leak: 4096 bytes on device [0-3], allocated by ncclMemAlloc $site, never freed"
  check $? "$mode: memory of ncclMemAlloc"
  run 23 group && has "leak: a thread never ended its group, whose 0 calls .* ncclGroupStart was called $site"
  check $? "$mode: a group that is never ended"
  run 7 fails && silent && run 0 aborts && ! has 'leak:'
  check $? "$mode: a program that failed or aborted is not asked"
  TUTTI_LEAK_CHECK=0 run 0 leaks && silent && TUTTI_LEAK_CHECK=1 run 0 leaks && has 'leak: ' &&
    TUTTI_LEAK_CHECK=maybe run 2 leaks && has "TUTTI_LEAK_CHECK: 'maybe' is not 0, 1 or error"
  check $? "$mode: TUTTI_LEAK_CHECK"
  run 0 forks && has 'belongs to the process that this one was forked from' &&
    has 'was forked from one that has communicators'
  check $? "$mode: calls in a child of a fork are errors, and its parent goes on"
  run 2 sends && has "a message was never received: rank 0 called ncclSend.* to rank 1\\) $site; rank 1"
  check $? "$mode: a message that is never received"
done

# job STATUS WORD: the same with 4 processes.
job() {
  timeout 100 "$build/bin/tutti" launch -n 4 "$build/tests/misuse_program" "$2" >"$work/log" 2>&1
  found=$?
  [ "$found" -eq "$1" ]
  noted $? "status $found is $1"
  [ "$found" -eq "$1" ]
}

for mode in guarded threads; do
  export TUTTI_EMU="mode=$mode,devices=4"
  job 0 right && silent && [ "$(grep -c '^.*end$' "$work/log")" -eq 4 ]
  check $? "$mode, 4 processes: a right program"
  job 23 leaks && has "leak: rank [0-3] of comm '.*', made by ncclCommInitRank $site, never destroyed; "
  check $? "$mode, 4 processes: communicators that are never destroyed"
  # Status 3 is rank 0's, which is told of it.
  { job 2 sends || [ "$found" -eq 3 ]; } &&
    has "a message was never received: rank 0 called ncclSend\\(16 float, to rank 1\\).*; rank 1"
  check $? "$mode, 4 processes: a message that is never received"
  rm -f "$work"/called.*
  export MISUSE_CALLED="$work"
  job 23 exits_early || [ "$found" -eq 2 ] || [ "$found" -eq 3 ]
  has 'collective #0 was not called by rank 1: rank [0-3] called ncclAll.*; rank 1 ended its process'
  check $? "$mode, 4 processes: a rank that ends before a call that the others make"
done
[ "$failures" -eq 0 ]
