#!/bin/sh
# test_rank_program.sh: tests rank_program, which tests of several processes start, as one process whose
# ranks are threads: right results, errors as lines, survivors that continue, its deadline, its resource
# counts. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 27 s, waits
. "$(dirname "$0")/script.inc"
use_build
export TUTTI_INIT_TIMEOUT_SECONDS=20 TUTTI_STALL_SECONDS=1

run() { timeout 60 "$build/tests/rank_program" "$@" >"$work/log" 2>&1; }

has() {
  grep -q "$@" "$work/log"
  noted $? "a line like $*"
}

for mode in guarded threads; do
  export TUTTI_EMU="mode=$mode"
  most=0
  [ "$mode" = guarded ] || most=8 # the emulator keeps threads of blocks, and may need one more than before
  run --threads --size 4 --rounds 3 --bytes 20000 &&
    has "^end descriptors 0 threads [0-$most] allocations [0-$most]\$" &&
    [ "$(grep -c '^rank [0-3] operations ok$' "$work/log")" -eq 12 ]
  check $? "$mode: three communicators run all operations, and the later ones leave nothing behind"
  run --threads --size 3 --poll --seed 7 && [ "$(grep -c 'destroy ok$' "$work/log")" -eq 3 ]
  check $? "$mode: polling works"
  run --threads --size 4 --ops all_reduce --abort-at 2,1 --shrink-after-error 2 &&
    [ "$(grep -c 'all_reduce iteration 1 error [0-9]* .*: .*rank 2' "$work/log")" -eq 3 ] &&
    [ "$(grep -c 'all_reduce after shrink ok$' "$work/log")" -eq 3 ] && has '^rank 2 abort ok$'
  check $? "$mode: three ranks continue after one aborts"
done
run --threads --size 2 --ops all_reduce --abort-at 0,1
[ $? -eq 3 ] && has '^rank 1 all_reduce iteration 1 error'
check $? 'an error without recovery exits with status 3'
TUTTI_INIT_TIMEOUT_SECONDS=1 run --rank 0 --size 2
[ $? -eq 3 ] && has '^rank 0 init error .*missing: rank 1'
check $? 'a missing rank is named'
run --rank 1 --size 2 --id "$work/nobody" --deadline 1
[ $? -eq 124 ] && has '^deadline'
check $? 'the deadline ends the process'
run --rank 0 --size 1 --kill-at 1 --ops all_reduce
[ $? -eq 137 ] && has '^rank 0 iteration 0 ok$'
check $? '--kill-at kills the process'

# processes NAME ARGS...: $size processes of one rank each; rank 2 also gets the arguments $two, and ranks
# of $narrow are limited to $addresses KiB of address space. Their output goes to $work/NAME.RANK, and
# $statuses has their exit statuses in order.
processes() {
  name=$1
  shift
  list=
  for rank in $(seq 0 $((size - 1))); do
    more=
    [ "$rank" != 2 ] || more=$two
    # shellcheck disable=SC2086
    (
      case " $narrow " in *" $rank "*) ulimit -v "$addresses" ;; esac
      exec timeout 60 "$build/tests/rank_program" --rank "$rank" --size "$size" --id "$work/$name.id" \
        "$@" $more
    ) >"$work/$name.$rank" 2>&1 &
    list="$list $!"
  done
  # shellcheck disable=SC2086
  wait_all $list
  cat "$work/$name".? >"$work/log"
}

export TUTTI_EMU=mode=threads
size=4 two='' narrow='' addresses=20000000
processes together --ops all_reduce,all_gather --rounds 2 && [ "$statuses" = '0 0 0 0 ' ] &&
  [ "$(grep -c 'operations ok$' "$work/log")" -eq 8 ] &&
  few='([0-8]|-[0-9]+)' &&
  [ "$(grep -Ec "^end descriptors (0|-[0-9]+) threads $few allocations $few\$" "$work/log")" -eq 4 ]
