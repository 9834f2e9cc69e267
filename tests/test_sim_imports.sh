#!/bin/sh
# test_sim_imports.sh: `tutti sim` on files of other tools: schedules as text and as MSCCL's XML, Chakra
# traces as calls. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the
# command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
verb=sim
. "$here/verb.inc"
samples=$root/examples/schedules

# ---- schedules ----
try 0 --plan "$samples/ring4.txt" -b 4K -e 1M -f 16 && says "all_reduce: 4 ranks, 1 nodes of 4" "Custom" &&
  [ "$(grep -c '^ .*Custom' "$work/out")" -eq 3 ]
check $? "--plan of tutti's text takes collective and number of ranks from the file"
for file in msccl_all_gather4.xml msccl_all_reduce4.xml; do
  try 0 --plan "$samples/$file" -b 4K -e 1M -f 16 && says "4 ranks, 1 nodes of 4" "Custom"
  check $? "--plan reads MSCCL's XML: $file"
done
try 0 --plan "$samples/ring4.txt" -b 1M -e 1M --nodes 2 && says "4 ranks, 2 nodes of 2"
check $? "--plan works on two nodes"
try 0 --plan "$samples/ring4.txt" -b 1K -e 1K --compare ring --channels 1 && says "Custom" "Ring" &&
  awk '$1 == 1024 {exit !($3 == $4)}' "$work/out"
check $? "--compare: a ring from a file is as fast as the built-in ring"
try 0 --plan "$samples/ring4.txt" -b 1M -e 1M --svg "$work/plan.svg" && grep -q 'Custom' "$work/plan.svg"
check $? "--plan and --svg work together"
"$tutti" check all_reduce --algo ring --ranks 8 --count 4096 --channels 1 --print >"$work/ring8.txt" \
  2>"$work/log"
try 0 --plan "$work/ring8.txt" -b 16K -e 16K && says "8 ranks, 1 nodes of 8"
check $? "--plan reads the output of \`tutti check --print\`"
misuse 1 "a cycle of 3 lanes that wait for each other" --plan "$samples/deadlock3.txt" -b 48 -e 48
misuse 2 "a count that is a multiple of its chunks" --plan "$samples/wrong3.txt" -b 64 -e 64
misuse 2 "is for 4 ranks, the cluster has 16; give --nodes and --gpus" --plan "$samples/ring4.txt" --nodes 2 \
  --gpus 8
misuse 2 "its header says which collective" --plan "$samples/ring4.txt" all_reduce
misuse 4 "expected 'tutti-schedule 1', MSCCL's XML or MSCCL++'s JSON" --plan "$root/README.md"
misuse 4 "broken.txt:" --plan "$work/none/broken.txt"
sed 's/add in\[2\]/add in[9]/' "$samples/ring4.txt" >"$work/broken.txt"
misuse 4 "chunks 9 to 9 are read of a buffer that has 4" --plan "$work/broken.txt"

# ---- Chakra ----
command -v python3 >/dev/null || {
  echo "skip: Chakra traces: python3 is not installed"
  [ "$failures" -eq 0 ]
  exit
}
cat >"$work/write.py" <<'PYTHON'
"""Chakra traces: write(name, rank, nodes), a node is (id, kind, waits for, microseconds, attributes)."""
import sys


def number(value):
    out = b''
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(index, value):
    if isinstance(value, int):
        return number(index << 3) + number(value)
    return number(index << 3 | 2) + number(len(value)) + value


def node(ident, kind, deps=(), us=0, **attributes):
    out = field(1, ident) + field(2, b'n%d' % ident) + field(3, kind)
    out += b''.join(field(5, dep) for dep in deps)
    if us:
        out += field(7, us)
    for name, value in attributes.items():
        inner = field(1, name.encode())
        inner += field(29, value.encode()) if isinstance(value, str) else field(9, value)
        out += field(10, inner)
    return out


def write(name, rank, nodes):
    with open('%s/%s.%d.et' % (sys.argv[1], name, rank), 'wb') as file:
        for message in [field(1, b'0.0.4')] + nodes:
            file.write(number(len(message)) + message)


