#!/bin/sh
# test_leases.sh: memory that a program frees while ranks of other processes have it mapped
# (tests/gpu/leases), on the GPU backend without a GPU (tests/simt), with little memory on each device: right
# results from other memory at the same addresses, and what was freed is back without a call of the library,
# also if a process has ended. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# QUICK=1 runs fewer rounds; `LEASES_ROUNDS=10000 sh tests/test_leases.sh` runs as many rounds of stress, in a
# few minutes.
# runner: 15 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID SIMT_SEED
export NCCL_SOCKET_IFNAME=lo
tutti=$build/bin/tutti
simt=$build/simt
rounds=300
[ -z "${QUICK:-}" ] || rounds=100
rounds=${LEASES_ROUNDS:-$rounds}

cc -O1 -o "$work/leases" "$here/gpu/leases.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl -lpthread || exit 3

# leases ALL_REDUCE:PROTOCOL MODE [NUMBER [SEED [RANKS]]]: succeeds on the GPU backend.
leases() {
  option=$1
  shift
  rm -f "$work/memory"
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 \
    TUTTI_EMU=mode=threads,devices=8 SIMT_MEMORY="$work/memory:256" NCCL_PROTO="${option#*:}" \
    NCCL_ALGO="allreduce:${option%:*};reducescatter:Direct;allgather:Direct;broadcast:Direct" \
    timeout $((60 + rounds / 10)) "$work/leases" "$@" >"$work/log" 2>&1 </dev/null &&
    tail -n 1 "$work/log" | grep -q ': ok$'
}

for option in TwoShot:Simple Direct:Simple Ring:Simple Direct:LL; do
  leases $option reuse 2
  check $? "calls find other memory at the same addresses, $option"
done
# Of the ranks' 576 calls, those that find new memory, or memory that was not shown so far, are not repeated.
for option in TwoShot:Simple Direct:LL; do
  rm -f "$work"/repeated.*
  TUTTI_TRACE=$work/repeated.%p leases $option repeat 2 &&
    "$tutti" trace dump "$work"/repeated.* >"$work/calls" &&
    noted 0 "$(grep -c '^place .* flags=1 ' "$work/calls") calls were repeated" &&
    [ "$(grep -c '^place .* flags=1 ' "$work/calls")" -ge 250 ]
  check $? "calls that repeat show the memory that they showed, until other memory is there, $option"
done
leases TwoShot:Simple full 5
check $? "an allocation that fails succeeds when a program has freed what it cached"
leases TwoShot:Simple unused 2
check $? "on a full device peers return what was not used for a while, so that it is free at once"
leases TwoShot:Simple evict 3
check $? "memory is shown anew before the peers have returned it"
leases TwoShot:Simple graph
check $? "memory that a graph shows is mapped until the graph is destroyed"
leases TwoShot:Simple busy 3
check $? "nothing is unmapped while a kernel runs, so that others can be launched"
leases TwoShot:Simple during 12
check $? "outputs may be freed while a collective is under way"
leases TwoShot:Simple freed && grep -q 'rank 1 .* closed its connection without goodbye' "$work/log"
check $? "a process that passes freed memory ends, and its peer is told so"
leases TwoShot:Simple holder
check $? "memory is back from a process that has ended"
leases TwoShot:Simple owner
check $? "a process that has ended leaves no memory mapped"
leases TwoShot:Simple stress "$rounds" 1
check $? "$rounds rounds of allocations, collectives and frees, two ranks"
leases Direct:Simple stress $((rounds / 3)) 2 3
check $? "$((rounds / 3)) rounds, three ranks"
[ "$failures" -eq 0 ]
