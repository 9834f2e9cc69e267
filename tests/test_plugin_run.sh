#!/bin/sh
# test_plugin_run.sh: processes with different host ids, connected over network plugins: every version of
# the interface, chosen by path and by name; unusable plugins; and networks that fail during operations.
# Prints one `ok - ` or `not ok - ` line per check and fails if a check failed. Finds the build at
# ${BUILD:-build}.
# runner: 14 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti
plugins=$build/tests/plugins
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB
export NCCL_SOCKET_IFNAME=lo TUTTI_INIT_TIMEOUT_SECONDS=20 TUTTI_STALL_SECONDS=1 TUTTI_PEER_TIMEOUT_SECONDS=5

# hosts COUNT COMMAND...: one process per host, each with its own host id. True if all exit with 0.
hosts() {
  count=$1
  shift
  # shellcheck disable=SC2016
  timeout 60 "$tutti" launch -n "$count" sh -c 'NCCL_HOSTID=host$TUTTI_RANK exec "$@"' sh "$@" \
    >"$work/log" 2>&1 </dev/null
}

has() {
  grep -q -e "$1" "$work/log"
  noted $? "a line like $1"
}

# said COUNT TEXT: COUNT lines of the last command's output have the text.
said() {
  [ "$(grep -c -e "$2" "$work/log")" -eq "$1" ]
}

# bench COLLECTIVE FLAGS...: runs on two hosts; the bench checks results.
bench() { hosts 2 "$tutti" bench "$@" -w 0 -n 1 -q; }

# ---- every version of the interface
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET
# carries VERSION COLLECTIVE FLAGS...: runs a collective over this version, and the log says which plugin is
# used.
carries() {
  version=$1
  shift
  NCCL_NET_PLUGIN=$plugins/libnccl-net-loopback$version.so bench "$@" -b 8 -e 256K -f 32 &&
    said 2 'Network Loopback, 2 devices (loop0, loop1): a plugin comes before our own networks' &&
    said 2 "'Loopback', version $version of the interface"
}

for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  carries 11 "$collective" --threads
  check $? "$collective between hosts works over a plugin"
done
for version in 6 7 8 9 10 12; do
  carries "$version" all_reduce --threads && carries "$version" alltoall --threads
  check $? "version $version of the plugin interface works"
done
carries 12 all_reduce && carries 10 alltoall
check $? 'a plugin works in guarded mode'
NCCL_NET_PLUGIN=loopback12 LD_LIBRARY_PATH=$plugins NCCL_NET=loopback bench all_reduce --threads &&
  said 2 'Network Loopback, 2 devices (loop0, loop1): NCCL_NET names it'
check $? 'a plugin is chosen by its name, and the network by its name'
NCCL_NET_PLUGIN=$plugins/libnccl-net-loopback11.so NCCL_NET=Socket bench all_reduce --threads &&
  said 2 'Network Loopback is left out: NCCL_NET names Socket' && said 2 'Network Socket, .*NCCL_NET names it'
check $? 'NCCL_NET=Socket disables a plugin'
# shellcheck disable=SC2016
TUTTI_EMU=mode=threads NCCL_NET_PLUGIN=$plugins/libnccl-net-loopback12.so hosts 4 sh -c \
  'exec "$0" --rank "$TUTTI_RANK" --size 4 --id "$1" --rounds 2' "$build/tests/rank_program" "$work/four" &&
  said 8 'destroy ok$' && said 4 '^end descriptors 0 threads [0-8] '
check $? 'four hosts run over a plugin twice and leave nothing behind'
# classed VERSION CLASS: two hosts whose communicator asks for class 43, and whose plugin expects CLASS.
# shellcheck disable=SC2016
classed() {
  TUTTI_EMU=mode=threads NCCL_NET_PLUGIN=$plugins/libnccl-net-loopback$1.so LOOPBACK_CLASS=$2 \
    hosts 2 sh -c 'exec "$0" --rank "$TUTTI_RANK" --size 2 --id "$1" --class 43' "$build/tests/rank_program" \
    "$work/class$1-$2"
}
for version in 10 11 12; do
  classed $version 43 && said 2 'destroy ok$' && ! classed $version 44 &&
    has 'another traffic class was set' || break
