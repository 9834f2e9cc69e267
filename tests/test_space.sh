#!/bin/sh
# test_space.sh: shortages: two processes in a control group with little memory, under limits on file size,
# and with a full disk for every file that the library writes. Guarantees: no process crashes or is killed
# for shared memory; it continues, or fails with a message that names the missing resource and the fix.
# Prints one `ok - `, `not ok - ` or `skip: ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
group=
trap '[ -z "$group" ] || rmdir "$group"; rm -rf "$work"' EXIT
trap 'exit 129' HUP INT TERM
export NCCL_SOCKET_IFNAME=lo TUTTI_INIT_TIMEOUT_SECONDS=20
traces=$TUTTI_TRACE

# pair BEFORE ARGS...: two processes of one rank each that first run BEFORE, a piece of shell. $statuses has
# their exit statuses.
pair() {
  before=$1
  shift
  list=
  rm -f "$work/id"
  for rank in 0 1; do
    sh -c "$before"' exec "$@"' sh timeout 60 "$build/tests/rank_program" --rank "$rank" --size 2 \
      --id "$work/id" "$@" >"$work/rank.$rank" 2>&1 &
    list="$list $!"
  done
  # shellcheck disable=SC2086
  wait_all $list
  cat "$work/rank.0" "$work/rank.1" >"$work/log"
}

# ---- memory ----

# A control group for this test, inside the current one; $limit is the file with its memory limit.
group_make() {
  own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
  if [ -n "$own" ]; then
    group=/sys/fs/cgroup/memory$own/tutti-space-$$ limit=memory.limit_in_bytes
  else
    group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/tutti-space-$$ limit=memory.max
  fi
  if ! mkdir "$group" 2>/dev/null; then
    group=
    return 1
  fi
  [ -w "$group/$limit" ]
}

# Messages if memory is missing; right results if it is not.
enough() { [ "$statuses" = '0 0 ' ]; }
said() {
  needed='memory for a connection of [0-9]+ bytes: shared memory: [0-9.]+ MiB are needed, [0-9.]+ MiB'
  needed="$needed are left of this container or control group"
  other='|that process has no memory for an answer, or cannot start a thread: raise its limit of memory,)'
  [ "$statuses" = '3 3 ' ] &&
    [ "$(grep -Ec "error [26] .*($needed: raise its memory limit$other" "$work/log")" -ge 2 ] &&
    [ "$(grep -Ec '^end descriptors 0 threads (-[0-9]+|[0-8]) ' "$work/log")" -eq 2 ]
}

# For a process's private memory the kernel may kill it; then the other process reports the loss.
killed() {
  case "$statuses" in '137 3 ' | '3 137 ' | '137 137 ') ;; *) return 1 ;; esac
  [ "$statuses" = '137 137 ' ] || grep -q 'error 6 .*closed its connection without goodbye' "$work/log"
}

if group_make; then
  join="echo \$\$ >$group/cgroup.procs;"
  export TUTTI_EMU=mode=threads TUTTI_TRACE=off # a record of calls would count towards the limit
  echo 100000000 >"$group/$limit"
  pair "$join" --ops all_reduce,alltoall && enough
  check $? 'a control group with enough memory works'
  echo 3000000 >"$group/$limit"
  NCCL_DEBUG=WARN pair "$join" --ops all_reduce,alltoall && said &&
    [ "$(grep -c 'NCCL WARN rank 0 of comm .*memory for a connection' "$work/rank.0")" -le 2 ]
  check $? 'a control group without memory for small buffers: both ranks fail and name the shortage'
  for megabytes in 30 60 70; do # for none of the two, and for one of them
    echo "$megabytes"000000 >"$group/$limit"
    NCCL_BUFFSIZE=33554432 pair "$join" --ops all_reduce --bytes 100000 && said
    check $? "$megabytes MB for two buffers of 32 MiB allocated at once: both ranks fail, and none is killed"
  done
  for mode in guarded threads; do # somewhere among these what is needed begins to suffice
    result=0
    for kilobytes in 5000 6000 7000 8000; do
      echo "$kilobytes"000 >"$group/$limit"
      TUTTI_EMU=mode=$mode pair "$join" --iterations 1
      enough || said || killed || {
        result=1
        echo "$kilobytes kB: $statuses" >>"$work/log"
        break
      }
    done
    check $result "$mode: limits just below and above the needed memory work or fail with a message"
  done
else
  echo 'skip: memory of a control group: none can be made here (root, and a memory controller)'
fi

# Address space: a sentence, whatever is missing first.
addresses_all=0
for kilobytes in 8000 12000 16000 20000 24000 32000 48000; do
  (ulimit -v "$kilobytes" && exec timeout 60 "$build/tests/rank_program" --threads --size 2) \
    >"$work/log" 2>&1 && continue
  [ -s "$work/log" ] || addresses_all=1
