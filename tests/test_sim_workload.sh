#!/bin/sh
# test_sim_workload.sh: `tutti sim` on workloads: text, mismatched calls, deadlocks, records of this
# library, Flight Recorder dumps. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
verb=sim
. "$here/verb.inc"

# text LINES: writes the lines to $work/job.
text() {
  printf "$1" >"$work/job"
}
# end: the end of the last run in us.
end() {
  awk '/^# end /{print $3}' "$work/out"
}

# ---- one call takes as long as in the table ----
for call in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  for size in 1K 1M; do
    text "$call $size\n"
    try 0 $call -b $size -e $size --nodes 2 --exact && time=$(awk '/^ /{print $6}' "$work/out") &&
      try 0 --workload "$work/job" --nodes 2 && [ "$(end)" = "$time" ]
    check $? "$call of $size takes as long as a workload as in the table"
  done
done
costs="--cost message_launch_us=31 --cost side_us=0.7 --cost gap_us=3 --cost launch_us.LL=9"
for call in all_reduce sendrecv; do
  for flags in "$costs" "--loggp 5,1,2,0.04"; do
    text "$call 64K\n"
    try 0 $call -b 64K -e 64K --nodes 2 --exact $flags && time=$(awk '/^ /{print $6}' "$work/out") &&
      try 0 -w "$work/job" --nodes 2 $flags && [ "$(end)" = "$time" ]
    check $? "$call with other costs takes as long as a workload as in the table, ${flags%% *}"
  done
done
text 'repeat 10\n all_reduce 1M after 50us\nend\n'
try 0 -w "$work/job" && ten=$(end) && text 'all_reduce 1M after 50us\n' && try 0 -w "$work/job" &&
  awk -v ten="$ten" -v one="$(end)" 'BEGIN {exit !(ten > 9 * one && ten < 11 * one)}'
check $? "ten calls in sequence take ten times as long"
calls='reduce 100K root 3\nbroadcast 3M root 0\n'
flags="--nodes 2 --gpus 4 --proto Simple --channels 1"
text "$calls" && try 0 -w "$work/job" $flags && time=$(awk '/ broadcast /{print $2, $3}' "$work/out") &&
  text "${calls}all_gather 1M\nall_reduce 1M\n" && try 0 -w "$work/job" $flags &&
  [ -n "$time" ] && [ "$(awk '/ broadcast /{print $2, $3}' "$work/out")" = "$time" ]
check $? "later calls with other chunk sizes do not change the time of a call"

one="--algo ring --channels 1"
text 'all_reduce 1K\n'
try 0 -w "$work/job" $one && small=$(end) && text 'all_reduce 256M\n' && try 0 -w "$work/job" $one &&
  large=$(end) && text 'all_reduce 1K\nall_reduce 256M\n' && try 0 -w "$work/job" $one &&
  awk -v small="$small" -v large="$large" -v both="$(end)" 'BEGIN {
    exit !(both > 0.98 * (small + large) && both < 1.02 * (small + large))}'
check $? "two protocols between the same ranks use separate slots"

# ---- streams ----
text 'comm a 0-3\ncomm b 4-7\nall_reduce 64M comm a\nall_reduce 64M comm b\n'
try 0 -w "$work/job" && apart=$(end) && text 'comm a 0-3\nall_reduce 64M comm a\n' && try 0 -w "$work/job" &&
  [ "$(end)" = "$apart" ]
check $? "communicators of different ranks run in parallel"
ring="--algo ring --proto simple"
text 'ranks 16\nall_reduce 64M\n'
try 0 -w "$work/job" $ring && alone=$(end) &&
  text 'ranks 16\ncomm b 0-15\nall_reduce 64M\nall_reduce 64M stream side comm b\n' &&
  try 0 -w "$work/job" $ring && both=$(end) &&
  text 'ranks 16\ncomm b 0-15\nall_reduce 64M\nall_reduce 64M stream side comm b wait main\n' &&
  try 0 -w "$work/job" $ring && awk -v alone="$alone" -v both="$both" -v turns="$(end)" 'BEGIN {
    exit !(both > 1.5 * alone && both < turns && turns > 1.9 * alone && turns < 2.1 * alone)}'
