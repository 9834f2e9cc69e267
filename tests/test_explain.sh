#!/bin/sh
# test_explain.sh: `tutti explain plan` from outside: each option with its time or the rule that excludes
# it, the chosen one, the plan of a rank as text and as JSON, and messages of misuse. Prints one `ok - ` or
# `not ok - ` line per check and fails if a check failed. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
unset TUTTI_TUNE_FILE
verb=explain
. "$here/verb.inc"

try 0 plan all_reduce --bytes 1M --gpus 4 &&
  says "all_reduce of 1048576 bytes on 4 ranks" "chosen: the least time" "times the least" "plan of rank 0" \
    "PAT" "TwoShot" &&
  [ "$(grep -c 'chosen: ' "$work/out")" -eq 1 ]
check $? "exactly one option is chosen; the others are slower or excluded"
try 0 plan all_reduce -b 64M -g 8 --algo ring --proto simple --channels 1 --rank 3 &&
  says "Ring with Simple" "plan of rank 3: 1 works in 1 batches" \
    "elements 0..16777216, 4 loops of chunks of 2097152 bytes, 60 steps; from 2 to 4" \
    "FIFO steps 224 in, 224 out"
check $? "a ring's plan has loops, steps, peers and FIFO steps"
try 0 plan all_reduce -b 64K -g 4 --algo tree --proto LL --rank 1 --channels 1 &&
  says "channel  0 up" "channel  0 down" "from 2 to 0" "from 0 to 2"
check $? "a tree's inner rank sends up and down"
try 0 plan broadcast -b 1K -g 4 --root 2 --rank 3 --algo direct --proto LL && says "from 2" && ! says " to "
check $? "--root sets the root of a broadcast"
try 0 plan all_gather -b 1M -g 4 -d half && says "all_gather of 1048576 bytes"
check $? "sizes count the parts of all ranks, as in the benchmark"
try 0 plan all_reduce -g 1 && says "one rank alone"
check $? "one rank alone is planned"
try 0 plan all_reduce --nodes 2 --gpus 2 && says "on 4 ranks"
check $? "several nodes are planned"
try 0 plan all_reduce -b 64M --nodes 2 --gpus 2 --machine dgx-a100 --algo tree --rank 2 &&
  says "2 nodes of 2" "NVLSTree       Simple" "plan of rank 2"
check $? "--machine and --rank apply to several nodes"
try 0 plan all_reduce --nodes 2 --gpus 2 && says "it is for the ranks of one node"
check $? "direct collectives stay within one node"
misuse 2 "there is no machine 'abacus'" plan all_reduce --machine abacus
misuse 2 "300 GPUs of a node are more than 128" plan all_reduce --nodes 2 --gpus 300
export NCCL_ALGO=Tree
try 0 plan all_reduce -g 2 && says "Ring           all                -  forbidden: NCCL_ALGO"
check $? "environment variables apply where no flag is given"
unset NCCL_ALGO
try 0 plan all_reduce -b 1M -g 4 --json && python3 - "$work/out" 2>>"$work/log" <<'PYTHON'
import json, sys
answer = json.load(open(sys.argv[1]))
assert (answer['collective'], answer['bytes'], answer['ranks']) == ('all_reduce', 1 << 20, 4)
options = answer['candidates']
assert len(options) == 30 and all(('forbidden' in option) != ('time_us' in option) for option in options)
least = min((option for option in options if 'time_us' in option and not option['last']),
            key=lambda option: option['time_us'])
assert [option for option in options if option['chosen']] == [least]
assert (answer['choice']['algo'], answer['choice']['proto']) == (least['algo'], least['proto'])
assert sum(work['part_count'] for work in answer['works']) == 1 << 18
for work in answer['works']:
    assert work['steps'] > 0 and work['chunk_bytes'] > 0 and work['from'] and work['to']
PYTHON
check $? "--json has each option, the choice and the work elements"

# The job of the emulator over its network: what it ran, what `explain plan` and `sim` plan, and the same time
# where bench and explain plan print the model's.
TUTTI_EMU=devices=32,nodes=4,net=1 timeout 300 "$tutti" bench all_reduce -b 256K -e 256K --ranks 32 -q \
  >"$work/bench" 2>"$work/log"
