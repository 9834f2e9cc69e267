#!/bin/sh
# test_check.sh: `tutti check` from outside: what it proves, exit codes and messages of misuse, the matrix
# of small rank counts, the mutants. Finds the command at ${BUILD:-build}/bin/tutti.
# runner: 29 s
. "$(dirname "$0")/script.inc"
verb=check
. "$here/verb.inc"

# proves DESCRIPTION ARGUMENTS...: the command exits with 0 and prints that the plan is proved.
proves() {
  description=$1
  shift
  try 0 "$@" && grep -q '^proved: ' "$work/out"
  check $? "$description"
}

# refuses TEXT ARGUMENTS...: the command exits with 2 and prints only TEXT on standard error.
refuses() {
  text=$1
  shift
  try 2 "$@" && grep -qF -e "$text" "$work/err" && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ]
  check $? "refuses, and says \`$text\`: tutti check $*"
}

# shellcheck disable=SC2086
for proto in LL LL128 Simple; do
  for call in "all_reduce --algo ring" "all_reduce --algo tree" "all_reduce --algo direct" \
    "all_reduce --algo twoshot" "all_gather --algo ring" "all_gather --algo direct" \
    "reduce_scatter --algo ring" "reduce_scatter --algo direct" "broadcast --algo ring" \
    "broadcast --algo direct" "reduce --algo ring" "reduce --algo direct"; do
    same="--proto $proto --ranks 7 --count 1001 --chunk 512 --root 3"
    proves "$call, $proto" $call $same --slots 2
    proves "$call, $proto, in place, without direct stores" $call $same --in-place --indirect
  done
done
for algo in PAT NVLS; do
  proves "all_gather by $algo" all_gather --algo $algo --ranks 7 --count 1001 --chunk 512 --slots 2
  proves "reduce_scatter by $algo in place" reduce_scatter --algo $algo --ranks 6 --count 3 --in-place
done
proves "blocks that share slots, without direct stores" all_gather --algo PAT --ranks 13 --count 5 --indirect
proves "all_reduce by NVLS" all_reduce --algo NVLS --ranks 16 --channels 5
for algo in NVLSTree CollNetDirect CollNetChain; do
  proves "all_reduce by $algo" all_reduce --algo $algo --nodes 5 --gpus 3 --count 100001 --in-place
done
for call in all_gather reduce_scatter; do
  proves "$call by CollNetDirect" $call --algo CollNetDirect --nodes 4 --gpus 4 --first-step 3
done
proves "broadcasts fused" broadcast --group 7 --ranks 5 --count 3000 --chunk 512 --slots 2
proves "broadcasts fused by LL, some alone" broadcast --group 3 --ranks 2 --proto LL --in-place
proves "a group of all-reduces" all_reduce --group 3 --ranks 4 --type half
proves "all-to-all without messages" alltoall --algo Direct --ranks 6
proves "another kind of node" all_reduce --algo Tree --machine dgx-a100 --nodes 3 --gpus 4
for call in sendrecv alltoall gather scatter; do
  proves "$call" "$call" --ranks 6 --bytes 1M --root 2 --channels 4
done
proves "a tree over nodes" all_reduce --algo Tree --nodes 6 --gpus 4 --bytes 4M
proves "a ring over nodes, counters that are under way" all_gather --nodes 3 --gpus 2 --first-step 13
proves "averages of integers" all_reduce --op avg --type int32 --ranks 3
proves "one rank alone" all_reduce --op mulsum --type half --ranks 1
proves "three hundred ranks, channels that are alike run once" all_reduce --algo ring --ranks 300
proves "four thousand ranks in a tree" all_reduce --algo tree --ranks 4096 --nodes 512 --bytes 4M
proves "no elements at all" all_reduce --ranks 4 --count 0
proves "an algorithm of the library's choice" reduce_scatter --ranks 16

try 0 all_reduce --algo direct --ranks 4 --count 5 && grep -q '^order: (((0+1)+2)+3), one of 1$' "$work/out"
check $? "the order in which ranks are added is printed"
try 0 reduce --ranks 3 --json && grep -q '"proved": true' "$work/out" &&
  grep -q '"order": "(0+(2+1))"' "$work/out"
check $? "a proof is printed as JSON"

try 1 all_gather --algo ring --ranks 9 --slots 1 --count 12345 --channels 3 &&
  grep -q '^wrong: deadlock: rank [0-2] channel 0 step 1 waits for .* in a cycle of 3 lanes' "$work/out" &&
  grep -q '^smallest: .* all_gather --algo Ring --ranks 3 --count 1 --channels 1 --slots 1$' "$work/out"