check $? "two streams share the links; a stream that waits for the other does not"
calls='all_reduce 64M stream a\nall_reduce 1M stream b\nall_reduce 8K stream a\n'
for option in "-g 4" "-g 4 --kernels" "--nodes 2 -g 2"; do
  # shellcheck disable=SC2086 # words on purpose
  text "ranks 4\n$calls" && try 0 -w "$work/job" $option && streams=$(end) &&
    text "ranks 4\n$(echo "$calls" | sed 's/ stream [ab]//g')" && try 0 -w "$work/job" $option &&
    [ "$streams" = "$(end)" ]
  check $? "calls of one communicator run one after another, also on two streams: $option"
done
text 'compute 300us ranks 0\nall_reduce 1M\nall_reduce 1M at 5ms\n'
try 0 -w "$work/job" && says "8 ranks on 1 nodes" &&
  awk -v end="$(end)" 'BEGIN {exit !(end > 5000 && end < 5100)}' && grep -q 'for others  *[1-9]' "$work/out"
check $? "at delays a call, and the time that others wait for a late rank is printed"

# ---- repeatability, and other notations for the same workload ----
try 0 -w "$root/examples/workloads/step.txt" --json && cp "$work/out" "$work/first" &&
  try 0 -w "$root/examples/workloads/step.txt" --json && cmp -s "$work/out" "$work/first"
check $? "a second run prints the same output"
python3 - "$work/first" <<'PYTHON'
import json
import sys
run = json.load(open(sys.argv[1]))
assert run['ranks'] == 16 and run['nodes'] == 2 and run['simulated'] is True
assert run['kernels'] == sum(call['kernels'] for call in run['calls']) == 16 * 5 + 2 + 4
assert len(run['ranks_us']) == 16 and run['plans'] < run['kernels']
assert all(0 < call['least_us'] <= call['mean_us'] <= call['longest_us'] for call in run['calls'])
PYTHON
check $? "--json prints the workload as JSON"
try 0 -w "$root/examples/workloads/step.txt" --print && cp "$work/out" "$work/printed" &&
  try 0 -w "$work/printed" --json && sed 1,2d "$work/out" >"$work/second" &&
  sed 1,2d "$work/first" | cmp -s - "$work/second" && try 0 -w "$work/printed" --print &&
  cmp -s "$work/out" "$work/printed"
check $? "--print gives the same workload"
try 0 -w "$root/examples/workloads/step.txt" && awk 'NR > 1 && length > 80 {exit 1}' "$work/out"
check $? "no line is longer than 80 columns"
try 0 -w "$root/examples/workloads/step.txt" && time=$(end) &&
  try 0 -w "$root/examples/workloads/step.txt" --fault slow-rank:0:4 &&
  awk -v slow="$(end)" -v time="$time" 'BEGIN {exit !(slow > 1.1 * time)}'
check $? "--fault increases the time"
text 'ranks 4\nall_reduce 256M after 900us\n'
ring="--algo ring --proto simple --nodes 2 --gpus 2"
try 0 -w "$work/job" $ring && time=$(end) && try 0 -w "$work/job" $ring --scale nics:0.5 && nics=$(end) &&
  try 0 -w "$work/job" $ring --scale nics:2 --scale links:2 && both=$(end) &&
  try 0 -w "$work/job" $ring --scale compute:3 && awk -v time="$time" -v nics="$nics" -v both="$both" \
  -v compute="$(end)" 'BEGIN {time -= 900; nics -= 900; both -= 900; compute -= 300
    exit !(nics > 1.8 * time && nics < 2.1 * time && both < 0.7 * time && compute > 0.999 * time &&
           compute < 1.001 * time)}'
check $? "--scale: NICs half as fast, all links twice as fast, computations three times as fast"
misuse 2 "expected nics:FACTOR, links:FACTOR or compute:FACTOR, 0.001 to 1000" -w "$work/job" --scale nics:0
misuse 2 "--scale nic:2: expected" -w "$work/job" --scale nic:2
try 0 -w "$root/examples/workloads/step.txt" --perfetto "$work/picture.json" &&
  python3 - "$work/picture.json" <<'PYTHON'
