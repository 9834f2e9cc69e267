#!/bin/bash
# job.sh BUILD one|two|far1|far2: runs in the guest: processes of rank_program with one rank each. Ranks in
# different processes use verbs only. Prints one `ok - ` or `not ok - ` line per check, and the output of a
# check that fails.
set -u
build=$1 wires=$2
export TUTTI_TRACE=off NCCL_SOCKET_IFNAME=lo TUTTI_EMU=mode=threads TUTTI_IB_PATH_MS=20000
export NCCL_MAX_NCHANNELS=1 # processes take turns on one emulated core
export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_DEBUG_FILE=/tmp/log.%p

# processes FIRST LAST SIZE [OPTION...]: starts these ranks of a communicator of SIZE; $statuses has their
# exit statuses in order, $status the highest; $killed has extra options of the last rank.
killed=
processes() {
  local first=$1 last=$2 size=$3 rank list=
  shift 3
  rm -f /tmp/out.* /tmp/log.*
  for rank in $(seq "$first" "$last"); do
    local own=("$@")
    # shellcheck disable=SC2206
    [ "$rank" != "$last" ] || own+=($killed)
    [ "$wires" != two ] || export NCCL_IB_HCA="=rxe$((rank % 2))"
    [ "${wires#far}" != "$wires" ] || export NCCL_HOSTID=host$rank
    timeout 200 "$build/tests/rank_program" --rank "$rank" --size "$size" --deadline 190 "${own[@]}" \
      >"/tmp/out.$rank" 2>&1 &
    list="$list $!"
  done
  status=0 statuses=
  for rank in $list; do
    { wait "$rank"; } 2>/dev/null # hides bash's message about a killed process
    statuses="$statuses $?"
    [ "${statuses##* }" -le "$status" ] || status=${statuses##* }
  done
}

ranks() {
  local size=$1
  shift
  rm -f /tmp/id*
  processes 0 $((size - 1)) "$size" --id /tmp/id "$@"
}

logged() { cat /tmp/log.* | grep -q "$@"; }
said() { cat /tmp/out.* | grep -q "$@"; }

# after TEXT RANKS COMMAND...: runs the command once this many ranks have printed TEXT.
after() {
  local text=$1 count=$2
  shift 2
  until [ "$(cat /tmp/out.* 2>/dev/null | grep -c "$text")" = "$count" ]; do sleep 0.1; done
  "$@"
}

# The numbers of queue pairs, completion queues and registrations on all devices.
resources() { rdma resource show | grep -o '\(pd\|cq\|qp\|mr\) [0-9]*' | tr '\n' ' '; }
resources_go() {
  resources >/tmp/resources.late
  touch /tmp/go
}

check() {
  if [ "$1" = 0 ]; then
    echo "ok - $2"
  else
    echo "not ok - $2"
    echo "statuses:$statuses"
    tail -n 40 /tmp/out.* /tmp/log.* | cut -c 1-600
  fi
}

one() {
  ranks 2 --iterations 1
  [ "$status" = 0 ] && logged 'Network IB, 1 device (rxe0:1): the default' &&
    logged 'rank 0 to rank 1 over rxe0:1' &&
    logged 'RoCE, .* GID 1 (::ffff:10.77.0.1, RoCE v2), the first that fits'
  check $? 'two processes: all operations work over the device that the log names with its GID'
  NCCL_IB_QPS_PER_CONNECTION=4 NCCL_IB_SPLIT_DATA_ON_QPS=1 NCCL_IB_USE_INLINE=1 \
    ranks 4 --iterations 1 --bytes 20000
  [ "$status" = 0 ] && logged 'over rxe0:1, 4 queue pairs'
  check $? 'four processes: all operations work over four queue pairs per connection'
  rm -f /tmp/go /tmp/out.*
  {
    after 'iteration 0 ok' 2 resources >/tmp/resources.early
    after 'iteration 5 ok' 2 resources_go
  } &
  ranks 2 --iterations 7 --ops all_reduce,sendrecv --hold 6,/tmp/go
  [ "$status" = 0 ] && grep -q 'qp [1-9]' /tmp/resources.early && cmp /tmp/resources.early /tmp/resources.late
  check $? "operations leave no resources behind: $(cat /tmp/resources.early)after the first and the sixth"
  NCCL_IB_ADAPTIVE_ROUTING=1 NCCL_IB_AR_THRESHOLD=1000 ranks 2 --iterations 2 --ops all_reduce --bytes 300000
  check "$status" 'all_reduce works with adaptive routing: a separate write notifies the receiver'
  NCCL_IB_GID_INDEX=9 ranks 2 --iterations 1 --ops all_reduce
  [ "$status" = 0 ] && logged 'rxe0:1 is left out: NCCL_IB_GID_INDEX=9 is empty' && logged 'Network Socket'
  check $? 'an empty GID index: the log says so, and sockets are used'
  NCCL_NET=IB NCCL_IB_DISABLE=1 ranks 2 --iterations 1 --ops all_reduce
  [ "$status" = 3 ] && said 'NCCL_NET=IB: no network of this name'
  check $? 'NCCL_NET=IB with NCCL_IB_DISABLE=1 is an error'
}

two() {
  ranks 2 --iterations 1 --bytes 300000
  [ "$status" = 0 ] && logged 'over rxe0:1' && logged 'over rxe1:1'
  check $? 'two devices joined by a wire: all operations work'
  ranks 4 --iterations 1
  check "$status" 'four processes on two devices: all operations work'
  tc qdisc add dev nic0 root netem loss 1%
  ranks 2 --iterations 3 --ops all_reduce,all_gather --bytes 200000
  check "$status" '1 % of packets are lost, and results are right'
  tc qdisc del dev nic0 root
  export NCCL_IB_TIMEOUT=10 NCCL_IB_RETRY_CNT=3
  killed='--kill-at 1'
  ranks 2 --iterations 2 --ops all_reduce
  [ "$status" != 0 ] && said '^rank 0 .* error .*rank 1'
  check $? 'a process that dies is named in the error'
  killed=
  rm -f /tmp/out.*
  after 'iteration 0 ok' 4 ip link set nic1 down &
  ranks 4 --iterations 100 --ops all_reduce --bytes 100000
  [ "$statuses" = ' 3 3 3 3' ] &&
    [ "$(cat /tmp/out.* | grep -c '^rank . .* error .*\(rank [0-3]\|went down\)')" -ge 4 ] &&
    said 'error .*rxe[01]:1.* status [0-9]* [A-Z_]*ERR, .*\(this port is\|its port is about to be\) down'
  check $? 'a link goes down during an operation: all four ranks get an error, and one names the port'
}

# The second guest's wire goes down during an operation, and up when connections have left it; the ranks then
# pause until they use it again.
flap() {
  after 'iteration 0 ok' 2 ip link set nic1 down
  until logged 'connect again'; do sleep 0.1; done
  ip link set nic1 up
  until logged 'over ports that are up again'; do sleep 0.1; done
  touch /tmp/go
}

# Both guests run this: the first has ranks 0 and 1, the second the others. Their devices are merged into one.
far() {
  local place=${wires#far}
  export NCCL_SOCKET_IFNAME=nic0 NCCL_NET_FORCE_MERGE=rxe0,rxe1
  ours() { processes $((place * 2 - 2)) $((place * 2 - 1)) 4 --comm-id "10.77.0.1:$1" "${@:2}"; }
  ours 7701 --iterations 1 --bytes 20000
  [ "$status" = 0 ] && logged 'over rxe[01]:1+rxe[01]:1, 2 queue pairs'
  check $? "two guests, four processes, two merged devices: all operations work, in guest $place"
  export NCCL_IB_TIMEOUT=16 NCCL_IB_RETRY_CNT=4
  rm -f /tmp/go /tmp/out.* /tmp/log.*
  flapper=
  if [ "$place" = 1 ]; then touch /tmp/go; else
    flap &
    flapper=$!
  fi
  TUTTI_IB_RECONNECT=8 ours 7703 --iterations 63 --ops all_reduce --bytes 100000 --hold 60,/tmp/go
  [ "$status" = 0 ] && logged 'connect again' && logged 'are connected again'
  check $? "one of two wires goes down and up again: operations continue over both, in guest $place"
  [ -z "$flapper" ] || kill "$flapper" 2>/dev/null
  rm -f /tmp/out.*
  [ "$place" = 1 ] || after 'iteration 0 ok' 2 ip link set nic1 down &
  ours 7702 --iterations 1000 --ops all_reduce --bytes 100000
  [ "$statuses" = ' 3 3' ] && said 'iteration 0 ok' &&
    [ "$(cat /tmp/out.* | grep -c '^rank . .* error ')" -ge 2 ]
  check $? "one of two wires goes down for good: all ranks get an error, in guest $place"
}

"${wires%[12]}"