done
[ $version = 12 ] && has 'another traffic class was set'
check $? 'a plugin is told the traffic class of a communicator'

# ---- unusable plugins
for row in '0:it has no table' '3:init fails with' '4:Network Broken is left out: it has 0 devices' \
  '6:undefined symbol'; do
  NCCL_NET_PLUGIN=$plugins/libnccl-net-broken${row%%:*}.so bench all_reduce -e 8 --threads &&
    has "${row#*:}" && said 2 'Network Socket, 1 device (lo): the default, as no plugin is in use'
  check $? "an unusable plugin is replaced by sockets: ${row#*:}"
done
NCCL_NET=Nonsense bench all_reduce -e 8 --threads
[ $? -eq 1 ] && has 'NCCL_NET=Nonsense: no network of this name can be used here; there is: .*Socket'
check $? 'an unknown network name is an error that says so'
# shellcheck disable=SC2016
hosts 2 sh -c '[ "$TUTTI_RANK" = 1 ] || NCCL_NET_PLUGIN=$1 && export NCCL_NET_PLUGIN
  exec "$0" bench all_reduce -e 8 --threads' "$tutti" "$plugins/libnccl-net-loopback11.so"
[ $? -eq 1 ] &&
  has 'rank [01] of comm .* uses network [A-Z][a-z]* and rank [01] .* network [A-Z][a-z]*; give all'
check $? 'processes that chose different networks are told so'
unset NCCL_DEBUG NCCL_DEBUG_SUBSYS

# ---- a network that fails
# fault_net KIND AT ARGS...: two hosts of rank_program over this library's sockets with a fault; $statuses
# has their exit statuses in order, and $work/log their output.
fault_net() {
  kind=$1
  at=$2
  shift 2
  rm -f "$work/id"
  list=
  for rank in 0 1; do
    NCCL_HOSTID=host$rank NCCL_NET_PLUGIN=$build/lib/libtutti-net-fault.so \
      TUTTI_NET_FAULTS=fault=$kind,fault_at=$at timeout 60 "$build/tests/rank_program" --rank $rank --size 2 \
      --id "$work/id" --deadline 30 "$@" >"$work/rank.$rank" 2>&1 &
    list="$list $!"
  done
  # shellcheck disable=SC2086
  wait_all $list
  cat "$work"/rank.? >"$work/log"
}

# broken KIND TEXT: both ranks get an error that names a rank, and one of them names the fault. Later
# messages of one large operation reveal lost messages before them.
broken() {
  fault_net "$1" 5 --bytes 8000000 --ops sendrecv
  [ "$statuses" = '3 3 ' ] && grep -q 'rank 0 sendrecv .*error [1-9].*rank [01]' "$work/rank.0" &&
    grep -q 'rank 1 sendrecv .*error [1-9].*rank [01]' "$work/rank.1" && has "$2"
  check $? "$TUTTI_EMU: $1: both ranks get an error, and one names the fault"
}

for mode in guarded threads; do
  export TUTTI_EMU=mode=$mode
  fault_net hold 5 --bytes 20000 --ops all_reduce,sendrecv && [ "$statuses" = '0 0 ' ] && said 2 'destroy ok$'
  check $? "$TUTTI_EMU: a late message does no harm"
  broken drop 'message [0-9]* from rank [01], .* was lost: .*network FaultNet is faulty'
done
broken duplicate 'an older one was repeated: .*network FaultNet is faulty'
broken reset "failed (.*channel 0): network plugin 'FaultNet'"
broken cut "failed (.*channel 0): network plugin 'FaultNet'"
[ "$failures" -eq 0 ]
