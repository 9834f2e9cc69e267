#!/bin/sh
# test_custom.sh: schedules from files, from outside: the samples of examples/schedules do what their table
# says, a schedule that deadlocks is reported with rank, step and peer, and a file that breaks a rule with
# its line. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
use_build
samples=$root/examples/schedules
export NCCL_ALGO=Custom TUTTI_STALL_SECONDS=5

# bench CODE FILE ARGUMENTS...: true if the benchmark exits with CODE.
bench() {
  expected=$1
  file=$2
  shift 2
  TUTTI_CUSTOM_FILE=$file timeout 60 "$build/bin/tutti" bench "$@" >"$work/log" 2>&1 </dev/null
  code=$?
  [ "$code" -eq "$expected" ] && return 0
  echo "tutti bench $* with $file: exit code $code, expected $expected" >>"$work/log"
  return 1
}

for name in msccl_all_gather4 msccl_all_reduce4; do
  "$build/bin/tutti" check --plan "$samples/$name.xml" --print >"$work/$name.txt"
done
for name in msccl_all_gather4.xml mscclpp_all_gather4.json; do
  ! bench 0 "$samples/$name" all_gather --ranks 4 -b 64 -e 64 &&
    grep -q "tutti check --plan $samples/$name --print" "$work/log"
  check $? "a running program refuses $name and names the command that converts it"
done
for mode in "" --threads; do
  bench 0 "$samples/ring4.txt" all_reduce --ranks 4 -b 4 -e 256K -f 16 $mode
  check $? "ring4.txt gives right results for every size $mode"
  bench 0 "$samples/all_pairs4.txt" all_reduce --ranks 4 -b 16 -e 4K -f 16 -d all -o sum $mode
  check $? "all_pairs4.txt gives right results for every type $mode"
  bench 0 "$samples/staged2.txt" all_gather --ranks 2 -b 32 -e 256K -f 16 $mode
  check $? "staged2.txt gives right results $mode"
  bench 0 "$samples/four_slots.txt" all_gather --ranks 2 -b 32 -e 64K -f 8 $mode
  check $? "four_slots.txt gives right results with eight slots $mode"
  NCCL_ALGO='' bench 0 "$work/msccl_all_gather4.txt" all_gather --ranks 4 -b 64 -e 256K -f 16 $mode
  check $? "msccl_all_gather4 gives right results, built-in steps in place $mode"
  NCCL_ALGO='' bench 0 "$work/msccl_all_reduce4.txt" all_reduce --ranks 4 -b 16 -e 256K -f 16 $mode
  check $? "msccl_all_reduce4 gives right results, built-in steps out of place $mode"
done
bench 0 "$samples/ring4.txt" all_reduce --ranks 4 -b 1K -e 1K -o avg -d int32
check $? "averages of integers are divided at the step marked finish"

TUTTI_EMU=slots=4 bench 0 "$samples/four_slots.txt" all_gather --ranks 2 -b 64 -e 64
check $? "four_slots.txt gives right results with four slots"
TUTTI_EMU=slots=3 bench 1 "$samples/four_slots.txt" all_gather --ranks 2 -b 64 -e 64
check $? "four_slots.txt deadlocks with three slots"
grep -q 'rank 0 channel 0 all_gather #0 step 3 waits for a free slot towards rank 1' "$work/log"
check $? "the report names the step"
bench 1 "$samples/deadlock3.txt" all_gather --ranks 3 -b 48 -e 48
check $? "deadlock3.txt deadlocks"
bench 1 "$samples/wrong3.txt" all_reduce --ranks 3 -b 48 -e 48
check $? "wrong3.txt gives wrong results, which are reported"

cat >"$work/lists.txt" <<'TEXT'
tutti-schedule 1
collective: all_reduce
ranks: 2
chunks: 1
rank 0 channel 0:
  after block 1 step 0, nothing
rank 0 channel 1:
  after block 0 step 0, nothing
TEXT
bench 1 "$work/lists.txt" all_reduce --ranks 2 -b 64 -e 64
check $? "two blocks that wait for each other deadlock"
grep -q 'step 0 waits for block 1 of its own rank, which has ended 0 of 1 steps' "$work/log"
check $? "the report names the block that the other waits for"

sed 's/add in\[2\]/add in[9]/' "$samples/ring4.txt" >"$work/broken.txt"
line=$(grep -n 'in\[9\]' "$work/broken.txt" | head -n 1 | cut -d: -f1)
! bench 0 "$work/broken.txt" all_reduce --ranks 4 -b 64 -e 64
check $? "a file that breaks a rule is refused"
grep -q "broken.txt:$line: chunks 9 to 9 are read of a buffer that has 4" "$work/log"
check $? "the message has the line and the rule"
! bench 0 "$samples/ring4.txt" all_reduce --ranks 3 -b 64 -e 64
check $? "NCCL_ALGO=Custom refuses a call that does not fit the file"
grep -q 'the schedule is for another number of ranks' "$work/log"
check $? "the message says why"
[ "$failures" -eq 0 ]