try 0 plan all_reduce -b 256K --nodes 4 --as emu && says "LL and Simple between nodes (--as emu)" &&
  awk 'NR == FNR {time = $6; next} /chosen:/ {found = $3 == time} END {exit !found}' "$work/bench" "$work/out"
check $? "explain plan and bench print the same time for a job over the emulated network"
try 0 plan all_reduce -b 1M --nodes 4 --as emu &&
  says " with Simple, " "forbidden: what joins the hosts does not carry LL128"
check $? "between hosts LL128 is forbidden"
try 0 plan all_reduce -b 1M --nodes 4 --as nccl && says "NCCL's, every protocol between nodes" &&
  ! grep -q 'joins the hosts' "$work/out"
check $? "--as nccl allows it"
try 0 plan all_reduce -b 1M --nodes 2 --gpus 4,2 --as threads && says "on 6 ranks (2 nodes of 4,2)"
check $? "nodes may differ"
try 0 plan alltoall -b 1M --nodes 2 --rank 3 && says "messages, " "round   0 to itself: a copy" \
  "round   8 to 11: Simple" "round   1 to 4: LL"
check $? "an all-to-all is planned as messages in rounds"
try 0 plan send -b 4K -g 4 --peer 2 && says "round   2 to 2: LL, 1 part of 4096 bytes" && ! says "from"
check $? "a single message is planned"
try 0 plan gather -b 1M -g 4 --root 1 --rank 1 --json && python3 - "$work/out" 2>>"$work/log" <<'PYTHON'
import json, sys
answer = json.load(open(sys.argv[1]))
rows = answer['messages']
assert [row['kind'] for row in rows] == ['copy', 'recv', 'recv', 'recv'], rows
assert sorted(row['peer'] for row in rows[1:]) == [0, 2, 3]
assert all(row['parts'] * row['part_bytes'] >= 1 << 18 and row['channels'] for row in rows)
PYTHON
check $? "--json has a row for each message"
try 0 plan all_gather -b 1M --nodes 4 -g 1 --algo pat && says "PAT runs in the emulator alone"
check $? "a named algorithm without a GPU kernel is planned, and its time explained"
misuse 2 "must be cuda, emu, threads or nccl" plan all_reduce --as abacus
misuse 2 "only nodes of the emulator share memory" plan all_reduce --no-net
misuse 2 "or one for each of 3 nodes" plan all_reduce --nodes 3 -g 4,2

printf 'all_reduce 1M 2M algo=Tree proto=LL channels=2\n' >"$work/tune"
try 0 plan all_reduce -b 1M -g 4 --tune-file "$work/tune" &&
  says "chosen by line 1 of the tuning file" "Tree with LL," "at most 2 channels" \
    "the tuning file says otherwise"
check $? "--tune-file applies its rules"
echo 'all_reduce 1M 2M algo=Bush proto=LL' >"$work/tune"
misuse 4 "tune:1: expected an algorithm" plan all_reduce --tune-file "$work/tune"
misuse 4 "cannot be read" plan all_reduce --tune-file "$work/none"

misuse 1 "Allowed without them: Ring" plan broadcast --algo tree
says "Tree is for all-reduce alone" \
  "NCCL_ALGO (Tree) and NCCL_PROTO (LL, LL128, Simple) leave no option for Broadcast"
check $? "the message names both variables and the rule"
misuse 2 "'bush' is none of Tree" plan all_reduce --algo bush
misuse 2 "did you mean \`all_reduce\`" plan allreduce
misuse 2 "plan needs one collective" plan
misuse 4 "all_reduce: cannot be read" all_reduce
misuse 2 "what is asked for?"
misuse 2 "no such type" plan all_reduce -d floaty
misuse 2 "--rank: must be 0 to 3" plan all_reduce -g 4 --rank 4
misuse 2 "--root: must be 0 to 3" plan broadcast -g 4 --root 4
misuse 2 "more than 4096" plan all_reduce --nodes 4096 -g 2
misuse 2 "less than one element a rank" plan all_gather -g 8 -b 8
misuse 2 "must be 1 to 64" plan all_reduce --channels 65
try 0 --help && cp "$work/out" "$work/help" && "$tutti" help explain >"$work/out" &&
  cmp -s "$work/help" "$work/out"
check $? "explain --help prints help explain"

[ "$failures" -eq 0 ]