import json
import sys
events = json.load(open(sys.argv[1]))['traceEvents']
kernels = [event for event in events if event['ph'] == 'X' and event['tid'] < 1000]
assert len(events) > 1000 and len(kernels) == 86
assert {event['tid'] for event in kernels} == {0, 1}
assert {event['pid'] for event in kernels} == set(range(16))
assert any(event['name'] == 'send 1048576 x bfloat16 to 8' and event['pid'] == 7 for event in kernels)
PYTHON
check $? "--perfetto writes a trace of the workload"

# ---- mismatched calls and deadlocks ----
# wrong LINES TEXT: the command exits with 1 and prints TEXT.
wrong() {
  text "$1"
  misuse 1 "$2" -w "$work/job"
}
wrong 'send 1M from 0 to 1\n' \
  "line 1: rank 0 calls send 262144 x float to 1, and rank 1 has no receive for it"
wrong 'recv 1M from 0 to 1\n' "line 1: rank 1 calls recv 262144 x float from 0, and rank 0 has no send for it"
wrong 'send 1M from 0 to 1\nrecv 2M from 0 to 1\n' "1048576 bytes, but $work/job line 2: rank 1 calls recv"
wrong 'all_reduce 1M ranks 0-6\n' \
  "all_reduce 262144 x float sum, and rank 7 does not (7 of 8 ranks do)"
wrong 'all_reduce 1M ranks 0-6\nall_reduce 2M ranks 7\n' \
  "line 2: rank 7 calls all_reduce 524288 x float sum as number 1 of its communicator, where"
wrong 'all_reduce 1M ranks 0-6\nall_reduce 1M max ranks 7\n' "all_reduce 262144 x float max as number 1"
wrong 'broadcast 1M ranks 0-6\nbroadcast 1M root 1 ranks 7\n' "x float root 1 as number 1"
cross='all_reduce 1M comm a ranks 0-1\nall_reduce 1M comm b\nall_reduce 1M comm a ranks 2-3\n'
wrong "comm a 0-3\ncomm b 0-3\n$cross" \
  "waits for data from rank 3: a cycle of 4 that wait for each other"
says "rank 2 ($work/job line 4: all_reduce 262144 x float sum comm b) waits for data from rank 1" \
  "rank 0 ($work/job line 3: all_reduce 262144 x float sum comm a) waits"
check $? "mismatched calls are reported with the line of each"
wrong 'ranks 2\nsend 1G from 0 to 1\nsend 1G from 1 to 0\nrecv 1G from 0 to 1\nrecv 1G from 1 to 0\n' \
  "send 268435456 x float to 1) waits for a free slot of rank 1: a cycle of 2"
text 'ranks 2\nsend 1K from 0 to 1\nsend 1K from 1 to 0\nrecv 1K from 0 to 1\nrecv 1K from 1 to 0\n'
try 0 -w "$work/job"
check $? "messages that fit the slots do not deadlock"
text 'ranks 16\nall_reduce 16M\n'
try 1 -w "$work/job" --fault nic:1:2:off && says "over node 1 NIC 2 out, which carries nothing"
check $? "a disabled NIC is named"

# ---- misuse ----
# refused LINES TEXT: the command exits with 4 and prints TEXT.
refused() {
  text "$1"
  misuse 4 "$2" -w "$work/job"
}
refused 'all_reduced 1M\n' "job line 1: expected a collective, message, send"
refused '\nall_reduce 1Q\n' \
  "job line 2: expected a size up to 1T in bytes, as 1000, 64K, 1M or 2G, or"
