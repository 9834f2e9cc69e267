#!/bin/sh
# test_export.sh: `tutti trace export`, `diff` and `archive` from outside: their output is valid by the
# formats' own rules (formats.py) and agrees with the traces. Prints one `ok - ` or `not ok - ` line per
# check and fails if a check failed.
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
traces=$root/traces
formats() { python3 -B "$here/formats.py" "$@" >"$work/log" 2>&1; }

# try CODE ARGUMENTS...: `tutti trace` with these arguments exits with CODE.
try() {
  expected=$1
  shift
  timeout 60 "$tutti" trace "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  cat "$work/out" "$work/err" >"$work/log"
  echo "tutti trace $*: exit code $code, expected $expected" >>"$work/log"
  [ $code -eq "$expected" ]
}
says() {
  grep -qF -e "$1" "$work/log"
  noted $? "the text $1"
}

# ---- Perfetto ----
for name in count lost cycle died send_alone open_group fine; do
  try 0 export --to perfetto -o "$work/$name.json" "$traces/$name"/*.txt &&
    formats perfetto "$work/$name.json"
  check $? "Perfetto: $name is valid"
done
python3 - "$work" >"$work/log" 2>&1 <<'END'
import json, sys
def events(name):
    return json.load(open('%s/%s.json' % (sys.argv[1], name)))['traceEvents']
count, lost = events('count'), events('lost')
assert {e['pid'] for e in count} == {0, 1, 2, 3}
calls = [e for e in count if e['ph'] == 'X' and e['name'].startswith('AllReduce #')]
assert len(calls) == 12 and sum(e['args']['count'] == 1000 for e in calls) == 1
assert sum(e['ph'] == 's' and e['cat'] == 'collective' for e in count) == 9
assert sum(e['ph'] == 's' and e['cat'] == 'waited for' for e in count) == 2
waits = [e for e in count if 'waits for data of' in e['name']]
assert len(waits) == 2 and all(e['args']['need'] == 3 for e in waits), waits
assert all(e['ph'] == 'B' for e in waits) and not any(e['ph'] == 'E' for e in count)
assert not any(e['ph'] == 'B' for e in events('fine'))
full = [e for e in count if e['ph'] == 'C' and e['name'].endswith('full slots')]
assert sum(e['args']['slots'] for e in full) > 0
assert any(e['ph'] == 'C' and 'proxy' in e['name'] for e in lost)
assert any(e['name'].endswith('(not launched)') for e in events('open_group'))
END
check $? 'Perfetto: ranks, calls, arrows, waits, full slots and messages agree with the traces'

# ---- Flight Recorder ----
for name in count absent collective order fine send_alone cycle died; do
  mkdir "$work/$name"
  try 0 export --to flight -o "$work/$name" "$traces/$name"/*.txt &&
    formats flight "$work/$name"/nccl_trace_rank_*
  check $? "Flight Recorder: $name is valid"
  [ "$name" != cycle ] || continue # whether kernels wait they do not tell
  "$tutti" explain --json "$traces/$name"/*.txt >"$work/one" 2>"$work/log"
  "$tutti" explain --json "$work/$name"/nccl_trace_rank_* >"$work/other" 2>>"$work/log"
  [ "$name" = died ] || python3 - "$work" >"$work/log" 2>&1 <<'END'
import json, sys
one, other = (json.load(open(sys.argv[1] + '/' + name)) for name in ('one', 'other'))
assert one['kind'] == other['kind'], (one, other)
END
  check $? "Flight Recorder: explain gives the same kind of diagnosis: $name"
done
try 0 export --to flight-json -o "$work/plain" "$traces/count/0.txt" && formats flight "$work"/plain[0-3] &&
  python3 - "$work" >"$work/log" 2>&1 <<'END'
import json, pickle, sys
for rank in range(4):
    text = json.load(open('%s/plain%d' % (sys.argv[1], rank)))
    dump = pickle.load(open('%s/count/nccl_trace_rank_%d' % (sys.argv[1], rank), 'rb'))
    assert json.loads(json.dumps(dump)) == text
    assert text['entries'][2]['input_sizes'] == [[1000 if rank == 3 else 1024]]
    assert text['entries'][2]['state'] == 'started' and text['entries'][0]['state'] == 'completed'
steps = json.load(open(sys.argv[1] + '/plain0'))['entries'][2]['steps']
lane = {'channel': 0, 'lane': 0, 'waits_for': 'data', 'peer': 1, 'step': 1, 'have': 0, 'need': 3}
assert steps == [lane], steps
END
check $? 'Flight Recorder: JSON and pickle agree on sizes, states and steps'

# ---- Prometheus ----
for name in count died cycle; do
  try 0 export --to prometheus -o "$work/$name.prom" "$traces/$name"/*.txt &&
    formats prometheus "$work/$name.prom"
  check $? "Prometheus: $name is valid"
done
grep -q '^tutti_operations_called_total{comm="1",.*rank="3",.*} 3$' "$work/count.prom" &&
  grep -q '^tutti_kernels_ended_total{comm="1",.*rank="3",.*} 2$' "$work/count.prom" &&
  grep -q '^tutti_recorded_bytes{comm="1",.*rank="3",.*} 12192$' "$work/count.prom" &&
  grep -q '^tutti_comm_error{comm="1",.*rank="0",.*} 5$' "$work/count.prom" && [ ! -e "$work/count.prom.new" ]
check $? 'Prometheus: counts agree with the trace'

# ---- differences ----
sed 's/ process=[0-9]*/ process=7/; s/ticks=16515788/ticks=16515789/
  s/=0x7fb9/=0x7ab9/g
  s/^plan @1 \(.*\) number=1 /plan @9 \1 number=9 /; s/ plan=1 / plan=9 /' \
  "$traces/count/0.txt" >"$work/elsewhere.txt"
