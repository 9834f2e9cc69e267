#!/bin/sh
# test_sim.sh: `tutti sim` from outside: the table, JSON, repeatable output, folded and exact runs,
# comparisons, cluster descriptions, faults, deadlocks, and messages of misuse. Prints one `ok - ` or `not
# ok - ` line per check and fails if a check failed. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
verb=sim
. "$here/verb.inc"

try 0 all_reduce -b 8 -e 4M -f 8 --nodes 4 --gpus 8 --machine dgx-h100 &&
  says "32 ranks, 4 nodes of 8, dgx-h100 (simulated)" "busbw" &&
  [ "$(grep -c '^ .* float .* sum ' "$work/out")" -eq 7 ] && [ ! -s "$work/err" ]
check $? "the table has one line per size"
cp "$work/out" "$work/first"
try 0 all_reduce -b 8 -e 4M -f 8 --nodes 4 --gpus 8 --machine dgx-h100 && cmp -s "$work/out" "$work/first"
check $? "a second run prints the same output"
try 0 all_reduce -b 8 -e 4M -f 8 --nodes 4 --gpus 8 --machine dgx-h100 --exact &&
  cmp -s "$work/out" "$work/first"
check $? "the output is the same if every rank is simulated"

try 0 all_reduce -b 8 -e 4M -f 8 --nodes 4 --gpus 8 --machine dgx-h100 --progress &&
  cmp -s "$work/out" "$work/first" && ! grep -v '^tutti sim: [0-9]* bytes' "$work/err"
check $? "--progress does not change the output"

for collective in all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  try 0 $collective -b 1M -e 1M --nodes 2 && says "(simulated)" "1048576"
  check $? "$collective is simulated"
done
for machine in dgx-h100 dgx-h200 hgx-b200 pcie-box; do
  try 0 all_reduce -b 1M -e 1M --machine $machine && says "$machine (simulated)"
  check $? "--machine $machine is simulated"
done

try 0 all_reduce -b 1K -e 64K -f 4 --nodes 2 --json && python3 - "$work/out" <<'PYTHON'
import json
import sys
rows = json.load(open(sys.argv[1]))
assert [row['size'] for row in rows] == [1024, 4096, 16384, 65536]
for row in rows:
    assert row['simulated'] is True and row['time_us'] > 0 and row['messages'] > 0 and row['channels'] > 0
    assert abs(row['busbw'] - row['algbw'] * 2 * 15 / 16) < 1e-6 * row['busbw'] + 1e-6
PYTHON
check $? "--json prints the table as JSON"
try 0 all_reduce -b 1M -e 4M --nodes 2 --compare ring,tree,pat && says "Ring" "Tree" "PAT" &&
  grep -q '1048576 .* -$' "$work/out"
check $? "--compare prints a dash if an algorithm does not apply"

cat >"$work/cluster" <<'TEXT'
# two racks
machine dgx-h200
nodes 3
gpus 4   # of 8
leaf_nodes 2
hop_us 1.5
oversubscription 2
TEXT
try 0 all_reduce -b 1M -e 1M --cluster "$work/cluster" && says "12 ranks, 3 nodes of 4, dgx-h200"
check $? "--cluster reads a description"
try 0 all_reduce -b 1M -e 1M --cluster "$work/cluster" --nodes 2 && says "8 ranks, 2 nodes of 4, dgx-h200"
check $? "flags take precedence over --cluster"
# shellcheck disable=SC2086 # words on purpose
option="-b 1280 -e 1280 --algo ring --proto LL --channels 1"
printf 'nodes 5\ngpus 1\nloggp 5,1,0.5,0.25\n' >"$work/loggp" &&
  try 0 all_reduce $option --cluster "$work/loggp" && says " 57.02 " && cp "$work/out" "$work/by_file" &&
  try 0 all_reduce $option --nodes 5 -g 1 --loggp 5,1,0.5,0.25 &&
  cmp -s "$work/out" "$work/by_file"
check $? "--loggp gives the same times as its costs in --cluster"
try 0 all_reduce -b 1K -e 1K --cost launch_us=1000 && awk '/^ /{exit !($6 > 1000 && $6 < 1020)}' "$work/out"
check $? "--cost changes one cost"