check $? 'four processes run twice and leave nothing behind'
two='--kill-at 1'
TUTTI_SECRET='a secret' processes killed --ops all_reduce --shrink-after-error 2 &&
  [ "$statuses" = '0 0 137 0 ' ] && [ "$(grep -c 'error 6 .*rank 2' "$work/log")" -eq 3 ] &&
  [ "$(grep -c 'all_reduce after shrink ok$' "$work/log")" -eq 3 ]
check $? 'three processes with a secret continue after one is killed'

# Guarded processes see at once that rank 2 has ended. That its connections broke comes later: then, or never.
late_news() { # what the others see, then how long they wait for the news
  rm -f "$work/news" "$work"/late.*
  (for _ in $(seq 2000); do
    grep -qs 'INFO .*has ended without leaving' "$work"/late.? && break
    sleep 0.02
  done; [ -n "$1" ] && : >"$work/news") &
  two="--kill-at 1 --late-news $work/news"
  TUTTI_EMU=mode=guarded TUTTI_STALL_SECONDS=$2 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=SHM \
    processes late --main --ops all_reduce
  : >"$work/news"
  [ "$statuses" = '3 3 137 3 ' ]
}
late_news told 60 && ! has 'nothing can move' &&
  [ "$(grep -c ' error 6 .*: rank 2 .*closed its connection without goodbye' "$work/log")" -eq 3 ]
check $? 'guarded: the loss of a rank is told, late as well, before anything is declared stuck'
late_news '' 1 && has 'waits for .* rank 2: .*; the process of rank 2 has ended' &&
  [ "$(grep -c '^rank [013] all_reduce iteration 1 error' "$work/log")" -eq 3 ]
check $? 'guarded: without such news the others end too'
two='' narrow=2
NCCL_DEBUG=INFO processes narrow
[ "$statuses" = '0 0 0 0 ' ] && [ "$(grep -c '^rank [0-3] operations ok$' "$work/log")" -eq 4 ] &&
  [ "$(grep -c 'INFO .*rank 2 (process .*cannot map memory of rank .*ulimit -v.*over the network' \
    "$work/log")" -eq 3 ] && [ "$(grep -c 'WARN .*cannot map memory' "$work/narrow.2")" -eq 1 ]
check $? 'a rank that cannot map the memory of others uses the network, and the log says why'
NCCL_NET=nowhere processes nowhere --ops all_reduce
[ "$statuses" = '3 3 3 3 ' ] &&
  [ "$(grep -c '^rank [0-3] init error .*rank 2 .*ulimit -v.*and instead: NCCL_NET=nowhere' "$work/log")" \
    -eq 4 ]
check $? 'without a network all ranks fail, and the message names both reasons'
narrow='1 3'
NCCL_DEBUG=WARN processes split --ops all_reduce,alltoall --split 2 --rounds 2
[ "$statuses" = '0 0 0 0 ' ] && [ "$(grep -c 'operations ok$' "$work/log")" -eq 8 ] &&
  [ "$(grep -c 'WARN .*rank [13] (process .*; rank [13] (process .*over the network' "$work/log")" -ge 4 ]
check $? 'two ranks that cannot map memory, and a split of the communicator, work'
size=10 narrow='0 1 2 3 4 5 6 7 8 9' addresses=1560000 # the record of calls takes 16 MiB, the watchdog 8
NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_DEBUG=WARN processes all --ops all_reduce,sendrecv
[ "$statuses" = '0 0 0 0 0 0 0 0 0 0 ' ] && [ "$(grep -c 'WARN .*over the network' "$work/log")" -eq 5 ] &&
  [ "$(grep -c 'all processes of the host of rank 4 .*over the network' "$work/log")" -eq 1 ]
check $? 'ten ranks, some with address space for only part of the others, work'

for misuse in '--size 2' '--rank 2 --size 2' '--threads --size 2 --ops none' '--threads --size 2 --bytes'; do
  # Word splitting is wanted.
  # shellcheck disable=SC2086
  run $misuse
  [ $? -eq 2 ]
  check $? "misuse is reported: $misuse"
done
[ "$failures" -eq 0 ]