check $? "a deadlock exits with 1 and prints the wait-for cycle and the smallest call that has it"
smallest=$(sed -n 's/^smallest: tutti check //p' "$work/out")
# shellcheck disable=SC2086
try 1 $smallest && grep -q 'deadlock' "$work/out"
check $? "the smallest call printed fails in the same way"
try 1 all_gather --algo ring --ranks 3 --slots 1 --json && grep -q '"rule": "deadlock"' "$work/out" &&
  grep -q '"step": 1,' "$work/out"
check $? "a deadlock is printed as JSON"

refuses "needs one collective"
refuses "no collective \`all_produce\`" all_produce
refuses "needs one collective, got 2" all_reduce broadcast
refuses "--ranks 0: must be a number from 1 to 4096" all_reduce --ranks 0
refuses "--ranks 2-4: must be a number" all_reduce --ranks 2-4
refuses "--ranks 5000: must be a number from 1 to 4096" all_reduce --ranks 5000
refuses "--ranks 4294967298: must be a number from 1 to 4096" all_reduce --ranks 4294967298
refuses "5000 ranks are more than 4096" all_reduce --nodes 5 --gpus 1000
refuses "--ranks 2-4294967298: must be a number from 1 to 4096" --all --ranks 2-4294967298
refuses "--root 8: there are 8 ranks" broadcast --root 8
refuses "--algo star: must be Tree, Ring, CollNetDirect" all_reduce --algo star
refuses "--algo custom: must be Tree, Ring" all_reduce --algo custom
refuses "there is no machine 'abacus'; there are dgx-h100" all_reduce --machine abacus
refuses "200 GPUs of a node are more than 128" all_reduce --nodes 2 --gpus 200
refuses "--group 0: must be 1 to 256" broadcast --group 0
refuses "cannot carry all_reduce: NVLS is for ranks of one node" all_reduce --algo NVLS --nodes 2 --gpus 2
refuses "more members than an executor has links (16)" all_reduce --algo NVLS --ranks 17
refuses "--proto TCP: must be LL" all_reduce --proto TCP
refuses "--type quad: must be" all_reduce --type quad
refuses "--op xor: must be" all_reduce --op xor
refuses "--count and --bytes both say how much" all_reduce --count 1 --bytes 4
refuses "7 ranks do not divide evenly over 2 nodes" all_reduce --ranks 7 --nodes 2
refuses "--nodes 2 --gpus 2 are not 5 ranks" all_reduce --ranks 5 --nodes 2 --gpus 2
refuses "alltoall has no in-place form" alltoall --in-place
refuses "no flag \`--rankz\`; did you mean \`--ranks\`?" all_reduce --rankz 3
refuses "--slots 9: must be 1 to 8" all_reduce --slots 9
refuses "cannot carry broadcast: Tree is for all-reduce alone" broadcast --algo tree
refuses "allowed: Ring with LL, LL128, Simple" broadcast --algo tree
refuses "cannot carry all_reduce: it needs a link to every other rank" all_reduce --algo direct --ranks 30
refuses "cannot carry alltoall" alltoall --proto LL128
refuses "--all proves every collective; name none" all_reduce --all
refuses "--ranks 9-2: must be a number from 1 to 4096, or two as in 2-64" --all --ranks 9-2
refuses "--mutants takes every algorithm" all_reduce --mutants

# ---- schedules from files ----

samples=$root/examples/schedules
for file in ring4.txt all_pairs4.txt staged2.txt four_slots.txt msccl_all_gather4.xml \
  msccl_all_reduce4.xml; do
  proves "the schedule $file" --plan "$samples/$file"
  proves "the schedule $file, one protocol, counters that are under way" --plan "$samples/$file" \
    --proto simple --first-step 5 --type half --chunk 256
done

# finds WORDS FILE ARGUMENTS...: the schedule is found wrong, and the line has WORDS.
finds() {
  words=$1
  file=$2
  shift 2
  try 1 --plan "$file" "$@" && grep -q "^wrong: $words" "$work/out" && grep -q '^smallest: tutti check ' \
    "$work/out"
  check $? "$description: $words"
}

description="every rank receives first"
finds 'deadlock: rank 0 channel 0 block 0 step 0 waits for data of rank 2, .* of 3 .* rank 2 block 0 step 0' \
  "$samples/deadlock3.txt"
smallest=$(sed -n 's/^smallest: tutti check //p' "$work/out")
# shellcheck disable=SC2086
try 1 $smallest && grep -q deadlock "$work/out"
check $? "the smallest call printed for a schedule fails in the same way"
description="one chunk is added to another"
finds 'combine: rank 2 channel 0 block 0 step 1 combines element 1 with element 0 ' "$samples/wrong3.txt"
description="three slots where four are needed"
finds 'deadlock: rank 0 channel 0 block 0 step 3 waits for a free slot of rank 1, ' \
  "$samples/four_slots.txt" --slots 3
