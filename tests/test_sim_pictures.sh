#!/bin/sh
# test_sim_pictures.sh: the pictures of `tutti sim`: well-formed, repeatable, with the right contents, and
# of bounded size. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the
# command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
verb=sim
. "$here/verb.inc"
step=$root/examples/workloads/step.txt

# shows FILE TEXT...: the SVG is well-formed, draws nothing outside its frame, and has these words; its
# numbers go to $work/facts: boxes, paths, columns by colour.
shows() {
  python3 - "$@" >"$work/facts" 2>"$work/log" <<'PYTHON'
import re
import sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
space = '{http://www.w3.org/2000/svg}'
assert root.tag == space + 'svg', root.tag
width, height = float(root.get('width')), float(root.get('height'))
words = [''.join(node.itertext()) for node in root.iter() if node.tag in (space + 'text', space + 'title')]
for text in sys.argv[2:]:
    assert any(text in each for each in words), text
for full in re.findall(r'(?:out|in|link [0-9]+)  ([0-9]+) %', '\n'.join(words)):
    assert int(full) <= 101, full
boxes = 0
for node in root.iter(space + 'rect'):
    x, y, w, h = (float(node.get(name)) for name in ('x', 'y', 'width', 'height'))
    assert -0.1 <= x and x + w <= width + 0.1 and -0.1 <= y and y + h <= height + 0.1, node.attrib
    assert w >= 0 and h >= 0, node.attrib
    boxes += 1
print('boxes', boxes)
for node in root.iter(space + 'path'):
    for x, y, w, h in re.findall(r'M([-0-9.]+) ([-0-9.]+)h([-0-9.]+)v([-0-9.]+)h', node.get('d')):
        x, y, w, h = float(x), float(y), float(w), float(h)
        assert -0.1 <= x and x + w <= width + 0.3 and -0.1 <= y and y + h <= height + 0.1, (x, y, w, h)
    if node.get('fill') != 'none':
        print('columns', node.get('fill'), node.get('d').count('z'))
for node in root.iter(space + 'text'):
    long = 6.6 * len(''.join(node.itertext()))  # at most, of 11 pixels
    begin = float(node.get('x')) - long * {'start': 0, 'middle': 0.5, 'end': 1}[node.get('text-anchor')]
    assert 0 <= begin and begin + long <= width, (''.join(node.itertext()), node.attrib)
    assert 11 <= float(node.get('y')) <= height, node.attrib
PYTHON
}
# columns COLOUR: the number of columns of this colour in the picture.
columns() {
  awk -v colour="$1" '$1 == "columns" && $2 == colour {sum += $3} END {print sum + 0}' "$work/facts"
}

try 0 -w "$step" --svg "$work/step.svg" && shows "$work/step.svg" "16 ranks on 2 nodes of 8" "rank 0" \
  "rank 15" "rank 0 side" "all_reduce 4194304 x bfloat16 sum comm tp0" "send 1048576 x bfloat16 to 8" \
  "node 0 NIC 0 out" "node 0 GPU 0 PCI out" "500 us" &&
  [ "$(awk '/^boxes/{print $2}' "$work/facts")" -ge 86 ]
check $? "--svg of a workload has one box per kernel"
try 0 -w "$step" --svg "$work/again.svg" && cmp -s "$work/step.svg" "$work/again.svg"
check $? "a second run writes the same bytes"
try 0 -w "$step" --svg "$work/both.svg" --perfetto "$work/both.json" &&
  cmp -s "$work/step.svg" "$work/both.svg"
check $? "--svg and --perfetto work together"
python3 -B "$here/formats.py" perfetto "$work/both.json" >"$work/log" &&
  python3 - "$work/both.json" <<'PYTHON'
import json, sys
events = json.load(open(sys.argv[1]))['traceEvents']
names = {(e['name'], e['args'].get('name')) for e in events if e['ph'] == 'M'}
assert ('process_name', 'rank 9 (node 1, GPU 1)') in names, names
assert ('thread_name', 'stream side') in names and ('thread_name', 'channel 3') in names
assert not any(e['ph'] == 'B' for e in events)
PYTHON
check $? "--perfetto names ranks, streams and channels"
printf 'repeat 700\n all_reduce 64K after 5us\nend\n' >"$work/many"
try 0 -w "$work/many" --svg "$work/many.svg" && shows "$work/many.svg" "lanes move data" "rank 7" &&
  [ "$(columns '#0072b2')" -ge 640 ] && [ "$(wc -c <"$work/many.svg")" -lt 400000 ]