done
check $addresses_all 'a program with too few addresses says so, however few they are'

export TUTTI_TRACE=$traces
for mode in guarded threads; do
  export TUTTI_EMU=mode=$mode
  # Blocks: too few for memory that others map, so the two ranks use the network.
  NCCL_DEBUG=INFO pair 'ulimit -f 100;' --ops all_reduce,alltoall --iterations 1 && enough &&
    grep -q 'INFO .*shares no memory with other processes, and takes the network: .*ulimit -f' "$work/log" &&
    grep -q 'INFO Network Socket' "$work/log"
  check $? "$mode: with files of at most 50 KiB the network is used, and the log says why"
done
unset TUTTI_EMU

# ---- a full disk ----

if ! unshare -m true 2>/dev/null; then
  echo 'skip: a full disk: this kernel or container lets nobody mount one'
  [ "$failures" -eq 0 ]
  exit
fi
mkdir "$work/disk"

# on_disk KIBIBYTES CMD...: runs CMD with $disk, a disk with that much free of 64 KiB. $status is its exit
# status.
disk=$work/disk
on_disk() {
  left=$1
  shift
  # shellcheck disable=SC2016
  timeout 60 unshare -m sh -c 'mount -t tmpfs -o size=64k tmpfs "$1" &&
    dd if=/dev/zero of="$1/full" bs=1024 count=$((64 - $2)) 2>/dev/null; left=$2; shift 2; "$@"; status=$?
    ls "$0" >"$0/../left" 2>/dev/null; exit $status' "$disk" "$disk" "$left" "$@" \
    >"$work/log" 2>"$work/errors"
  status=$?
  cat "$work/errors" >>"$work/log"
}
error_says() { grep -q "$1" "$work/errors"; }

gather=$build/examples/all_gather_v
for left in 0 20; do
  TUTTI_EVENTS=$disk/trace on_disk "$left" "$gather"
  [ "$status" -eq 0 ] && grep -q '^ok$' "$work/log" &&
    error_says "trace .*disk/trace: No space left on device; the trace is cut short here"
  check $? "TUTTI_EVENTS with $left KiB: the run continues, and says that the trace is truncated"
  NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=ALL NCCL_DEBUG_FILE=$disk/log on_disk "$left" "$gather"
  [ "$status" -eq 0 ] && grep -q '^ok$' "$work/log" &&
    [ "$(grep -c 'NCCL_DEBUG_FILE: lines of the log are lost: No space left' "$work/errors")" -eq 1 ]
  check $? "NCCL_DEBUG_FILE with $left KiB: the run continues, and says once that lines are lost"
done
TUTTI_EMU=devices=16,nodes=2 NCCL_DEBUG=WARN NCCL_TOPO_DUMP_FILE=$disk/topo NCCL_GRAPH_DUMP_FILE=$disk/graph \
  on_disk 0 "$gather"
[ "$status" -eq 0 ] && grep -q 'WARN .*disk/topo: cannot be written: No space left' "$work/log" &&
  grep -q 'WARN .*disk/graph: cannot be written: No space left' "$work/log" &&
  [ "$(cat "$work/left")" = full ]
check $? 'NCCL_TOPO_DUMP_FILE and NCCL_GRAPH_DUMP_FILE: one warning each, and the run continues'
on_disk 0 "$tutti" bench all_reduce -b 1K -e 4K --ranks 4 -J "$disk/json"
[ "$status" -eq 3 ] && error_says 'output_file .*disk/json: cannot be written: No space left'
check $? 'tutti bench -J reports a full disk'
on_disk 0 "$tutti" bench all_reduce -b 1K -e 1K --ranks 2 --tune "$disk/tune"
[ "$status" -eq 3 ] && error_says 'tune .*disk/tune: cannot be written: No space left' &&
  [ "$(cat "$work/left")" = full ]
check $? 'tutti bench --tune reports a full disk and leaves no file behind'
TUTTI_EVENTS=$disk/trace on_disk 0 "$tutti" bench all_reduce -b 1K -e 1K --ranks 2
[ "$status" -eq 3 ] && error_says 'trace .*disk/trace: .*No space left'
check $? 'tutti bench with a trace reports a full disk'
for verb in 'bench all_reduce -b 1K -e 1K --ranks 2' 'check all_reduce --ranks 4' 'explain plan all_reduce' \
  topo 'launch -n 2 --prefix echo' 'help params'; do
  # shellcheck disable=SC2016,SC2086
  on_disk 0 sh -c 'out=$1; shift; "$@" >"$out"' sh "$disk/out" "$tutti" $verb
  [ "$status" -eq 3 ] && error_says 'standard output cannot be written; is the disk full'
  check $? "tutti $verb reports a full disk"
done
[ "$failures" -eq 0 ]
