#!/bin/sh
# test_mscclpp.sh: MSCCL++'s execution plans: the samples of examples/schedules are proved, run and timed;
# edited plans are found wrong, or refused with file and line. Prints one `ok - ` or `not ok - ` line per
# check and fails if a check failed. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
use_build
verb=check
. "$here/verb.inc"
samples=$root/examples/schedules

for file in all_gather4 all_reduce4 packets3 switch4 reduce_scatter3 all_to_all3; do
  try 0 --plan "$samples/mscclpp_$file.json" && grep -q '^proved: ' "$work/out"
  check $? "$file is proved"
  try 0 --plan "$samples/mscclpp_$file.json" --min-slots && grep -qx 'slots: 1' "$work/out"
  check $? "$file needs one slot"
  "$tutti" sim --plan "$samples/mscclpp_$file.json" -b 12K -e 12K >"$work/out" 2>&1 &&
    grep -q 'Custom' "$work/out"
  check $? "$file is simulated"
  try 0 --plan "$samples/mscclpp_$file.json" --print && grep -q '^rank 1 channel ' "$work/out" &&
    cp "$work/out" "$work/printed.txt" && try 0 --plan "$work/printed.txt" && grep -q '^proved: ' "$work/out"
  check $? "$file printed as tutti's text is proved too"
done

# runs FILE COLLECTIVE RANKS: the library reads tutti's text and gives right results, in threads and guarded
# mode.
runs() {
  "$tutti" check --plan "$samples/mscclpp_$1.json" --print >"$work/printed.txt"
  for mode in "" --threads; do
    TUTTI_CUSTOM_FILE=$work/printed.txt timeout 60 "$tutti" bench "$2" --ranks "$3" -b 12K -e 1200K \
      -f 10 $mode >"$work/log" 2>&1
    check $? "$1 gives right results as $2 of $3 ranks $mode"
  done
}
runs all_gather4 all_gather 4
runs all_reduce4 all_reduce 4
runs packets3 all_reduce 3
runs reduce_scatter3 reduce_scatter 3
runs switch4 all_reduce 4
NCCL_ALGO=Custom runs all_to_all3 alltoall 3
sed '/"copy"/d' "$samples/mscclpp_all_gather4.json" >"$work/edited.json"
"$tutti" check --plan "$work/edited.json" --print >"$work/edited.txt"
TUTTI_CUSTOM_FILE=$work/edited.txt timeout 60 "$tutti" bench all_gather --ranks 4 -b 12K -e 12K \
  >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q 'wrong elements' "$work/log"
check $? "a plan without its copies gives wrong results, which are reported"

# edited WORDS FILE SED-PROGRAM: the edited plan is found wrong, and the message has WORDS.
edited() {
  sed "$3" "$samples/mscclpp_$2.json" >"$work/edited.json"
  ! cmp -s "$samples/mscclpp_$2.json" "$work/edited.json" && try 1 --plan "$work/edited.json" &&
    grep -q "^wrong: $1" "$work/out"
  check $? "$2, edited, is found wrong: $1"
}
edited 'result: rank 0 element 0 of a buffer must end as' all_gather4 '/"copy"/d'
edited 'memory: rank 0 .* writes too, in no order with it' all_gather4 \
  '0,/"index": 2/s//"index": 3/'
edited 'result: rank 1 ' all_to_all3 '0,/"i", "index": 1/s//"i", "index": 2/'
edited 'combine: rank 0 channel 0 block 0 step 0 ' reduce_scatter3 \
  '0,/{"buffer_id": 1, "index": 0/s//{"buffer_id": 1, "index": 1/'
edited 'result: .* all ranks. sum' all_reduce4 \
  '0,/{"type": "i", "index": 0, "size": 1}, {/s//{/'
edited 'memory: .* in no order with it' switch4 '/"sem_acquire", "semaphore_ids": \[1\]/d'
edited 'memory: .* in no order with it' switch4 's/"name": "wait"/"name": "rlxwait"/'
edited 'same order: rank 1 adds up element 0' packets3 \
  '0,/"repkt"/{/"repkt"/{s/"index": 0/"index": 7/;s/"index": 1/"index": 0/;s/"index": 7/"index": 1/;};}'