check $? "--svg of many kernels draws columns instead of boxes"
try 0 all_reduce -b 16M -e 16M --nodes 2 --algo ring --svg "$work/one.svg" &&
  shows "$work/one.svg" "all_reduce of 16777216 bytes" "rank 0" "rank 15" "links: the 24 fullest of"
check $? "--svg draws a collective"
try 0 all_gather -b 8M -e 8M --nodes 128 --channels 4 --svg "$work/large.svg" &&
  shows "$work/large.svg" "ranks 0-31" "ranks 992-1023" && [ "$(wc -c <"$work/large.svg")" -lt 400000 ]
check $? "--svg of 1,024 ranks is small"
try 0 all_gather -b 256M -e 256M --nodes 2 --gpus 1 --algo ring --proto simple --svg "$work/full.svg" &&
  shows "$work/full.svg" "node 0 NIC" && [ "$(columns '#d7301f')" -gt 20 ]
check $? "one GPU per node fills its NIC"
try 0 all_gather -b 256M -e 256M --nodes 2 --gpus 1 --algo ring --proto simple --fault slow-rank:0:50 \
  --svg "$work/slow.svg" && shows "$work/slow.svg" && [ "$(columns '#d7301f')" -eq 0 ]
check $? "with a slow rank the NIC is not full"
try 1 all_reduce -b 16M -e 16M --nodes 2 --fault nic:1:2:off --svg "$work/dead.svg" \
  --perfetto "$work/dead.json" && shows "$work/dead.svg" "rank 0" "lanes wait for ever" &&
  [ "$(columns '#d7301f')" -gt 0 ] && python3 - "$work/dead.json" <<'PYTHON'
import json, sys
events = json.load(open(sys.argv[1]))['traceEvents']
hangs = [e for e in events if e['ph'] == 'B']
assert hangs and all(e['name'].startswith('waits for ') for e in hangs)
assert any('node 1 NIC 2' in str(e['args']) for e in hangs) and not any(e['ph'] == 'E' for e in events)
PYTHON
check $? "a deadlock is drawn up to its last step, with waits that do not end"
cat >"$work/named" <<'TEXT'
comm a<b>&"c" 0-3
all_reduce 1M comm a<b>&"c"
TEXT
try 0 -w "$work/named" --svg "$work/named.svg" && shows "$work/named.svg" 'sum comm a<b>&"c"'
check $? "special characters in names are escaped"

try 0 all_reduce -b 1K -e 64M -f 8 --nodes 2 --compare ring,tree,pat --plot "$work/plot.svg" &&
  shows "$work/plot.svg" "Ring" "Tree" "bus GB/s" "Ring: 1024 bytes, " "Tree: 33554432 bytes, " &&
  ! grep -q PAT "$work/plot.svg"
check $? "--plot has one line per algorithm that applies"
time=$(awk '$1 == 33554432 {print $3}' "$work/out")
awk -v time="$time" -F '[:, ]+' '/Ring: 33554432 bytes/ {sub(".*bytes, ", ""); found = 1
  exit !($1 + 0 > 33554432 / time / 1e3 * 1.87 && $1 + 0 < 33554432 / time / 1e3 * 1.88 + 0.01)}
  END {if (!found) exit 1}' "$work/plot.svg"
check $? "--plot shows the bus bandwidth of the table"
try 0 all_reduce -b 1M -e 1M --plot "$work/plot.svg" && shows "$work/plot.svg" "chosen"
check $? "--plot draws a single size"
misuse 3 "cannot be written" all_reduce -b 64K -e 64K --svg "$work/none/picture.svg"
misuse 3 "cannot be written" all_reduce -b 64K -e 64K --plot "$work/none/picture.svg"
misuse 3 "cannot be written" -w "$step" --svg "$work/none/picture.svg"
misuse 2 "are of a collective" -w "$step" --plot "$work/plot.svg"
misuse 2 "--print is of a workload" all_reduce --print
[ "$failures" -eq 0 ]