try 1 --plan "$samples/wrong3.txt" --json && grep -q '"rule": "combine"' "$work/out" &&
  grep -q '"rank": 2,' "$work/out" && grep -q '"block": 0,' "$work/out" && grep -q '"step": 1,' "$work/out"
check $? "a wrong schedule is printed as JSON"

# needs SLOTS FILE: the smallest number of slots that is enough.
needs() {
  try 0 --plan "$samples/$2" --min-slots && grep -qx "slots: $1" "$work/out"
  check $? "$2 needs $1 slots"
}
needs 4 four_slots.txt
needs 2 ring4.txt
needs 1 msccl_all_reduce4.xml
try 0 --plan "$samples/four_slots.txt" --min-slots --json && grep -q '"min_slots": 4' "$work/out"
check $? "the smallest number of slots is printed as JSON"
try 1 --plan "$samples/deadlock3.txt" --min-slots && grep -q '^wrong: with 1 to 8 slots: deadlock: ' \
  "$work/out"
check $? "a schedule that no number of slots helps is reported"

# edited DESCRIPTION WORDS FILE SED-PROGRAM: the edited file is found wrong.
edited() {
  description=$1
  sed "$4" "$samples/$3" >"$work/edited"
  cmp -s "$samples/$3" "$work/edited" && description="$1 (the edit changed nothing)" && : >"$work/edited"
  finds "$2" "$work/edited"
}
edited "the last line dropped" 'match: rank 2 channel 0 block 0 step 7 has sent up to step 6 to rank 3' \
  ring4.txt '$d'
edited "a send dropped" 'match: rank 1 .* waits for data from rank 0, which has no more' ring4.txt \
  '15s/, send -> 1//'
edited "a first line dropped" 'combine: rank 1 channel 0 block 0 step 1' ring4.txt '11d'
edited "two lines swapped" 'combine: rank 1 channel 0 block 0 step 1' ring4.txt '11{h;d};12{G}'
edited "a wrong chunk sent" 'combine: rank 1 channel 0 block 0 step 1 combines element 3 with element 2' \
  ring4.txt '11s/in\[3\]/in[2]/'
edited "a wrong chunk kept" 'result: rank 0 element [12] of a buffer' ring4.txt '17s/out\[1\]/out[2]/'
edited "a wrong peer" '[a-z]*: rank [0-3] channel 0 block 0 step [0-9]* ' ring4.txt '11s/-> 1/-> 2/'
edited "one sum not finished" 'result: rank 0 element 0 of .*, not finished' ring4.txt '14s/finish, //'
edited "one rank's chunk taken twice" 'result: .* all ranks. sum of element .* and ends as ' \
  msccl_all_reduce4.xml 's/type="re" srcbuf="s" srcoff="1"/type="re" srcbuf="s" srcoff="0"/'
edited "a wait dropped" '[cm][oe]m[bo][ir][ny]e*: rank 0 channel 0 block 3 step 0' msccl_all_reduce4.xml \
  's/depid="0" deps="1"/depid="-1" deps="-1"/'
edited "a wait for a step too early" \
  'memory: rank . channel 0 block . step 2 reads element . of a buffer that block . of rank' \
  msccl_all_reduce4.xml 's/depid="2" deps="1"/depid="2" deps="0"/'
edited "scratch that nobody wrote" 'combine: rank 1 channel 0 block 0 step 1 takes what is no input' \
  staged2.txt 's/read in\[0\], keep scratch\[1\]/read in[0], keep scratch[0]/'

# A chunk is handed from block to block of a rank, on three channels: block 2 sends what block 0 wrote.
third_list() {
  cat <<TEXT
tutti-schedule 1
collective: broadcast
ranks: 2
chunks: 1
protocol: any
in-place: no
scratch: 2
rank 0 channel 0:
  read in[0], keep scratch[0]
rank 0 channel 1:
  $1
  $2
rank 0 channel 2:
  after block 1 step 0, send scratch[0] -> 1
rank 0 channel 3:
  $3, read in[0], keep scratch[0]
rank 0 channel 4:
  read in[0], keep out[0]
rank 1 channel 2:
  recv <- 0, keep out[0]
TEXT
}
first="after block 0 step 0, nothing"
third_list "$first" nothing "after block 2 step 0" >"$work/third_list.txt"
proves "an order through a third list, across channels" --plan "$work/third_list.txt"
description="a list that learns of a step behind the one that is waited for"
third_list nothing "$first" "after block 2 step 0" >"$work/third_list.txt"
finds '[a-z]*: rank 0 channel [0-3] block [0-3] step 0 ' "$work/third_list.txt"
description="a place overwritten in no order with its reader"
third_list "$first" nothing "after block 1 step 0" >"$work/third_list.txt"
finds 'memory: rank 0 channel [23] block [23] step 0 .* block [23] ' "$work/third_list.txt"
third_list "$first" "read scratch[0], keep scratch[1]" "after block 2 step 0" >"$work/third_list.txt"
description="one of two readers is not waited for"
finds 'memory: rank 0 channel [13] block [13] step [01] .* block [13] ' "$work/third_list.txt"
description="two blocks that wait for each other"
third_list "after block 3 step 0, nothing" nothing "after block 1 step 0" >"$work/third_list.txt"
finds 'deadlock: rank 0 channel 1 block 1 step 0 waits for block 3 of its own .* rank 0 block 3 step 0' \
  "$work/third_list.txt"

