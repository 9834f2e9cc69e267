#!/bin/sh
# test_sum_order_jobs.sh: TUTTI_SUM_ORDER=rank in jobs of several processes: over shared memory, and over
# sockets between hosts that NCCL_HOSTID makes; ranks with different values of it; explain plan and sim.
# Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 20 s
. "$(dirname "$0")/script.inc"
use_build
verb=
. "$here/verb.inc"
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID TUTTI_RANK TUTTI_SIZE TUTTI_RENDEZVOUS TUTTI_JOB
export NCCL_SOCKET_IFNAME=lo

# job RANKS HOSTS NAME=VALUE...: order_program on so many hosts; its lines are in $work/out.
job() {
  ranks=$1 hosts=$2
  shift 2
  env "$@" HOSTS="$hosts" timeout 100 "$tutti" launch -n "$ranks" \
    sh -c 'NCCL_HOSTID=host$((TUTTI_RANK % HOSTS)) exec "$0"' "$build/tests/order_program" \
    >"$work/out" 2>&1
}

for mode in guarded threads; do
  for proto in LL Simple; do
    for hosts in 1 2; do
      job 4 $hosts TUTTI_SUM_ORDER=rank NCCL_PROTO=$proto NCCL_ALGO=Ring TUTTI_EMU=mode=$mode &&
        [ "$(grep -c ' wrong 0$' "$work/out")" -eq 4 ]
      check $? "$mode, $proto, $hosts hosts: every element is the fold from rank 0 on"
    done
  done
done
job 4 1 NCCL_ALGO=Ring TUTTI_EMU=mode=threads
[ $? -eq 1 ] && ! grep -q ' wrong 0$' "$work/out"
check $? "without the setting, a ring's sums have other bits"

# shellcheck disable=SC2016
timeout 60 "$tutti" launch -n 3 sh -c '[ "$TUTTI_RANK" != 1 ] || export TUTTI_SUM_ORDER=rank
  exec "$0"' "$build/tests/order_program" >"$work/log" 2>&1
[ $? -eq 3 ] && says 'TUTTI_SUM_ORDER is any on rank 0 (process ' ') and rank on rank 1 (process ' &&
  says 'give it the same value everywhere'
check $? "ranks with different orders fail, and the error names ranks and values"

export TUTTI_SUM_ORDER=rank
try 0 explain plan all_reduce --nodes 2 --gpus 8 -b 1M && says 'Its cost, beside the choice without it' &&
  grep -q 'most bytes from a rank to another  *131072 ' "$work/out" &&
  says 'an all-to-all of this size sends 65536 bytes from a rank to another'
check $? "explain plan says what the order costs"
try 0 explain plan all_reduce --nodes 2 --gpus 8 -b 1M --json &&
  python3 -c 'import json, sys
cost = json.load(open(sys.argv[1]))["sum_order"]
assert cost["rank"]["link_bytes"] == 2 * cost["all_to_all_link_bytes"], cost
assert cost["any"]["node_bytes"] < cost["rank"]["node_bytes"], cost' "$work/out"
check $? "... as JSON too"
TUTTI_SUM_ORDER=any try 0 explain plan all_reduce --nodes 2 --gpus 8 -b 1M && ! says 'TUTTI_SUM_ORDER'
check $? "... and nothing without the setting"
for each in 'all_reduce TwoShot' 'reduce TwoShot' 'reduce_scatter Direct'; do
  try 0 sim "${each% *}" --nodes 8 --gpus 8 -b 1M -e 1M && says "${each#* }" || break
done
check $? "the simulator has its plans among 64 ranks"
try 1 explain plan all_reduce --as emu --nodes 13 --gpus 5 &&
  says 'TUTTI_SUM_ORDER=rank needs TwoShot for AllReduce among 65 ranks' 'set TUTTI_SUM_ORDER=any'
check $? "more than 64 ranks are an error"
for each in 'all_reduce --ranks 5' 'reduce --nodes 2 --gpus 3 --root 4' \
  'reduce_scatter --nodes 8 --gpus 8'; do
  # shellcheck disable=SC2086
  try 0 check $each --algo Ring -b 100000 && says 'proved: ' || break
done
check $? "the checker proves the order"
[ $failures -eq 0 ]
