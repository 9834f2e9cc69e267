#!/bin/sh
# test_vmm.sh: buffers in memory of cuMemCreate (tests/gpu/vmm), on the GPU backend without a GPU; its driver
# gives descriptors of anonymous files (tests/simt): right results, direct access of other processes' kernels,
# other memory at the same addresses, and memory that is back when it was unmapped. Prints one `ok - ` or
# `not ok - ` line per check and fails if a check failed. QUICK=1 runs fewer turns.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID SIMT_SEED SIMT_FABRIC NCCL_MNNVL_ENABLE
unset NCCL_P2P_DIRECT_DISABLE NCCL_CUMEM_ENABLE
export NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=REG
simt=$build/simt
turns=10
[ -z "${QUICK:-}" ] || turns=4

cc -O1 -o "$work/vmm" "$here/gpu/vmm.c" -I"$here/simt/include" -I"$build/include" \
  -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl -lpthread -ldl || exit 3

# vmm ALL_REDUCE:PROTOCOL MODE [NUMBER [RANKS]]: succeeds on the GPU backend.
vmm() {
  option=$1
  shift
  rm -f "$work/memory"
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 \
    TUTTI_EMU=mode=threads,devices=8 SIMT_MEMORY="$work/memory:256" NCCL_PROTO="${option#*:}" \
    NCCL_ALGO="allreduce:${option%:*};reducescatter:Direct;allgather:Direct;broadcast:Direct" \
    timeout 60 "$work/vmm" "$@" >"$work/log" 2>&1 </dev/null &&
    tail -n 1 "$work/log" | grep -q ': ok$'
}

for option in TwoShot:Simple Direct:Simple Ring:Simple Direct:LL; do
  vmm $option direct && vmm $option pieces
  check $? "buffers of one piece, and over several, $option"
done
for option in TwoShot:Simple Ring:Simple; do
  vmm $option used 0
  check $? "kernels access the memory of other processes, $option"
  vmm $option remap "$turns"
  check $? "calls find other memory at the same addresses, $option"
done
vmm TwoShot:Simple sleep "$turns"
check $? "memory that is unmapped is back, and other memory at its addresses is used, $turns turns"
vmm TwoShot:Simple used 1
check $? "that memory, too, is accessed by kernels of other processes"
vmm TwoShot:Simple sleep 2 3
check $? "the same among three ranks"
vmm TwoShot:Simple freed
check $? "memory is back without a call of the library"
vmm TwoShot:Simple graph
check $? "memory that a graph shows is back when the graph is destroyed"
vmm TwoShot:Simple noexport && grep -q 'cannot map .* requestedHandleTypes' "$work/log"
check $? "memory without handles goes through slots, and the log says why"
# The number of accesses by kernels to memory of other devices of the process.
foreign() {
  awk '{ n += $1 } END { print n + 0 }' "$work/access"
}
for option in TwoShot:Simple Ring:Simple Direct:LL; do
  : >"$work/access"
  SIMT_ACCESS="$work/access" vmm $option threads 6 3
  check $? "kernels access memory of their process where the driver allows it, $option"
  [ $option = Direct:LL ] || [ "$(foreign)" -gt 1000 ]
  check $? "... directly, after access was given"
done
SIMT_NO_ACCESS=1 SIMT_ACCESS="$work/access.none" vmm TwoShot:Simple threads 4 &&
  [ ! -e "$work/access.none" ] &&
  [ "$(grep -c 'no access to the memory of cuMemCreate' "$work/log")" = 2 ]
check $? "devices of one process that get no access, and the log says why once a rank"
SIMT_FABRIC=1 vmm TwoShot:Simple fabric && ! grep -q 'cannot map' "$work/log" &&
  SIMT_FABRIC=1 vmm TwoShot:Simple used 1
check $? "fabric handles, where an allocation allows nothing else"
SIMT_FABRIC=1 NCCL_MNNVL_ENABLE=0 vmm TwoShot:Simple fabric && grep -q 'NCCL_MNNVL_ENABLE=0' "$work/log"
check $? "NCCL_MNNVL_ENABLE=0: no fabric handles"
! NCCL_P2P_DIRECT_DISABLE=1 vmm TwoShot:Simple used 0 && grep -q 'no memory of others mapped' "$work/log"
check $? "NCCL_P2P_DIRECT_DISABLE=1: nothing is mapped"
vmm TwoShot:Simple alloc
check $? "memory of ncclMemAlloc: descriptors, access of all devices, wrong addresses, memory that is back"
vmm TwoShot:Simple alloc-used
check $? "kernels of other processes access it"
: >"$work/access"
SIMT_ACCESS="$work/access" vmm TwoShot:Simple alloc-graph && [ "$(foreign)" -gt 1000 ]
check $? "kernels of the process access it, in graphs, too"
SIMT_FABRIC=1 vmm TwoShot:Simple alloc && SIMT_NO_ACCESS=1 vmm TwoShot:Simple alloc-graph
check $? "... with fabric handles, and where other devices get no access"
SIMT_NO_VMM=1 vmm TwoShot:Simple alloc
check $? "ncclMemAlloc on devices without memory of cuMemCreate"
NCCL_CUMEM_ENABLE=0 vmm TwoShot:Simple alloc && NCCL_CUMEM_ENABLE=0 vmm TwoShot:Simple alloc-used &&
  NCCL_CUMEM_ENABLE=1 vmm TwoShot:Simple alloc
check $? "NCCL_CUMEM_ENABLE=0: ncclMemAlloc makes memory of cudaMalloc, which other processes access"
[ "$failures" -eq 0 ]
