#!/bin/sh
# test_jobs.sh: how processes end, and what `tutti explain`, `trace list` and `trace clean` say of their
# records and of several jobs in one folder. Prints one `ok - ` or `not ok - ` line per check.
# runner: 90 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti program=$build/tests/ending_program
unset NCCL_DEBUG
mkdir "$work/records"
export TUTTI_TRACE="$work/records/"

explained() { # STATUS: explain has this status
  "$tutti" explain "$work/records"/* >"$work/log" 2>"$work/err"
  status=$?
  cat "$work/err" >>"$work/log"
  [ $status -eq "$1" ]
}
# ENDING TEXT: starts a job and kills it with SIGKILL when TEXT is in its log, TIMES times, or in explain's
# answer, unless log_only is set
log_only=
killed() { # ENDING TEXT [RANKS [TIMES]]
  : >"$work/out" # not only in the background, where the job before may still be read below
  "$tutti" launch -n "${3:-4}" "$program" "$1" >"$work/out" 2>&1 &
  job=$! tries=0
  until [ $tries -ge 300 ] || [ "$(grep -c "$2" "$work/out")" -ge "${4:-1}" ] ||
    { [ -z "$log_only" ] && "$tutti" explain "$work/records"/* 2>&1 | grep -q "$2"; }; do
    sleep 0.1
    tries=$((tries + 1))
  done
  # all at once, so that no rank sees another one's death
  ranks=$(pgrep -P $job)
  # shellcheck disable=SC2086
  kill -STOP $ranks 2>"$work/err"
  # shellcheck disable=SC2086
  while ps -o stat= -p "$(echo $ranks | tr ' ' ',')" | grep -q '^[RSD]'; do sleep 0.01; done
  # shellcheck disable=SC2086
  kill -KILL $ranks $job
  wait $job 2>"$work/err"
  tries=0
  while [ $tries -lt 100 ] && "$tutti" trace list | grep -q ' live '; do
    sleep 0.1
    tries=$((tries + 1))
  done
}

timeout 60 "$tutti" launch -n 4 "$program" clean >"$work/out" 2>&1 && [ -z "$(ls "$work/records")" ]
check $? 'processes that destroy their communicators leave no record'

timeout 60 "$tutti" launch -n 4 "$program" exit3 >"$work/out" 2>&1
explained 1 && grep -q '^rank 2 .*exited with status 3 .*2 operations' "$work/log"
check $? 'exit(3) with an open communicator leaves a record, which names the rank and the status'

killed send_first 'in a cycle: rank 0 called Send of 100000 float32 to rank 1 (#0)' 2
explained 1 && grep -q 'these files are of 2 jobs; this is job' "$work/log" &&
  grep -q '^ranks of comm .* in a cycle: .*rank 1 called Send of 100000 float32 to rank 0 (#0)' "$work/log" &&
  grep -q '; rank 0 called #0 at ending_program.c:[0-9]* (exchange), rank 1 #0 at ' "$work/log"
check $? 'both ends send first: the cycle and both calls; the newest of two jobs is diagnosed'

other=$(sed -n 's/^  tutti explain --job \([^ ]*\) .*/\1/p' "$work/log")
"$tutti" explain --job "$other" "$work/records"/* >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q '^rank 2 .*exited with status 3' "$work/log" && ! grep -q 'jobs; this' "$work/log"
check $? '--job chooses the other one'

"$tutti" trace clean --job "$other" --dry-run >"$work/log" && grep -q '^would remove' "$work/log" &&
  "$tutti" trace clean --job "$other" >"$work/log" && [ "$(ls "$work/records" | wc -l)" -eq 2 ]
check $? 'trace clean removes the dead files of one job'
"$tutti" trace list --json >"$work/log" && grep -q '"state": *"dead"' "$work/log" &&
  ! grep -q '"state": *"live"' "$work/log" && "$tutti" trace clean >>"$work/log" &&
  [ -z "$(ls "$work/records")" ]
check $? 'trace list says which processes are dead; trace clean removes their files'

# Rank 1 leaves with status 0 and its communicator open. The leak ends it with status 23, and the launcher
# kills rank 0, which has not noticed.
for ending in left left_idle; do
  waits='; 1 other waits for it'
  [ $ending = left ] || waits=
  TUTTI_EMU=mode=guarded timeout 60 "$tutti" launch -n 2 --grace 0 "$program" $ending >"$work/out" 2>&1
  [ $? -eq 23 ] && explained 1 &&
    grep -q "^rank 1 .*exited with status 0 while .* operations*$waits; " "$work/log" &&
    grep -q '^  ended, too, as launchers do when a rank fails: rank 0$' "$work/log"
  check $? "$ending: exit(0) with an open communicator is the cause, not what the launcher ended then"
  "$tutti" trace clean >"$work/log"
done

killed between '^between$' 4 4
explained 1 && grep -q '^the processes of ranks .* were killed, or crashed, while it was open' "$work/log" &&
  grep -q 'its last call was #1, AllReduce of 1024 float32, sum, which has ended' "$work/log"
check $? 'processes killed between two calls: said, with their last calls'
"$tutti" trace clean >"$work/log"

export TUTTI_WATCHDOG_SECONDS=1
log_only=yes # records say who is waited for once another process has slept: before the watchdog speaks
for ending in busy stopped; do
  killed $ending 'the process of rank 2 .*; 3 others wait for it'
  explained 1 &&
    grep -q '^the process of rank 2 .* was away: .*; 3 others wait for it in AllReduce of 1024 float32, sum' \
      "$work/log" && grep -q 'rank 2 called #1 at ending_program.c:[0-9]* (steps)$' "$work/log"
  check $? "$ending: a job killed while one process was away: the process and its call are named"
  "$tutti" trace clean >"$work/log"
done
killed asleep 'operations make no progress: rank 2 .* has not called operation #2'
explained 1 && grep -q '^rank 2 .* has not called operation #2 ' "$work/log" &&
  grep -q '; rank 2 called #1 at ending_program.c:[0-9]* (steps), rank 0 #2 at ' "$work/log"
check $? 'a process that sleeps after its call: the others end the operation and wait in the next one'
"$tutti" trace clean >"$work/log"
killed never 'operations make no progress: rank 2 .* has not called operation #0'
grep -q 'operations make no progress: rank 2 .* has not called operation #0' "$work/out"
check $? "the watchdog reports in the emulator's default mode, too"
explained 1 &&
  grep -q '^rank 2 .* has not called operation #0 .*, for [0-9]* s when the files were taken' "$work/log"
check $? 'the diagnosis of a killed job says how long the others waited'

TUTTI_STALL_SECONDS=600 timeout 30 "$program" crossed >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q 'deadlock: communicators wait for one another in a cycle:' "$work/log"
check $? 'a deadlock is reported at once while main sits in pthread_join, and begins with the cycle'
TUTTI_STALL_SECONDS=600 timeout 30 "$program" both_send >"$work/log" 2>&1
[ $? -eq 1 ] &&
  grep -q 'deadlock: ranks of comm .* in a cycle: rank 0 called Send .* to rank 1 (#0), and rank 1 not yet' \
    "$work/log" && grep -q '; rank 1 called Send .* to rank 0 (#0), and rank 0 not yet its' "$work/log" &&
  grep -q '; rank 0 called #0 at ending_program.c:[0-9]* (thread_rank), rank 1 #0 at ' "$work/log"
check $? 'two threads that both send first: the report begins with the cycle, both calls and where they are'

# A process may end while threads of it are inside the library: with its own status, and without a crash.
for mode in guarded threads; do
  failed=
  for run in $(seq 20); do
    TUTTI_EMU=mode=$mode timeout 30 "$program" exit_inside >"$work/log" 2>&1
    status=$?
    [ $status -eq 3 ] || failed="$failed run $run: $status;"
  done
  [ -z "$failed" ] || noted 1 "$failed"
  check $? "$mode: 20 runs in which a thread calls exit while another waits inside end with its status"
done
[ "$failures" -eq 0 ]