COMP, SEND, RECV, COLL = 4, 5, 6, 7
for rank in range(4):
    half = 'low' if rank < 2 else 'high'
    nodes = [node(1, COMP, us=100),
             node(2, COLL, (1,), comm_type=0, comm_size=1 << 20, pg_name='all'),
             node(3, COMP, (1,), us=300),
             node(4, COLL, (2, 3), comm_type=2, comm_size=1 << 16, pg_name=half),
             node(9, COLL, (4,), comm_type=9, comm_size=0, pg_name='all')]
    if rank == 0:
        nodes += [node(5, SEND, (4, 3), comm_dst=3, comm_size=1 << 16)]
    if rank == 3:
        nodes += [node(5, RECV, (4,), comm_src=0, comm_size=1 << 16), node(6, COMP, (5, 2), us=50)]
    write('good', rank, nodes)
    write('short', rank, nodes[:-1] if rank == 2 else nodes)
    write('cycle', rank, [node(1, COMP, (3,), us=1), node(2, COMP, (1,), us=1), node(3, COMP, (2,), us=1)])
    write('behind', rank, [node(2, COLL, (1,), comm_type=0, comm_size=64), node(1, COMP, us=70)])
    write('nowhere', rank, [node(2, COMP, (1,), us=1)])
    write('twice', rank, [node(2, COMP, us=1), node(2, COMP, us=1)])
    write('far', rank, [node(1, SEND, comm_dst=4, comm_size=64)])
    write('large', rank, [node(1, COLL, comm_type=0, comm_size=1 << 41)])
    write('odd', rank, [node(1, COLL, comm_type=12, comm_size=64)])
    write('cross', rank, [node(1, COLL, (), comm_type=0, comm_size=64, pg_name='a' if rank < 2 else 'b'),
                          node(2, COLL, (1,), comm_type=0, comm_size=64, pg_name='b' if rank < 2 else 'a')])
PYTHON
python3 "$work/write.py" "$work" || exit 1
try 0 --chakra "$work"/good.*.et --json && python3 - "$work/out" <<'PYTHON'
import json
import sys
run = json.load(open(sys.argv[1]))
calls = {call['call']: call for call in run['calls']}
assert run['ranks'] == 4 and run['nodes'] == 1 and run['kernels'] == 4 + 4 + 4 + 2, run
assert calls['all_reduce 262144 x float sum']['kernels'] == 4
assert calls['all_gather 16384 x float comm pg-low']['kernels'] == 2
assert calls['all_gather 16384 x float comm pg-high']['kernels'] == 2
assert calls['all_reduce 1 x float sum']['kernels'] == 4
assert 450 < run['time_us'] < 700, run['time_us']
PYTHON
check $? "--chakra reads collectives of process groups, messages, and parallel computations"
try 0 --chakra "$work"/good.*.et --print && cp "$work/out" "$work/job" &&
  says "comm pg-low 0-1" "wait main" && try 0 --chakra "$work"/good.*.et &&
  time=$(awk '/^# end /{print $3}' "$work/out") &&
  try 0 --workload "$work/job" && [ "$(awk '/^# end /{print $3}' "$work/out")" = "$time" ]
check $? "--print of traces gives the same workload"
try 0 --chakra "$work"/behind.*.et && awk '/^# end /{exit !($3 > 70)}' "$work/out"
check $? "a node listed before the node that it waits for is reported"
misuse 1 "and rank 2 does not" --chakra "$work"/short.*.et
misuse 1 "waits for its stream of-pg-a: a cycle of 6 that" --chakra "$work"/cross.*.et
misuse 4 "node 2 waits for node 1, and that one, through others, for it" --chakra "$work"/cycle.*.et
misuse 4 "a node waits for node 1, which is not there" --chakra "$work"/nowhere.*.et
misuse 4 "two nodes have the id 2" --chakra "$work"/twice.*.et
misuse 4 "node 1: its message is to or from no rank of these" --chakra "$work"/far.*.et
misuse 4 "node 1: comm_size must be at most 2^40" --chakra "$work"/large.*.et
misuse 4 "comm_type must be 0 to 9" --chakra "$work"/odd.*.et
misuse 4 "are expected to end in .0.et to .2.et, each once" --chakra "$work"/good.[123].et
misuse 4 "cannot be read" --chakra "$work/none.0.et"
"$tutti" goal export all_reduce --algo ring -b 1M -g 4 --to chakra -o "$work/ring" >"$work/log" 2>&1 &&
  try 0 --chakra "$work"/ring.*.et && says "send " "recv "
check $? "--chakra reads the output of \`tutti goal export\`"
[ "$failures" -eq 0 ]
