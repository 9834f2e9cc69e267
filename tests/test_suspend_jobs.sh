#!/bin/sh
# test_suspend_jobs.sh: communicators of several processes are suspended and resumed: over shared memory, with
# slots at their sender, and over sockets; nothing is held meanwhile; and processes that do something else, do
# not come, or die. Prints one `ok - ` or `not ok - ` line per check.
# runner: 12 s, waits
. "$(dirname "$0")/script.inc"
use_build
export TUTTI_INIT_TIMEOUT_SECONDS=30 TUTTI_EMU=mode=threads NCCL_SOCKET_IFNAME=lo
# shellcheck source=tests/grow.inc
. "$here/grow.inc"

# ---- results, and what is held

turn='sum:0 sum:0 sum:0 suspend:0 resume:0'
# shellcheck disable=SC2086
for mode in guarded threads; do
  export TUTTI_EMU=mode=$mode
  for option in '' NCCL_P2P_READ_ENABLE=1 'NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1'; do
    for setting in $option; do export "${setting?}"; done
    renew
    start a 0 init:0:0:3:id $turn $turn $turn sum:0 end:0
    start b 1 init:0:1:3:id $turn $turn $turn sum:0 end:0 -- 2 init:0:2:3:id $turn $turn $turn sum:0 end:0
    ended
    all_ok a b && [ "$(grep -c '^sum:0 ok' "$work/log")" -eq 30 ]
    check $? "$mode${option:+, $option}: sums of three ranks in two processes are right after each time"
    for setting in $option; do unset "${setting%=*}"; done
  done
done

renew
TUTTI_EMU=mode=guarded # in threads the emulator keeps a changing number of threads
turn='sum:0 suspend:0 resume:0 sum:0 suspend:0 resume:0 sum:0 suspend:0 resume:0 sum:0 suspend:0 resume:0'
all="$turn sum:0 suspend:0 count resume:0 $turn $turn $turn sum:0 suspend:0 count:8"
# shellcheck disable=SC2086
for option in 0 1; do
  export NCCL_P2P_READ_ENABLE=$option
  start a 0 init:0:0:2:id $all end:0
  start b 1 init:0:1:2:id $all end:0
  ended
  all_ok a b && [ "$(grep -c '^count:8 ok' "$work/log")" -eq 2 ]
  check $? "NCCL_P2P_READ_ENABLE=$option: suspending twelve times leaves no block of memory each time"
  renew
done
unset NCCL_P2P_READ_ENABLE

renew
start a 0 init:0:0:2:id sum:0 split:0:1 sum:1 suspend:0 sum:1 sum:0 suspend:1 resume:0 sum:0 resume:1 sum:1 \
  end:1 end:0
start b 1 init:0:1:2:id sum:0 split:0:1 sum:1 suspend:0 sum:1 sum:0 suspend:1 resume:0 sum:0 resume:1 sum:1 \
  end:1 end:0
ended
for name in a b; do
  [ "$(grep -c ' error ' "$work/$name")" -eq 1 ] &&
    has $name '^sum:0 error 5: ncclAllReduce: rank . .* is suspended; call ncclCommResume' || break
done && [ "$(grep -c '^sum:1 ok' "$work/log")" -eq 6 ]
check $? 'a split communicator goes on while the other one is suspended'

renew
TUTTI_EMU=mode=threads
"$build/bin/tutti" topo -g 2 --nics 1 --dump "$work/one.xml" >"$work/log" 2>&1
export NCCL_TOPO_FILE="$work/one.xml" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET,PROXY
turn='sum:0 sum:0 suspend:0 resume:0'
rank=0
for name in a b c d; do
  # shellcheck disable=SC2086
  NCCL_HOSTID=host$((rank / 2)) start $name $((rank % 2)) init:0:$rank:4:id $turn $turn sum:0 suspend:0 end:0
  rank=$((rank + 1))
done
ended
all_ok a b c d && [ "$(grep -c 'sends it (PXN)' "$work/log")" -gt 2 ]
check $? 'sums that another process sends (PXN) are right after each time'
unset NCCL_TOPO_FILE NCCL_DEBUG NCCL_DEBUG_SUBSYS

