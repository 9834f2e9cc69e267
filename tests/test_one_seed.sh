#!/bin/sh
# test_one_seed.sh: ranks in processes of their own are one guarded world: the same seed gives the same events
# in every process, byte for byte, also in runs that fail, and other seeds give others. Prints one `ok - ` or
# `not ok - ` line per check and fails if a check failed. Finds the build at ${BUILD:-build}.
# runner: 99 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
unset TUTTI_RANK TUTTI_SIZE TUTTI_LOCAL_RANK TUTTI_LOCAL_SIZE TUTTI_RENDEZVOUS TUTTI_JOB NCCL_COMM_ID
export TUTTI_INIT_TIMEOUT_SECONDS=60

# run NAME SEED COMMAND...: one run of four processes, whose events are in $work/NAME.0 to NAME.3.
run() {
  run_name=$1
  run_seed=$2
  shift 2
  TUTTI_SEED=$run_seed TUTTI_EVENTS=$work/$run_name timeout 120 "$tutti" launch --keep-going -n 4 "$@" \
    >"$work/log" 2>&1 </dev/null
  status=$?
  mv "$work/$run_name" "$work/$run_name.0"
}

# same A B: the events of two runs are equal in all four processes, and there are some.
same() {
  for rank in 0 1 2 3; do
    [ "$(wc -c <"$work/$1.$rank")" -gt 100 ]
    noted $? "rank $rank has written events" || return 1
    cmp "$work/$1.$rank" "$work/$2.$rank" >>"$work/log" 2>&1
    noted $? "the events of rank $rank are equal in $1 and $2" || return 1
  done
}

# repeats CODE SEEDS COMMAND...: two runs of each seed exit with CODE and are equal; seed by seed they differ.
repeats() {
  code=$1
  seeds=$2
  shift 2
  last=
  for seed in $seeds; do
    run one "$seed" "$@"
    first=$status
    run two "$seed" "$@"
    [ "$first $status" = "$code $code" ]
    noted $? "exit statuses $first $status" || return 1
    same one two || return 1
    [ -z "$last" ] || ! cmp -s "$work/one.0" "$work/$last.0"
    noted $? "seed $seed gives other events than the one before" || return 1
    last=before
    mv "$work/one.0" "$work/before.0"
  done
}

repeats 0 '1 2 3 4 5 6 7 8 9 10' "$build/examples/launched"
check $? 'ten seeds: all-reduce and all-gather of four processes repeat byte for byte'

program="$build/tests/rank_program --launched --iterations 1 --bytes 4000"
for settings in slots=2,chunk=1000,lag=50 rule=priority,channels=3 rule=round_robin,depth=2; do
  export TUTTI_EMU="$settings"
  # shellcheck disable=SC2086
  repeats 0 '7 8' $program --split 2
  check $? "all operations, and a split, repeat with $settings"
  # shellcheck disable=SC2086
  repeats 0 '7 8' $program --ops all_reduce --split 2 --split-busy
  check $? "a split while kernels run repeats with $settings"
done
unset TUTTI_EMU

# shellcheck disable=SC2086
TUTTI_EMU=slots=1,chunk=500 repeats 3 '3 4' $program --ops all_reduce
check $? 'a deadlock of four processes repeats'
grep -q 'deadlock: nothing can move any more' "$work/log"
check $? 'it is reported at once'

TUTTI_EMU=order=0,chunk=64 run apart 1 "$build/examples/launched"
[ "$status" -eq 0 ] && ! cmp -s "$work/apart.1" "$work/one.1"
check $? 'order=0: each process has a scheduler of its own'

[ $failures -eq 0 ]
