#!/bin/sh
# test_import.sh: `tutti explain` on files of other programs: dumps of PyTorch's Flight Recorder, as pickle
# and as JSON, and logs of NCCL and of this library; and its answer as JSON. Prints one `ok - ` or `not ok -
# ` line per check and fails if a check failed.
# runner: 10 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti

# try CODE ARGUMENTS...: `tutti explain` with these arguments exits with CODE.
try() {
  expected=$1
  shift
  timeout 60 "$tutti" explain "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  cat "$work/out" "$work/err" >"$work/log"
  echo "tutti explain $*: exit code $code, expected $expected" >>"$work/log"
  [ $code -eq "$expected" ]
}
says() {
  for text; do grep -qF -e "$text" "$work/log" || return 1; done
}

# ---- dumps: four ranks, two groups; pickles of every protocol that Python writes, and JSON ----
python3 - "$work" <<'END'
import json, os, pickle, sys
def entry(number, group, name, size, state, collective, p2p=0):
    return {'record_id': number, 'pg_id': 0, 'process_group': group, 'collective_seq_id': collective,
            'p2p_seq_id': p2p, 'op_id': number + 1, 'profiling_name': 'nccl:' + name,
            'time_created_ns': 1724779239936775119 + number, 'input_sizes': [size],
            'input_dtypes': ['BFloat16'], 'output_sizes': [size], 'output_dtypes': ['BFloat16'],
            'state': state, 'time_discovered_started_ns': None, 'time_discovered_completed_ns': None,
            'retired': state == 'completed', 'timeout_ms': 600000, 'is_p2p': p2p > 0,
            'frames': [{'name': 'step', 'filename': 'train.py', 'line': 42}]}
world, pair = ('0', 'default_pg'), ('7', 'mesh_tp')
def dump(rank, entries):
    groups = {'0': {'name': '0', 'desc': 'default_pg', 'ranks': '[0, 1, 2, 3]'}}
    if rank in (1, 3):
        groups['7'] = {'name': '7', 'desc': 'mesh_tp', 'ranks': '[1, 3]'}
    return {'version': '2.10', 'pg_config': groups, 'pg_status': {}, 'entries': entries}
def write(folder, rank, value, protocol):
    os.makedirs(sys.argv[1] + '/' + folder, exist_ok=True)
    path = '%s/%s/nccl_trace_rank_%d' % (sys.argv[1], folder, rank)
    if protocol is None:
        with open(path + '.json', 'w') as file:
            json.dump(value, file)
    else:
        with open(path, 'wb') as file:
            pickle.dump(value, file, protocol=protocol)
for rank in range(4):
    first = entry(0, world, '_all_gather_base', [4, 8], 'completed', 1)
    last = entry(1, world, 'all_reduce_barrier', [1], 'started', 2)
    write('missing', rank, dump(rank, [first] + ([last] if rank != 2 else [])), 2 + rank % 4)
    write('json', rank, dump(rank, [first] + ([last] if rank != 2 else [])), None)
    size = [6 if rank == 3 else 8]
    other = entry(1, pair, 'reduce_scatter_tensor_coalesced', size, 'scheduled', 1)
    write('group', rank, dump(rank, [first] + ([other] if rank in (1, 3) else [])), 2)
    both = [first, entry(1, world, 'all_to_all', [rank + 1], 'completed', 2)]
    write('uneven', rank, dump(rank, both), 2)
    message = [entry(1, world, 'send 0->3', [5], 'started', 1, 1)] if rank == 0 else []
    write('alone', rank, dump(rank, [first] + message), 2)
    write('stands', rank, dump(rank, [first, last]), 2)
