#!/bin/sh
# test_pxn.sh: messages sent through another process of the same host, because the NIC is close to the GPU
# of that process's rank (PXN): two hosts by name, two processes each, over sockets and over plugins. Prints
# one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the build at ${BUILD:-build}.
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB
unset NCCL_PXN_DISABLE NCCL_P2P_PXN_LEVEL NCCL_SHM_DISABLE NCCL_P2P_DISABLE
export NCCL_SOCKET_IFNAME=lo TUTTI_INIT_TIMEOUT_SECONDS=20 TUTTI_STALL_SECONDS=1 TUTTI_PEER_TIMEOUT_SECONDS=5
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET,PROXY

# Nodes of two GPUs, with one NIC close to the second GPU, and with one NIC per GPU.
"$tutti" topo -g 2 --nics 1 --dump "$work/one.xml" >"$work/log" 2>&1 &&
  "$tutti" topo -g 2 --nics 2 --dump "$work/two.xml" >"$work/log" 2>&1
check $? 'nodes of two GPUs are written as files'
export NCCL_TOPO_FILE="$work/one.xml"

# four COMMAND...: one process per rank; each prints how it ends, and none ends the others. True if all exit
# with 0.
four() {
  # shellcheck disable=SC2016
  timeout 60 "$tutti" launch -n 4 sh -c \
    'NCCL_HOSTID=host$((TUTTI_RANK / 2)) "$@"; echo "rank $TUTTI_RANK ends with $?"' sh "$@" \
    >"$work/log" 2>&1 </dev/null && counts '^rank [0-3] ends with 0$' 4
}

has() {
  grep -q -e "$1" "$work/log"
  noted $? "a line like $1"
}

# counts TEXT NUMBER: NUMBER lines of the last command's output have the text.
counts() {
  counted=$(grep -c -e "$1" "$work/log")
  [ "$counted" -eq "$2" ]
  noted $? "$2 lines like $1, of which there are $counted"
}

# carried_by_pxn NUMBER: NUMBER connections went through another process, and each carried data.
carried_by_pxn() {
  counts 'whose process [0-9]* sends it (PXN)' "$1" && counts '(PXN) ends after [1-9][0-9]* slices' "$1" &&
    ! has '(PXN) ends after 0 slices'
}

# some: at least one connection went through another process, and each of them carried data.
some() {
  number=$(grep -c 'sends it (PXN)' "$work/log")
  [ "$number" -gt 0 ] && carried_by_pxn "$number"
}

# ---- every collective, results checked by the bench
for mode in threads guarded; do
  export TUTTI_EMU=mode=$mode
  for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall; do
    four "$tutti" bench "$collective" -b 8 -e 256K -f 32 -w 0 -n 1 && some
    check $? "$mode: $collective through the rank close to the NIC gives right results"
  done
done
export TUTTI_EMU=mode=threads
# shellcheck disable=SC2016
four sh -c 'exec "$0" --rank "$TUTTI_RANK" --size 4 --id "$1" --rounds 3' "$build/tests/rank_program" \
  "$work/id" && some && counts 'destroy ok$' 12 &&
  counts '^end descriptors \(0\|-[0-9]*\) threads \(-[0-9]*\|[0-8]\) ' 4
check $? 'three communicators, one after another, leave nothing behind'

# ---- the choice of the proxy process
four "$tutti" bench alltoall -b 64K -e 64K -w 0 -n 1 && ! has ': 1 -> [23] goes by' &&
  has ': 0 -> 2 goes by device 0 at the side of rank 1, ' &&
  has ': 0 -> 3 goes by device 0 at the side of rank 1, ' &&
  has ': 2 -> 0 goes by device 0 at the side of rank 3, '
check $? 'the rank close to the only NIC of a host sends for the other'
plugin=$build/tests/plugins/libnccl-net-loopback11.so
NCCL_TOPO_FILE="$work/two.xml" NCCL_NET_PLUGIN=$plugin four "$tutti" bench alltoall -b 64K -e 64K -w 0 -n 1 &&
  has ': 0 -> 3 goes by device 1 at the side of rank 1, ' &&
  has ': 1 -> 2 goes by device 0 at the side of rank 0, ' &&
  has ': 2 -> 1 goes by device 1 at the side of rank 3, ' && ! has ': 0 -> 2 goes by' && some