refused 'all_reduce 2048G\n' "expected a size up to 1T"
refused 'all_reduce count 1099511627777\n' "a count of elements up to 1099511627776"
refused 'all_reduce 1M flaot\n' "expected a type, an operator or root R"
refused 'all_reduce 1M root 1\n' "where the operation has one"
refused 'broadcast 1M root 8\n' "a rank of the communicator, 0 to 7, not \`8\`"
refused 'all_reduce 1M ranks 0-8\n' "ranks 0 to 7, each once, as 0-7,16-31/4"
refused 'comm a 0-3,2\n' "each rank once"
refused 'comm a 0\ncomm a 1\n' "line 2: expected a name of at most 47 letters that no communicator has"
refused 'all_reduce 1M comm dp\n' "a communicator that a line \`comm NAME RANKS\` above names, not \`dp\`"
refused 'all_reduce 1M wait side\n' "a stream that a line above has used, not \`side\`"
refused 'all_reduce 1M after 3m\n' "a time of at most 100000s"
refused 'all_reduce 1M after 100001s\n' "a time of at most 100000s"
refused 'message 1M from 0\n' "expected from R and to R"
refused 'group\n all_reduce 1M after 3us\nend\n' \
  "line 2: expected stream, wait, after and at on the line of the group"
refused 'group\ngroup\n' "no group within a group"
refused '\nrepeat 3\n' "line 2: expected an \`end\` for what begins here"
refused 'end\n' "no \`end\` without a group or repeat"
refused 'all_reduce 1M\nranks 4\n' "\`ranks\` in front of all communicators and calls"
refused 'ranks 131073\n' "how many ranks, 1 to 131072"
refused 'repeat 1000000\nrepeat 1000000\nbroadcast 1\nend\nend\n' \
  "more than 16777216 calls of all ranks together"
text 'ranks 16\nall_reduce 1M\n'
misuse 2 "16 ranks, the cluster 8; give --nodes" -w "$work/job" --nodes 1
misuse 3 "cannot be written" -w "$work/job" --perfetto "$work/none/picture.json"
misuse 2 "one of --workload FILE, --records FILE..., --chakra FILE..." -w "$work/job" all_reduce
misuse 2 "one of --workload FILE, --records FILE..., --chakra FILE..." --records
misuse 4 "cannot be read" -w "$work/none"

# ---- records ----
TUTTI_TRACE="$work/%h.%p.%r.trace" "$tutti" launch -n 4 "$tutti" bench all_reduce -b 64K -e 1M -f 4 -n 3 \
  >"$work/log" 2>&1 && try 0 --records "$work"/*.trace && says "4 ranks on 1 nodes of 8" \
  "all_reduce 262144 x float sum" "all_reduce 16384 x float sum" "for others"
check $? "--records reads a job of four processes"
try 0 --records "$work"/*.trace --gaps --print && cp "$work/out" "$work/job" &&
  grep -q ' after ' "$work/job" && try 0 -w "$work/job" && slow=$(end) &&
  try 0 --records "$work"/*.trace --gaps && [ "$(end)" = "$slow" ]
check $? "--print of records gives the same workload"
mkdir "$work/dumps"
"$tutti" trace export --to flight -o "$work/dumps" "$work"/*.trace >"$work/log" 2>&1 &&
  try 0 --records "$work"/dumps/* &&
  says "all_reduce 262144 x float sum" "Flight Recorder dumps do not record"
check $? "--records reads Flight Recorder dumps"
misuse 4 "which name communicators differently" --records "$work"/dumps/*0 "$work"/*.trace
misuse 4 "left no file: what it calls is not known" --records "$root"/traces/no_file/*.txt
TUTTI_TRACE="$work/%p.many" "$tutti" launch -n 3 "$tutti" bench sendrecv -b 1K -e 1K -n 2000 \
  >"$work/log" 2>&1 && try 0 --records "$work"/*.many && says "send 256 x float" "calls are left out"
check $? "--records reads a ring of records that has wrapped"
for case in collective count type root operator order; do
  misuse 1 " of its communicator, where rank 0 calls" --records "$root/traces/$case/0.txt"
done
misuse 1 "and rank 2 has no send for it" --records "$root/traces/recv_alone/0.txt"
misuse 1 "a cycle of 4 that wait for each other" --records "$root/traces/cycle/0.txt"
try 0 --records "$root/traces/slow/0.txt" &&
  awk '/for others/{exit !($4 > 90)}' "$work/out"
check $? "--records: the others wait for the slow rank"

[ "$failures" -eq 0 ]