END
try 1 "$work"/missing/* && says \
  'rank 2 (process 0 on nccl_trace_rank_2) has not called operation #1' \
  "of comm '0:default_pg', AllReduce of 1 bfloat16" \
  'for which 3 others wait: its last call, #0, has ended' 'do not record operators, roots, streams'
check $? 'Flight Recorder: pickles of protocols 2 to 5 name the missing rank'
cp "$work/out" "$work/pickled"
try 1 "$work"/json/* && sed 's/_rank_2\.json/_rank_2/' "$work/out" | cmp -s - "$work/pickled"
check $? 'Flight Recorder: JSON gives the same diagnosis'
try 0 "$work"/missing/*0 "$work"/missing/*1 "$work"/missing/*3 && says '1 of 4 ranks left no file: 2' &&
  says 'were under way when these files were taken, and they do not tell whether a rank waits'
check $? 'Flight Recorder: a missing dump is reported'
try 1 "$work"/group/* && says "of comm '7:mesh_tp' called ReduceScatter of" 'rank 0 called' 'rank 1 called'
check $? 'Flight Recorder: a subgroup of ranks is diagnosed'
try 0 "$work"/uneven/* && says 'nothing is wrong'
check $? 'Flight Recorder: parts of an all-to-all may differ'
try 1 "$work"/alone/* && says 'has no ncclRecv for operation #1 of rank 0, which sends 5 bfloat16 to it'
check $? 'Flight Recorder: a message without a partner is reported'
try 0 "$work"/stands/* && says "operations of comm '0:default_pg' were under way" &&
  ! grep -q 'no rank waited' "$work/out"
check $? 'Flight Recorder: no rank is blamed if all are at the same operation'

# ---- malicious dumps ----
python3 - "$work" <<'END'
import pickle, sys
class Acts:
    def __init__(self, path): self.path = path
    def __reduce__(self): return (open, (self.path, 'w'))
def write(name, data):
    with open('%s/%s_1' % (sys.argv[1], name), 'wb') as file: file.write(data)
write('acts2', pickle.dumps({'version': Acts(sys.argv[1] + '/written')}, protocol=2))
write('acts4', pickle.dumps({'version': Acts(sys.argv[1] + '/written')}, protocol=4))
write('nested', b'\x80\x02N' + b'\x85' * 100000 + b'.')
write('itself', b'\x80\x02]q\x00h\x00a.')
write('knot', b'\x80\x02]q\x00]q\x01h\x00ah\x00h\x01a0.')
write('unkept', b'\x80\x02h\x07.')
write('long', b'\x80\x02X\xff\xff\xff\x7fabc')
write('odd', b'\x80\x02}(X\x01\x00\x00\x00au.')
write('empty', b'\x80\x02.')
write('many', b'\x80\x02(' + b']' * 2000000 + b'l.')
write('other', pickle.dumps([1, 2, 3], protocol=2))
with open(sys.argv[1] + '/missing/nccl_trace_rank_0', 'rb') as file: write('cut', file.read()[:300])
END
refused() {
  try 4 "$work/$1_1" && says "$2"
  check $? "a pickle that $3 is refused: $2"
}
refused acts2 'byte 19: opcode GLOBAL, which would run something' 'would open a file'
refused acts4 'opcode STACK_GLOBAL, which would run something' 'would open a file, protocol 4'
[ ! -e "$work/written" ]
check $? 'and the file was not opened'
refused nested 'lists in lists, deeper than in any dump' 'nests'
refused itself 'is already part of something else' 'holds itself'
refused knot 'is already part of something else' 'holds itself through another'
refused unkept 'byte 2: no value of that number has been kept' 'names what is not there'
refused long 'byte 2: the file ends within a text' 'has a text longer than itself'
refused odd 'byte 10: a key has no value' 'has a key alone'
refused empty 'byte 2: one value was expected at the end' 'is empty'
refused many 'more lists and dictionaries than a dump of this size has' 'is nothing but lists'
refused other '`entries` and `pg_config` were expected' 'is another thing'
refused cut 'byte 295: the file ends within a text' 'is cut off'
cp "$work/json/nccl_trace_rank_0.json" "$work/noname.json"
echo '{"entries": [' >"$work/bad_3"
try 4 "$work/noname.json" "$work/bad_3" &&
  says 'noname.json: a dump does not say which rank' 'bad_3:2: no JSON, at byte'
check $? 'dumps without a rank, or that are not JSON, are refused'

# ---- logs ----
line() { echo "node-$1:10$2:20$2 [$2] NCCL INFO $3"; }
birth() {
  line a $1 "ncclCommInitRank comm 0x5$1 rank $1 nranks 4 cudaDev $1 busId 1 commId 0xbeef - Init $2"
}
# call NAME OPCOUNT RANK BUFFERS COUNT TYPE ROOT [MORE]
call() {
  line a $3 "$1: opCount $2 $4 count $5 datatype $6 op 0 root $7 comm 0x5$3 [nranks=4] stream 0x3${8:-}"
}
for rank in 0 1 2 3; do
  {
    birth $rank START
    line a $rank "Channel 00/02 : 0 1 2 3"
    birth $rank COMPLETE
    call AllReduce 0 $rank 'sendbuff 0x1 recvbuff 0x2' 64 7 0
    [ $rank = 1 ] ||
      call Broadcast 1 $rank 'sendbuff (nil) recvbuff 0x2' 100 9 2 " task 0 globalrank $rank"
  } >"$work/log.$rank"
  grep -v Init "$work/log.$rank" >"$work/coll.$rank"
done
cat "$work"/log.? >"$work/together"
try 1 "$work"/log.? && says 'rank 1 (process 101 on node-a) has not called operation #1' \
  "of comm '0xbeef', Broadcast of 100 bfloat16, root 2" \
  'its last call was #0' 'logs record what was called, not what was launched'
check $? 'logs, one per process, name the missing rank'
cp "$work/out" "$work/apart"
try 1 "$work/together" && cmp -s "$work/out" "$work/apart"
check $? 'one log of all processes gives the same diagnosis'
try 1 "$work"/coll.? &&
  says 'rank 1 (process 101 on node-a) has not called operation #1' 'no line says which rank is whose'
check $? 'logs without INIT lines: ranks are numbered by device, and the answer says so'
for rank in 0 2 3; do tail -n 1 "$work/coll.$rank" >"$work/late.$rank"; done
try 1 "$work"/late.? "$work/coll.1" && says 'rank 1 (process 101 on node-a) has not called operation #1'
check $? 'logs that begin late keep their operation numbers'
sed 's/count 64/count 65/' "$work/log.3" >"$work/odd.3"
try 1 "$work"/log.0 "$work"/log.2 "$work"/odd.3 &&
  says 'rank 3 of comm' 'AllReduce of 65 float32, sum as operation #0, where 2 others'
check $? 'logs: another count is reported'
for name in absent count; do
  TUTTI_TRACE=off TUTTI_STALL_SECONDS=1 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL timeout 60 \
    "$build/tests/hang_program" $name >"$work/own" 2>&1
  "$tutti" explain "$work/own" >"$work/log" 2>&1
  [ $? -eq 1 ] && grep -q "$(case $name in absent) echo 'rank 2 .* has not called operation #2' ;;
    *) echo 'rank 3 .* called AllReduce of 1000 .* another count' ;; esac)" "$work/log"
  check $? "a log of this library is explained: $name"
done

# ---- answers ----
try 2 "$work"/missing/* "$root/traces/count/0.txt" && says \
  'these are files of records and Flight Recorder dumps, which name communicators differently'
check $? 'files of two kinds are refused together'
try 1 --json "$work"/missing/* "$work/bad_3" "$root/README.md" && python3 - "$work/out" "$work/bad_3" <<'END'
import json, sys
answer = json.load(open(sys.argv[1]))
keys = 'kind rank sentence evidence next source lacks files refused'
assert list(answer) == keys.split(), answer
assert answer['kind'] == 'not arrived' and answer['source'] == 'flight recorder' and answer['files'] == 4
assert answer['refused'][0] == sys.argv[2] and len(answer['refused']) == 2 and len(answer['evidence']) == 1
END
check $? '--json has kind, rank, sentence, evidence, next, source, lacks, files, refused'
for name in "$root"/traces/*/ "$root"/traces/gpu/*/; do
  [ -e "$name/expected" ] || continue
  "$tutti" explain --json "$name"*.txt 2>"$work/log" | python3 -m json.tool >/dev/null 2>>"$work/log" ||
    echo "$name" >>"$work/bad"
done
[ ! -e "$work/bad" ]
check $? '--json works for every trace'
[ "$failures" -eq 0 ]
