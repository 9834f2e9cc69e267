#!/bin/sh
# test_check.sh: the verb `tutti check` from outside: what it proves, exit codes and sentences of misuse, the
# matrix of few ranks, the mutants. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
tutti=${BUILD:-$root/build}/bin/tutti

# try CODE ARGUMENTS...: runs the command, at most a minute; true when it exits with CODE.
try() {
  expected=$1
  shift
  timeout 60 "$tutti" check "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  cat "$work/out" "$work/err" >"$work/log"
  [ "$code" -eq "$expected" ] && return 0
  echo "tutti check $* : exit code $code, expected $expected" >>"$work/log"
  return 1
}

# proves DESCRIPTION ARGUMENTS...: exits with 0 and says so.
proves() {
  description=$1
  shift
  try 0 "$@" && grep -q '^proved: ' "$work/out"
  check $? "$description"
}

# refuses TEXT ARGUMENTS...: exits with 2 and says TEXT on standard error, nothing else.
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
    "broadcast --algo direct" "reduce --algo ring"; do
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
check $? "the order in which ranks add up is told"
try 0 reduce --ranks 3 --json && grep -q '"proved": true' "$work/out" &&
  grep -q '"order": "(0+(2+1))"' "$work/out"
check $? "a proof as JSON"

try 1 all_gather --algo ring --ranks 9 --slots 1 --count 12345 --channels 3 &&
  grep -q '^wrong: deadlock: rank [0-2] channel 0 step 1 waits for .* in a circle of 3 lanes' "$work/out" &&
  grep -q '^smallest: .* all_gather --algo Ring --ranks 3 --count 1 --channels 1 --slots 1$' "$work/out"
check $? "a deadlock: exit code 1, the circle, the smallest call"
smallest=$(sed -n 's/^smallest: tutti check //p' "$work/out")
# shellcheck disable=SC2086
try 1 $smallest && grep -q 'deadlock' "$work/out"
check $? "the smallest call fails alike"
try 1 all_gather --algo ring --ranks 3 --slots 1 --json && grep -q '"rule": "deadlock"' "$work/out" &&
  grep -q '"step": 1,' "$work/out"
check $? "a deadlock as JSON"

refuses "which collective?"
refuses "no collective \`all_produce\`" all_produce
refuses "one collective at a time" all_reduce broadcast
refuses "--ranks 0: must be a number from 1 to 4096" all_reduce --ranks 0
refuses "--ranks 2-4: must be a number" all_reduce --ranks 2-4
refuses "5000 ranks are more than 4096" all_reduce --ranks 5000
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
refuses "7 ranks do not lie evenly on 2 nodes" all_reduce --ranks 7 --nodes 2
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

try 0 --all --ranks 2-9 && grep -q '^proved: [0-9]* plans of 2 to 9 ranks' "$work/out"
check $? "every collective, algorithm, protocol and size of 2 to 9 ranks"
try 0 --mutants && grep -q '^proved: [0-9]* mutants .* 0 missed$' "$work/out" && ! grep -q MISSED "$work/out"
check $? "every mutant is caught, or said to be equal"
[ "$(sed -n 's/^proved: \([0-9]*\) mutants.*/\1/p' "$work/out")" -ge 100 ]
check $? "there are a hundred mutants at least"
[ "$failures" -eq 0 ]