renew
start a 0 init:0:0:2:id sum:0 suspend:0 touch:suspended end:0
start b 1 init:0:1:2:id sum:0 suspend:0 wait:suspended abort:0
ended
all_ok a b
check $? 'a suspended communicator may be destroyed and aborted'

# ---- wrong programs

TUTTI_EMU=mode=threads
renew
start a 0 init:0:0:2:id sum:0 suspend:0 sum:0 suspend:0 resume:0 sum:0 end:0
start b 1 init:0:1:2:id sum:0 split:0:1 sum:0 suspend:0 resume:0 sum:0 end:0
ended
for name in a b; do
  has $name '^\(suspend:0\|split:0:1\) error 5: .*rank [01] (process .*makes another call; do' || break
done && [ "$(grep -c '^sum:0 ok' "$work/log")" -eq 6 ]
check $? 'ranks that make another call are named, and the communicator goes on'

renew
TUTTI_INIT_TIMEOUT_SECONDS=1 start a 0 init:0:0:2:id sum:0 suspend:0 touch:late sum:0 suspend:0 resume:0 \
  sum:0 end:0
start b 1 init:0:1:2:id sum:0 wait:late sum:0 suspend:0 resume:0 sum:0 end:0
ended
has a '^suspend:0 error 6: .*1 of 2 ranks came within 1 seconds; missing: rank 1' &&
  [ "$(grep -c '^sum:0 ok' "$work/log")" -eq 6 ]
check $? 'a rank that does not come is named, and the communicator goes on'

renew
told a 0 init:0:0:3:id sum:0 suspend:0 resume:0 abort:0
start b 1 init:0:1:3:id sum:0 suspend:0 resume:0 abort:0
start c 2 init:0:2:3:id sum:0 wait:die die
tries=0 # the first time they came for ncclCommInitRank
until [ "$(grep -c 'has come: 2 of 3 ranks' "$work/a")" -ge 2 ] || [ $tries -ge 600 ]; do
  sleep 0.05
  tries=$((tries + 1))
done
: >"$work/die"
ended
gone='failed \(meanwhile\|earlier\) (rank 2 (process .*closed its connection without goodbye'
root_gone='rank 0 has failed before all 3 ranks had come' # if rank 0, which gathers them, saw it first
has a "^suspend:0 error 6: .*$gone" '^abort:0 ok' &&
  has b "^suspend:0 error 6: .*\($gone\|$root_gone\)" '^abort:0 ok'
check $? 'a process that dies while the others suspend is named at once'

renew
start a 0 init:0:0:3:id sum:0 suspend:0 touch:away0 resume:0 end:0
start b 1 init:0:1:3:id sum:0 suspend:0 touch:away1 resume:0 end:0
start c 2 init:0:2:3:id sum:0 suspend:0 wait:away0 wait:away1 die
ended
has a "^resume:0 error 6: .*$gone" '^end:0 ok' && has b "^resume:0 error 6: .*$gone" '^end:0 ok'
check $? 'a process that dies while it is suspended is named'

# ---- records

renew
export NCCL_DEBUG=NONE TUTTI_EMU=mode=guarded TUTTI_STALL_SECONDS=1
start a 0 init:0:0:2:id sum:0 suspend:0 resume:0 sum:0 sum:0
start b 1 init:0:1:2:id sum:0 suspend:0 resume:0 sum:0 wait:never
explained '^rank 1 .*has not called operation #2 .*for which '
check $? 'tutti explain names the rank that does not call after it was resumed'
# shellcheck disable=SC2086
kill -KILL $processes
# shellcheck disable=SC2086
wait_all $processes
for trace in "$work"/*.trace; do "$build/bin/tutti" trace dump "$trace"; done >"$work/log" 2>&1
[ "$(grep -c 'life.*suspend' "$work/log")" -eq 2 ] && [ "$(grep -c 'life.*resume' "$work/log")" -eq 2 ]
check $? 'the records say when it was suspended and resumed'
timeout 60 "$build/bin/tutti" replay "$work"/*.trace >"$work/log" 2>&1 &&
  grep -q '^reached: ' "$work/log"
check $? 'tutti replay repeats a run in which a communicator was suspended'

exit "$failures"