check $? 'with one NIC per GPU, messages take the rail of their receiver'
# by_itself DESCRIPTION NAME=VALUE...: every rank sends its own messages, with right results.
by_itself() {
  description=$1
  shift
  four env "$@" "$tutti" bench alltoall -b 64K -e 64K -w 0 -n 1 && carried_by_pxn 0
  check $? "every rank sends its own messages: $description"
}
by_itself 'NCCL_PXN_DISABLE=1' NCCL_PXN_DISABLE=1
by_itself 'NCCL_P2P_PXN_LEVEL=0' NCCL_P2P_PXN_LEVEL=0
by_itself 'NCCL_P2P_PXN_LEVEL=1, with a NIC of its own' NCCL_P2P_PXN_LEVEL=1 NCCL_TOPO_FILE="$work/two.xml" \
  NCCL_NET_PLUGIN="$plugin"
by_itself 'nobody says where the NICs are' -u NCCL_TOPO_FILE
by_itself 'the network has other NICs than the file' NCCL_TOPO_FILE="$work/two.xml"
by_itself 'processes that share no memory' NCCL_SHM_DISABLE=1 NCCL_P2P_DISABLE=1

# ---- the rank close to the NIC is busy, or has ended
pxn_host() {
  rm -rf "$work/marks"
  mkdir "$work/marks"
  four "$build/tests/pxn_program" "$1" "$work/marks"
}
for mode in threads guarded; do
  export TUTTI_EMU=mode=$mode
  for option in stay destroy exit; do
    pxn_host "$option" && counts '^rank [0-3] ok$' 4 && carried_by_pxn 1
    check $? "$mode: rank 1 sends for rank 0 throughout: $option"
  done
  pxn_host quit
  has '^rank 1 ends with 137$' && has '^rank 0 error .*rank [012]' && has '^rank 2 error .*rank [012]'
  check $? "$mode: sender and receiver get an error if the process between them is killed"
done
pxn_host idle && carried_by_pxn 1 &&
  awk '/^rank 1 idle / { spent = $4; seen = 1 } END { exit !(seen && spent < 0.05) }' "$work/log"
check $? 'an idle PXN proxy uses less than 5 % of a core'

# The last of rank 0's messages, two slices each, is lost.
NCCL_NET_PLUGIN=$build/lib/libtutti-net-fault.so TUTTI_NET_FAULTS=fault=drop,fault_at=24 \
  TUTTI_EMU=mode=threads TUTTI_NET_PATIENCE_SECONDS=1 pxn_host idle
has '^rank 2 error .*: message 23 of connection 0 -> 2, .* has not come, though the network took it'
check $? 'a message lost after a PXN proxy is named'

# ---- failures
# all_are_past_1: a process that waits for $work/go continues when every rank has ended iteration 1.
all_are_past_1() {
  until [ -e "$work/go" ] || [ "$(grep -c '^rank [0-3] iteration 1 ok$' "$work/log")" = 4 ]; do
    sleep 0.05
  done
  : >"$work/go"
}

# killed RANK: kills it when all others are entering iteration 2.
# shellcheck disable=SC2016
killed() {
  rm -f "$work/id" "$work/go"
  : >"$work/log"
  all_are_past_1 &
  watcher=$!
  four sh -c 'more=; [ "$TUTTI_RANK" != "$2" ] || more="--hold 2,$3 --kill-at 2"
    exec "$0" --rank "$TUTTI_RANK" --size 4 --id "$1" --ops alltoall --bytes 1000000 $more' \
    "$build/tests/rank_program" "$work/id" "$1" "$work/go"
  : >"$work/go"
  wait "$watcher"
}
for rank in 0 1; do
  killed $rank
  counts 'ends with 137$' 1 && counts 'ends with 3$' 3 && counts 'alltoall iteration 2 error 6 .*' 3
  check $? "rank $rank is killed: all others get an error"
done
rm -f "$work/id"
# shellcheck disable=SC2016
NCCL_NET_PLUGIN=$build/lib/libtutti-net-fault.so TUTTI_NET_FAULTS=fault=reset,fault_at=9 four sh -c \
  'exec "$0" --rank "$TUTTI_RANK" --size 4 --id "$1" --ops alltoall --bytes 1000000' \
  "$build/tests/rank_program" "$work/id"
counts 'ends with 3$' 4 && counts '^rank [0-3] alltoall iteration [012] error 6 ' 4
check $? 'a connection that breaks at a PXN proxy fails the communicator on all ranks'
[ "$failures" -eq 0 ]
