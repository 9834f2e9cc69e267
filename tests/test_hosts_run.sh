#!/bin/sh
# test_hosts_run.sh: communicators over several hosts, through the public API only: hosts made of network
# namespaces with two processes each, every collective checked, split across hosts, and every setting that
# changes the transport. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 16 s, waits
. "$(dirname "$0")/script.inc"
. "$here/hosts.inc"
use_build
hosts_or_skip 'several hosts'
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY TUTTI_SECRET
export TUTTI_INIT_TIMEOUT_SECONDS=20
root_at=10.99.0.1
port=7800

# over HOSTS COMMAND...: two processes per host, ranks numbered host by host, root at the first. The output
# of rank R goes to $work/rank.R, all together to $work/log. True if all exit with 0.
over() {
  over_hosts=$1
  shift
  port=$((port + 1))
  list=
  rank=0
  rm -f "$work"/rank.?
  while [ "$rank" -lt $((2 * over_hosts)) ]; do
    hosts_start $((rank / 2 + 1)) env TUTTI_SIZE=$((2 * over_hosts)) TUTTI_RANK=$rank TUTTI_LOCAL_SIZE=2 \
      TUTTI_LOCAL_RANK=$((rank % 2)) TUTTI_RENDEZVOUS="$root_at:$port" TUTTI_JOB=$port timeout 60 "$@" \
      >"$work/rank.$rank" 2>&1 </dev/null
    list="$list $hosts_started"
    rank=$((rank + 1))
  done
  status=0
  for process in $list; do wait "$process" || status=$?; done
  cat "$work"/rank.? >"$work/log"
  return $status
}

has() {
  grep -q -e "$1" "$work/log"
  noted $? "a line like $1"
}

# bench HOSTS COLLECTIVE FLAGS...: runs the bench, which checks results, sizes from 8 B to 1 MiB.
bench() {
  bench_hosts=$1
  shift
  over "$bench_hosts" "$build/bin/tutti" bench "$@" -b 8 -e 1M -f 362 -w 0 -n 1
}

# rank_program HOSTS FLAGS...: all its operations.
rank_program() {
  program_hosts=$1
  shift
  # shellcheck disable=SC2016
  over "$program_hosts" sh -c 'exec "$0" --rank "$TUTTI_RANK" --size "$TUTTI_SIZE" "$@"' \
    "$build/tests/rank_program" --comm-id "$root_at:$((port + 1))" "$@"
}

collectives='all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter'
hosts_up 4
check $? 'four hosts on a bridge are set up'
for collective in $collectives; do
  bench 4 "$collective" --threads && has '^# Out of bounds values : 0 OK'
  check $? "free threads: $collective of eight processes on four hosts"
done
for collective in all_reduce all_gather broadcast; do
  NCCL_PROTO=LL bench 2 "$collective" --threads && has '^# Out of bounds values : 0 OK' &&
    NCCL_PROTO=LL bench 2 "$collective" -e 64K && has '^# Out of bounds values : 0 OK'
  check $? "LL: $collective of four processes on two hosts, free and guarded"
done
for collective in sendrecv alltoall gather scatter; do
  NCCL_PROTO=LL bench 2 "$collective" --threads && has '^# Out of bounds values : 0 OK' &&
    over 2 "$build/bin/tutti" bench "$collective" -b 0 -e 16K -i 1668 -w 0 -n 1 &&
    has '^# Out of bounds values : 0 OK'
  check $? "LL: $collective of four processes on two hosts, free, and guarded by size"
done
for collective in all_reduce alltoall; do
  bench 4 "$collective" -e 64K && has '^# Out of bounds values : 0 OK'
  check $? "guarded: $collective of eight processes on four hosts"
done
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET rank_program 2 --iterations 1 --bytes 50000 &&
  [ "$(grep -c 'operations ok$' "$work/log")" -eq 4 ] && has 'Network Socket, 1 device (eth0)'
check $? 'all operations work with any count, and the log names the transport'

for mode in threads guarded; do
  TUTTI_EMU=mode=$mode rank_program 4 --ops sendrecv,all_reduce --iterations 1 --split 2 &&
    [ "$(grep -c 'all_reduce after split ok$' "$work/log")" -eq 8 ]
  check $? "$mode: two communicators with one rank per host work beside their parent"
done

# ---- settings of the socket network
export TUTTI_EMU=mode=threads
NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=2 bench 2 all_reduce --threads &&
  has '^# Out of bounds values : 0 OK'
check $? 'two helper threads with two sockets each work'
NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 bench 2 all_reduce --threads && has '^# Out of bounds values : 0 OK'
check $? 'sockets work inside a host too'
NCCL_P2P_DISABLE=1 bench 2 alltoall --threads && has '^# Out of bounds values : 0 OK'
check $? 'shared memory works inside a host without direct stores'
TUTTI_SECRET='not to be told' bench 2 all_gather --threads && has '^# Out of bounds values : 0 OK'
check $? 'ranks with the same secret connect'
# shellcheck disable=SC2016
TUTTI_INIT_TIMEOUT_SECONDS=3 over 2 sh -c '[ "$TUTTI_RANK" -lt 2 ] || TUTTI_SECRET=wrong
  export TUTTI_SECRET
  exec "$0" bench all_reduce --threads' "$build/bin/tutti"
[ $? -ne 0 ] && [ "$(cat "$work"/rank.[23] | grep -ci 'secret')" -ge 1 ] &&
  [ "$(cat "$work"/rank.[01] | grep -c 'missing: rank')" -ge 1 ]
check $? 'a host with another secret is refused and told why; the others name the missing rank'

# ---- addresses and NICs
root_at='[fd99::1]'
NCCL_SOCKET_FAMILY=AF_INET6 bench 2 all_reduce --threads && has '^# Out of bounds values : 0 OK'
check $? 'IPv6 is used if chosen, beside IPv4'
for host in 3 4; do hosts_exec $host ip addr flush dev eth0 scope global; done
for host in 1 2; do hosts_exec $host ip -4 addr flush dev eth0; done
bench 2 all_reduce --threads && has '^# Out of bounds values : 0 OK'
check $? 'hosts with IPv6 only work'
for host in 1 2; do hosts_exec $host ip addr add 10.99.0.$host/24 dev eth0; done
root_at=10.99.0.1
# A second NIC per host, each on its own cable.
carrier() { # HOST: waits until its eth1 is seen to run
  for _ in $(seq 100); do
    hosts_exec "$1" ip -o link show eth1 | grep -q 'state UP' && return
    sleep 0.05
  done
  return 1
}
sent_by() { hosts_exec "$1" ip -s -j link show "$2" | python3 -c '
import json, sys
print(json.load(sys.stdin)[0]["stats64"]["tx"]["bytes"])'; }
sent=$(sent_by 1 eth0)
hosts_holder_of 2 &&
  hosts_exec 1 ip link add eth1 type veth peer name eth1 netns "$hosts_target" &&
  hosts_exec 1 sh -c 'ip addr add 10.98.0.1/24 dev eth1 && ip link set eth1 up' &&
  hosts_exec 2 sh -c 'ip addr add 10.98.0.2/24 dev eth1 && ip link set eth1 up' &&
  carrier 1 && carrier 2 && NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET bench 2 alltoall --threads &&
  has '^# Out of bounds values : 0 OK' && has 'Network Socket, 2 devices (eth0, eth1)' &&
  [ "$(sent_by 1 eth0)" -gt $((sent + 100000)) ] && [ "$(sent_by 1 eth1)" -gt 100000 ]
check $? 'two NICs per host both carry data'
[ "$failures" -eq 0 ]