try 0 diff "$traces/count/0.txt" "$work/elsewhere.txt" && [ ! -s "$work/out" ]
check $? 'diff: ignores times, addresses, process ids and plan numbers'
try 1 diff "$traces/count/0.txt" "$traces/absent/0.txt" && says "comm '1', rank 2 of 4: record 6 differs" &&
  says 'count/0.txt: call of operation #2: AllReduce of 1024' && says 'absent/0.txt: (no more)'
check $? 'diff: shows the first call that differs in both files'
sed 's/=Simple \(works=1 channels=1 number=3\)/=LL \1/' "$traces/count/0.txt" >"$work/plan.txt"
try 1 diff "$traces/count/0.txt" "$work/plan.txt" && says 'rank 2 of 4: record 2 differs' &&
  says 'Direct LL, 1 works'
check $? 'diff: shows another plan'
try 1 diff "$traces/fine/0.txt" "$traces/cycle/0.txt"
check $? 'diff: shows other communicators'
try 4 diff "$traces/count/0.txt" "$root/README.md" && says 'README.md: the first 8 bytes'
check $? 'diff: refuses a file that is not a trace'
for seed in 1 2; do
  timeout 60 "$tutti" bench all_reduce --ranks 2 -b 64 -e 64 --seed $seed --trace "$work/moves$seed" \
    >/dev/null 2>&1
done
try 0 diff "$work/moves1" "$work/moves1" && try 1 diff "$work/moves1" "$work/moves2" && says ' differs' &&
  try 4 diff "$work/moves1" "$traces/count/0.txt"
check $? 'diff: compares traces of events'

# ---- archives ----
mkdir "$work/kept"
try 0 archive -o "$work/kept" "$traces/count/0.txt" "$work/moves1" &&
  "$tutti" trace pack "$work/kept/0.txt.zst" "$work/packed" &&
  try 0 archive "$work/packed" && [ "$(wc -c <"$work/packed.zst")" -lt 20000 ] &&
  "$tutti" trace dump "$work/packed.zst" | cmp -s - "$traces/count/0.txt" &&
  "$tutti" explain "$work/packed.zst" | cmp -s - "$traces/count/expected" &&
  try 0 diff "$work/packed.zst" "$work/kept/0.txt.zst" &&
  try 0 diff "$work/moves1" "$work/kept/moves1.zst"
check $? 'compressed files are read directly, text and binary'
head -c 600 "$work/packed.zst" >"$work/cut.zst"
"$tutti" explain "$work/cut.zst" >"$work/log" 2>&1
says 'cut.zst: zstd at byte 600: more was expected: it is cut off; what is in front of it is used'
check $? 'a truncated compressed file is reported'
head -c 100000000 /dev/zero >"$work/zeros" && try 0 archive "$work/zeros" && rm "$work/zeros" &&
  cat "$work/zeros.zst" "$work/zeros.zst" "$work/zeros.zst" >"$work/bomb.zst"
(ulimit -v 1500000 && exec "$tutti" explain "$work/bomb.zst") >"$work/log" 2>&1
[ $? -eq 4 ] && says 'bomb.zst: unpacks to more than 256 MiB'
check $? 'a file that unpacks to more than any trace is refused'

# ---- misuse ----
try 2 export "$traces/count/0.txt" && says 'perfetto, flight, flight-json or prometheus was expected' &&
  try 2 export --to perfeto "$traces/count/0.txt" && says 'did you mean `perfetto`?' &&
  try 4 export --to perfetto "$root/README.md" &&
  try 3 export --to perfetto -o "$work/no/where" "$traces/count/0.txt" &&
  says 'no/where: cannot be written' && try 2 archive -o "$work/none" "$work/packed" "$work/moves1" &&
  says 'a folder was expected for 2 files' && try 2 && says 'what is asked for?'
check $? 'misuse gets a message'
[ "$failures" -eq 0 ]