# Operations as the library's own kernels carry them: measured 8 to 9 and 9 to 10 us.
try 0 all_reduce -b 8K -e 128K -f 16 -g 4 --kernels && says "Direct    LL" && says "TwoShot   LL" &&
  awk '/^ /{n++; if ($6 < (n == 1 ? 7 : 8) || $6 > (n == 1 ? 9 : 11)) bad = 1}
    END {exit bad || n != 2}' "$work/out" &&
  time=$(awk '/^ /{t = $6} END {print t}' "$work/out") && echo 'all_reduce 128K' >"$work/job" &&
  try 0 -w "$work/job" -g 4 --kernels && says " $time us"
check $? "--kernels uses the costs of the library's kernels, also for a workload"
try 0 all_reduce -b 8K -e 8K -g 4 --kernels --cost launch_us=1000 &&
  awk '/^ /{exit !($6 > 1000)}' "$work/out"
check $? "--kernels with another cost changes the time"
misuse 2 "--kernels: costs of one node, as they were measured; leave out --nodes" \
  all_reduce --kernels --nodes 2

# Times under other costs, as bench --tune would write them: the fit finds costs that give these times.
for row in "8 LL" "1K LL" "32K LL" "128K LL" "1M LL128" "4M LL128" "16M LL128" "64M Simple" "256M Simple"; do
  size=${row% *} proto=${row#* }
  "$tutti" sim all_reduce -b "$size" -e "$size" -g 4 --algo ring --proto "$proto" --channels 8 \
    --cost launch_us=11 --cost nvlink_post_us.LL=2.5 --cost lane_gbps.Simple=9 --cost lane_gbps.LL=3 |
    awk -v option="ranks=4 nodes=1 algo=Ring proto=$proto channels=8" \
      '/^ /{printf "all_reduce %s %d %s # %s us\n", $1, 2 * $1, option, $6}'
done >"$work/my.tune"
try 0 all_reduce -b 8 -e 256M -f 32 -g 4 --tune "$work/my.tune" && says "costs fitted to 9 times" &&
  awk '/fitted/{exit !($7 < 3)}' "$work/out" && cp "$work/out" "$work/fitted" &&
  try 0 all_reduce -b 8 -e 256M -f 32 -g 4 --tune "$work/my.tune" && cmp -s "$work/out" "$work/fitted"
check $? "--tune fits costs to the times of a file, repeatably"
try 0 all_reduce -b 1M -e 1M -g 4 --tune "$work/my.tune" && says "Ring      LL128   8"
check $? "--tune uses the rules of the file"
echo 'all_reduce 1M' >"$work/job"
time=$(awk '/^ /{print $6}' "$work/out") && try 0 -w "$work/job" -g 4 --tune "$work/my.tune" &&
  says " $time us"
check $? "--tune applies to a workload too"
echo 'all_reduce 8 7 algo=Ring proto=LL' >"$work/bad"
misuse 4 "bad:1: expected" all_reduce --tune "$work/bad"
misuse 4 "cannot be read" all_reduce --tune "$work/none"
"$tutti" topo --machine pcie-box --dump "$work/node.xml" >/dev/null
try 0 all_reduce -b 1M -e 1M --file "$work/node.xml" --nodes 2 && says "16 ranks, 2 nodes of 8"
check $? "--file names the machine's topology file"

try 1 all_reduce -b 16M -e 16M --nodes 2 --fault nic:1:2:off &&
  says "stalled" "node 1 NIC 2" "waits for data from rank"
check $? "a disabled NIC ends with the wait-for cycle and the reason"
# Random machines, calls and faults: standard output, the report of a stall and the exit code are the same
# whether lanes that are alike run once or all of them run.
python3 - "$tutti" <<'PYTHON' >"$work/log" 2>&1
import random
import subprocess
import sys


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


draw = random.Random(20)
stalls = 0
for _ in range(40):
    nodes, gpus = draw.choice(((1, 8), (2, 4), (2, 8), (3, 8), (4, 8), (6, 2)))
    call = draw.choice(('all_reduce', 'all_gather', 'reduce_scatter', 'broadcast', 'reduce', 'alltoall',
                        'sendrecv'))
    size = draw.choice(('1K', '64K', '1M', '4M'))
    command = [sys.argv[1], 'sim', call, '-b', size, '-e', size, '--nodes', str(nodes), '--gpus', str(gpus)]
    for _ in range(draw.choice((1, 1, 2))):
        rank, node, nic = draw.randrange(nodes * gpus), draw.randrange(nodes), draw.randrange(gpus)
        command += ['--fault', draw.choice(('slow-rank:%d:%d' % (rank, draw.randrange(2, 9)),
                                            'slow-link:%d:%d' % (rank, draw.randrange(2, 9)),
                                            'nic:%d:%d:%d' % (node, nic, draw.randrange(2, 9)),
                                            'nic:%d:%d:off' % (node, nic), 'nic:%d:%d:off' % (node, nic)))]
    folded, exact = run(command), run(command + ['--exact'])
    stalls += folded[0] == 1
    assert folded[0] in (0, 1), (command, folded)
    assert folded == exact, (command, folded, exact)
assert stalls >= 8, stalls
PYTHON
check $? "with random faults a folded run names the same ranks, and gives the same times, as all ranks"
try 0 all_reduce -b 16M -e 16M --nodes 2 && time=$(awk '/^ /{print $6}' "$work/out") &&
  try 0 all_reduce -b 16M -e 16M --nodes 2 --fault slow-rank:3:3 --fault slow-link:2:2.5 &&
  awk -v least="$time" '/^ /{exit !($6 > least)}' "$work/out"
check $? "slow ranks and slow links increase the time"

try 0 all_reduce -b 64K -e 64K --gpus 4 --perfetto "$work/picture.json" &&
  python3 - "$work/picture.json" <<'PYTHON'
import json
import sys
events = json.load(open(sys.argv[1]))['traceEvents']
assert {event['pid'] for event in events} == {0, 1, 2, 3}
assert {event['ph'] for event in events} == {'M', 'X'}
assert all(event['dur'] >= 0 for event in events if event['ph'] == 'X')
assert {'wait', 'send', 'receive, reduce, send'} <= {event['name'] for event in events}
PYTHON
check $? "--perfetto writes a trace"
misuse 3 "cannot be written" all_reduce -b 64K -e 64K --perfetto "$work/none/picture.json"

misuse 2 "needs one collective"
misuse 2 'did you mean `all_reduce`?' all_reduced
misuse 2 "must be 1 to 65536" all_reduce --nodes 1000000000000
misuse 2 "must be 1 to 131072; take fewer" all_reduce --nodes 65536 --gpus 8
misuse 2 "there is no machine" all_reduce --machine abacus
misuse 2 "'bush' is none of" all_reduce --algo bush
misuse 2 "leave no option for Broadcast" broadcast --algo tree
misuse 2 "no algorithm \`bush\`" all_reduce --compare ring,bush
misuse 2 "no such type" all_reduce -d floaty
misuse 2 "less than --minbytes" all_reduce -b 8M -e 1M
misuse 2 "--root: must be 0 to 7" broadcast -r 8
misuse 2 "ranks 0-7" all_reduce --fault slow-rank:8:2
misuse 2 "factors 1-1e6" all_reduce --fault slow-rank:1:0
misuse 2 "expected L,o,g,G" all_reduce --loggp 1,2,3
misuse 2 "expected NAME=VALUE" all_reduce --cost launch_us.LL64=2
misuse 4 "cannot be read" all_reduce --cluster "$work/none"
echo 'nodes 0' >"$work/bad"
misuse 4 "bad line 1: expected nodes 1 to 65536" all_reduce --cluster "$work/bad"
printf 'nodes 2\nracks 7\n' >"$work/bad"
misuse 4 "bad line 2: expected one of machine" all_reduce --cluster "$work/bad"
echo 'cost lane_gbps=0' >"$work/bad"
misuse 4 "bad line 1: expected NAME=VALUE" all_reduce --cluster "$work/bad"
echo 'oversubscription nan' >"$work/bad"
misuse 4 "expected oversubscription 0.01 to 1000" all_reduce --cluster "$work/bad"

try 0 --help && cp "$work/out" "$work/help" && "$tutti" help sim >"$work/out" &&
  cmp -s "$work/help" "$work/out"
check $? "sim --help prints help sim"

[ "$failures" -eq 0 ]