for call in "all_reduce --algo ring" "all_reduce --algo tree --in-place" "all_reduce --algo twoshot" \
  "reduce_scatter --algo direct" "all_gather --algo ring --in-place" "broadcast" "reduce --proto LL" \
  "reduce --algo direct" "reduce --algo ring --in-place"; do
  # shellcheck disable=SC2086
  try 0 $call --ranks 5 --print && cp "$work/out" "$work/printed.txt" && head -n 1 "$work/out" |
    grep -qx 'tutti-schedule 1'
  check $? "--print prints $call"
  proves "what was printed of $call" --plan "$work/printed.txt"
done

# malformed WORDS FILE: the command exits with 4 and prints one line that has WORDS.
malformed() {
  try 4 --plan "$2" && grep -qF -e "$1" "$work/err" && [ ! -s "$work/out" ] &&
    [ "$(wc -l <"$work/err")" -eq 1 ]
  check $? "a malformed file is reported: \`$1\`"
}
malformed "the schedule cannot be read: No such file" "$work/nowhere.txt"
malformed "README.md:1: expected 'tutti-schedule 1', MSCCL's XML or MSCCL++'s JSON" "$samples/README.md"
: >"$work/broken"
malformed "broken:1: expected 'tutti-schedule 1'" "$work/broken"
sed '12s/in\[2\]/in[9]/' "$samples/ring4.txt" >"$work/broken"
malformed "broken:12: chunks 9 to 9 are read of a buffer that has 4" "$work/broken"
sed '12s/-> 1/-> 4/' "$samples/ring4.txt" >"$work/broken"
malformed "broken:12: rank 4 as a peer of rank 0" "$work/broken"
sed '12s/send/sent/' "$samples/ring4.txt" >"$work/broken"
malformed "broken:12: " "$work/broken"
sed '10d' "$samples/ring4.txt" >"$work/broken"
malformed "broken:10: " "$work/broken"
head -c 900 "$samples/msccl_all_reduce4.xml" >"$work/broken"
malformed "broken:" "$work/broken"
sed 's/depid="3" deps="2"/depid="3" deps="7"/' "$samples/msccl_all_reduce4.xml" >"$work/broken"
malformed "which has no such step" "$work/broken"

refuses "--plan $samples/ring4.txt: its header says which collective" --plan "$samples/ring4.txt" --ranks 4
refuses "its header says which collective" all_reduce --plan "$samples/ring4.txt"
refuses "--count and --bytes both say how much" --plan "$samples/ring4.txt" --count 1 --bytes 4
refuses "--proto TCP: must be LL" --plan "$samples/ring4.txt" --proto TCP
refuses "--min-slots is of a schedule; give --plan FILE" all_reduce --min-slots
refuses "the schedule is for another protocol or place" --plan "$samples/wrong3.txt" --proto LL
refuses "the schedule is for another protocol or place" --plan "$samples/msccl_all_gather4.xml" --in-place
try 0 alltoall --ranks 4 -b 64K --print && [ "$(grep -c '^rank' "$work/out")" -eq 4 ] &&
  grep -q '^  round   1 to 1: LL, 2 parts of 8192 bytes in chunks of 32768, channels 0-1$' "$work/out" &&
  [ "$(grep -c ' from ' "$work/out")" -eq 12 ]
check $? "the messages of an all-to-all are printed by rank and round"
refuses "its steps share slots, which lists do not" all_gather --algo pat --ranks 4 --print
refuses "its works go over a switch or are fused, which lists do not" all_reduce --algo nvls --print

try 0 --all --ranks 2-9 && grep -q '^proved: [0-9]* plans of 2 to 9 ranks' "$work/out"
check $? "every collective, algorithm, protocol and size of 2 to 9 ranks is proved"
try 0 --mutants && grep -q '^proved: [0-9]* mutants .* 0 missed$' "$work/out" && ! grep -q MISSED "$work/out"
check $? "every mutant is caught or reported as equivalent"
[ "$(sed -n 's/^proved: \([0-9]*\) mutants.*/\1/p' "$work/out")" -ge 100 ]
check $? "there are at least a hundred mutants"
[ "$failures" -eq 0 ]
