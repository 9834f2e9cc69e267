#!/bin/bash
# ibv_guest.sh BUILD bandwidth|round ROUNDS: the part of bench/ibv.sh that runs in the guest: perftest's
# programs and ours, in turns, so that the conditions are equal. perftest's MB are 1048576 bytes, ours
# 1000000.
set -u
build=$1 what=$2 rounds=$3
export NCCL_SOCKET_IFNAME=lo TUTTI_IB_PATH_MS=20000 TUTTI_TRACE=off
last=rxe0
[ ! -e /sys/class/infiniband/rxe1 ] || last=rxe1

# perftest PROGRAM [OPTION...]: from rxe0 to the last device.
perftest() {
  timeout 100 "$@" -F -d $last -x 1 >/tmp/server 2>&1 &
  until ss -ltn | grep -q ':18515 '; do sleep 0.05; done
  echo "\$ $*"
  timeout 100 "$@" -F -d rxe0 -x 1 127.0.0.1 2>&1 | grep -A1 '#bytes'
  wait $!
}

bandwidth() {
  perftest ib_write_bw -s 1048576 -n 16
  "$build/bench/ibv" "$rounds" 64 4194304
  perftest ib_write_bw -s 4194304 -n 8
  echo '$ NCCL_IB_USE_INLINE=1'
  NCCL_IB_USE_INLINE=1 "$build/bench/ibv" "$rounds" 16 64
  echo '$ tutti bench sendrecv, two processes with a rank each'
  # shellcheck disable=SC2016
  NCCL_MAX_NCHANNELS=1 "$build/bin/tutti" launch -n 2 bash -c 'export NCCL_HOSTID=host$TUTTI_RANK
    [ ! -e /sys/class/infiniband/rxe1 ] || export NCCL_IB_HCA="=rxe$TUTTI_RANK"
    exec '"'$build/bin/tutti'"' bench sendrecv -g 1 --threads -b 1M -e 4M -f 4 -n 3 -w 1 -c 0' | grep -v '^$'
}

round() {
  for _ in $(seq "$rounds"); do
    perftest ib_write_lat -s 8 -n 1000
    "$build/bench/ibv_round" 1000 8
    echo '$ NCCL_IB_USE_INLINE=1, as perftest has it'
    NCCL_IB_USE_INLINE=1 "$build/bench/ibv_round" 1000 8
  done
}

"$what"
