#!/bin/sh
# test_profiler.sh: profiler plugins (NCCL_PROFILER_PLUGIN) of each version of the interface get the events of
# groups, calls, operations and launches, with their parents; those that fail are named and left. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the build at ${BUILD:-build}.
# runner: 5 s
. "$(dirname "$0")/script.inc"
use_build
plugins=$build/tests/plugins
unset NCCL_PROFILER_PLUGIN NCCL_NET_PLUGIN TUTTI_TEST_INIT
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=PROFILE

said() {
  [ "$(grep -c -e "$2" "$work/log")" -eq "$1" ]
  noted $? "$1 lines like $2"
}
bench() {
  timeout 60 "$build/bin/tutti" bench "$@" -g 2 -w 0 -n 3 >"$work/log" 2>&1 </dev/null
}

# Out of place and in place, three times each, on two ranks.
for version in 1 2 3 4 5 6; do
  export NCCL_PROFILER_PLUGIN="$plugins/libnccl-profiler-test$version.so"
  [ $version -le 4 ] && parent=1 || parent=512
  [ $version -ge 4 ] && inits=2 || inits=0
  NCCL_ALGO=Ring NCCL_PROTO=LL bench all_reduce -b 4K -e 4K -c 0 &&
    said 1 "Profiler plugin .*: 'Test', version $version of the interface" &&
    said $inits 'test profiler: init of rank' && said 2 'test profiler: end after' &&
    said 6 "rank 0 coll AllReduce of 1024 ncclFloat32, RING over LL, parent $parent\$" &&
    said 6 "rank 1 coll AllReduce of 1024 ncclFloat32, RING over LL, parent $parent\$" &&
    said 12 'test profiler: stop 2$' && said 12 'test profiler: stop 1$' && said 0 'stopped before'
  check $? "version $version: each collective is an event, also where calls repeat"
  if [ $version -le 4 ]; then
    said 6 'rank 0 event 1, parent 0' && said 0 'event 256' && said 0 ' api ' &&
      bench sendrecv -b 4K -e 4K -c 0 &&
      said 3 'rank 0 p2p Send of 1024 ncclFloat32, peer 1, parent 1$' &&
      said 3 'rank 0 p2p Recv of 1024 ncclFloat32, peer 1, parent 1$'
    check $? "version $version has groups and operations, and no events of calls"
    continue
  fi
  said 6 'rank 0 event 256, parent 0' && said 12 'event 256 is in state 23' && said 12 'stop 256$' &&
    said 12 'event 256 is in state 24' && said 6 'rank 1 event 2048, parent 256' && said 12 'stop 2048$' &&
    said 6 'rank 0 api AllReduce of 1024 ncclFloat32, parent 256' && said 12 'stop 512$'
  check $? "version $version: groups, calls and launches are events, with their parents"
  bench sendrecv -b 4K -e 4K -c 0 &&
    said 3 'rank 0 p2p Send of 1024 ncclFloat32, peer 1, parent 1024' &&
    said 3 'rank 0 p2p Recv of 1024 ncclFloat32, peer 1, parent 1024' &&
    said 3 'rank 0 event 256, parent 0' &&
    said 6 'rank 1 api \(Send\|Recv\) of 1024 ncclFloat32, parent 256'
  check $? "version $version: the messages of a group are events of one group"
done
for collective in all_gather reduce_scatter broadcast reduce alltoall gather scatter; do
  bench $collective -b 4K -e 4K && said 0 'stopped before' &&
    [ "$(grep -c 'test profiler: rank . event 256' "$work/log")" = "$(grep -c 'stop 256$' "$work/log")" ] &&
    [ "$(grep -c 'test profiler: rank . coll' "$work/log")" = "$(grep -c 'stop 2$' "$work/log")" ]
  check $? "$collective: every event that begins ends once"
done
bench all_reduce -b 4K -e 4K -c 0 --threads && said 6 'rank 1 coll AllReduce of 1024' &&
  said 6 'rank 1 event 2048, parent 256'
check $? 'calls that would be launched from the call cache are events too'
NCCL_PROFILER_PLUGIN=test5 LD_LIBRARY_PATH=$plugins bench all_reduce -b 4K -e 4K &&
  said 1 "Profiler plugin libnccl-profiler-test5.so: 'Test'"
check $? 'a plugin is found by its name'

# ---- plugins that fail
NCCL_PROFILER_PLUGIN=$plugins/libnccl-profiler-test0.so bench all_reduce -b 4K -e 4K &&
  said 1 'libnccl-profiler-test0.so is left out: it has no table of version 1 to 6' && said 0 'test profiler'
check $? 'a plugin of an unknown version is named and left'
TUTTI_TEST_INIT=1 bench all_reduce -b 4K -e 4K && said 0 'test profiler:' &&
  said 2 "rank . of comm .* profiler plugin 'Test' .* is left out: its init fails with 2"
check $? 'a plugin whose init fails is named and left'
NCCL_PROFILER_PLUGIN=nonsense bench all_reduce -b 4K -e 4K &&
  said 1 "NCCL_PROFILER_PLUGIN: 'nonsense' cannot be loaded: nonsense: .*libnccl-profiler-nonsense.so"
check $? 'a name that is no plugin is named'
[ $failures -eq 0 ]