# malformed WORDS FILE SED-PROGRAM: the command exits with 4 and prints one line that has WORDS.
malformed() {
  sed "$3" "$samples/mscclpp_$2.json" >"$work/broken.json"
  try 4 --plan "$work/broken.json" && grep -qF -e "$1" "$work/err" && [ "$(wc -l <"$work/err")" -eq 1 ]
  check $? "$2, edited, is refused: $1"
}
malformed 'broken.json:3: "collective": expected allreduce, allgather' all_gather4 's/"allgather"/"sendrecv"/'
malformed 'broken.json:4: "protocol": expected Simple or LL, found' all_gather4 's/"Simple"/"LL128"/'
malformed 'broken.json:5: "inplace": expected true or false, found a number' all_gather4 \
  's/"inplace": false/"inplace": 0/'
malformed 'broken.json:13: "output_chunks" is 5: expected a multiple of the 4 ranks' all_gather4 \
  's/"output_chunks": 4/"output_chunks": 5/'
malformed '"id" of a gpu: expected 1, the next, found 2' all_gather4 's/"id": 1, "input/"id": 2, "input/'
malformed '"id" of a threadblock: expected 0, the next, found 3' all_gather4 \
  's/{"id": 0, "channels"/{"id": 3, "channels"/'
malformed 'broken.json:25: chunks 7 to 7 of a buffer of rank 3 that has 4' all_gather4 \
  's/"buffer_id": 2, "index": 0/"buffer_id": 2, "index": 7/'
malformed 'has no number 9 among the "remote_buffer_ids" of its memory "remote_buffer_refs"' all_gather4 \
  's/"buffer_id": 2/"buffer_id": 9/'
malformed 'has no number 8 among the "channel_ids" of its memory "channels"' all_gather4 \
  '0,/"channel_ids": \[0, 1, 2\], "channel_type"/s//"channel_ids": [8], "channel_type"/'
malformed '"channel_type": expected memory, port or switch' all_gather4 \
  's/"channel_type": "memory"}$/"channel_type": 7}/'
malformed 'memory channel 1 of rank 0 has no other end: rank 2 has fewer' all_gather4 \
  's/"connected_to": \[1, 2, 3\]/"connected_to": [2, 2, 3]/'
malformed 'an op "push": expected copy, put' all_gather4 's/"put"/"push"/'
malformed '"size" is 2, and another where the op begins' all_reduce4 \
  '0,/"buffer_id": 0, "index": 0, "size": 1/s//"buffer_id": 0, "index": 0, "size": 2/'
malformed '"reduce_op": expected sum' all_reduce4 's/"sum"/"max"/'
malformed '"tb_id": expected a whole number from 0 to 1, found 2' all_reduce4 's/"tb_id": 1/"tb_id": 2/'
malformed 'fewer blocks than it names reach this barrier' all_reduce4 \
  's/"num_threadblocks": 2/"num_threadblocks": 3/'
malformed 'no block signals, or releases, once more before' all_gather4 \
  '0,/"name": "signal"/s//"name": "nop"/'
malformed 'no block signals, or releases, once more before' switch4 's/{"init_value": 2}/{"init_value": 0}/'
malformed 'no block writes this packet before' packets3 '0,/"ppkt"/s//"put"/'
malformed 'a second packet for chunk 0 of rank 0' packets3 \
  's/"buffer_id": \([01]\), "index": 2/"buffer_id": \1, "index": 0/'
malformed 'its gpu has no "semaphores"' switch4 's/"semaphores": .*/"semaphores": [],/'
malformed 'a pipeline within a pipeline' switch4 's/{"name": "nop"}/{"name": "pipeline", "ops": []}/'
malformed '"ops" is missing: expected an array' switch4 's/"ops": \[$/"op": [/'
malformed "\"inputChunks\": a plan of MSCCL++'s older language" all_gather4 's/"input_chunks"/"inputChunks"/'
malformed "expected ',' or '}' behind a member" all_gather4 '3s/,$//'
malformed 'expected a value: an object' all_gather4 '3s/"allgather"/allgather/'
malformed 'expected a whole number from 0 to 18446744073709551615, found 18446744073709551616' all_gather4 \
  's/551615/551616/'
[ "$failures" -eq 0 ]
