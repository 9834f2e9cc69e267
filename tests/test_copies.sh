#!/bin/sh
# test_copies.sh: collectives that copy engines carry out under NCCL_CTA_POLICY_ZERO (tests/gpu/copies), in
# the emulator and on the GPU backend without a GPU: right results between processes and in one, without a
# kernel; calls that kernels carry out all the same; outputs at different places, and a rank that never calls,
# which get a sentence. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 30 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID SIMT_SEED NCCL_P2P_DISABLE
unset NCCL_SHM_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_CUMEM_ENABLE NCCL_CTA_POLICY TUTTI_TRACE
export NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_CHECK_MODE=GLOBAL
simt=$build/simt

# The program's own libraries are found by LD_LIBRARY_PATH alone.
cc -O1 -o "$work/copies" "$here/gpu/copies.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl -lpthread || exit 3

# copies MODE [RANKS]: succeeds in the emulator or, with on=gpu, on the GPU backend, where the check for races
# sees copies, but not that streams wait for the numbers of signals.
copies() {
  if [ "$on" = gpu ]; then
    LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 \
      TUTTI_RACE_CHECK=0 TUTTI_EMU=mode=threads,devices=8 timeout 60 "$work/copies" "$@" >"$work/log" 2>&1 \
      </dev/null
  else
    LD_LIBRARY_PATH=$build/lib TUTTI_EMU=devices=8,mode=$on timeout 60 "$work/copies" "$@" >"$work/log" 2>&1 \
      </dev/null
  fi
  noted $? "the program succeeds" || return 1
  tail -n 1 "$work/log" | grep -q ' ranks: ok$'
}

# Two ranks make 50 calls each that copy engines can carry out.
moved() { [ "$(grep -c 'copy engines move the data, into window 1 at ' "$work/log")" -eq "$1" ]; }

for on in guarded threads gpu; do
  copies data && moved 100
  check $? "$on: copy engines carry out collectives of two processes"
  copies data 3 && copies together 4
  check $? "$on: ... of three, and of four ranks in one process"
  copies kernels 3 && moved 0
  check $? "$on: kernels carry out those whose outputs are in no symmetric window"
  for mode in differ differ_scatter; do
    copies $mode 3 &&
      grep -q 'WARN .*different places of outputs in symmetric windows: .* let all ranks pass' "$work/log"
    check $? "$on: $mode: outputs at different places are an error with a cure"
  done
done
on=guarded
NCCL_SHM_DISABLE=1 copies calls 2 && moved 0
check $? "emulator: without memory that ranks share, kernels carry out all"
on=gpu
NCCL_P2P_DISABLE=1 copies calls 2 && moved 0
check $? "gpu: without access between GPUs, kernels carry out all"

# The ranks that wait go on when the warning and the record are there.
export TUTTI_STALL_SECONDS=1
for on in guarded gpu; do
  rm -f "$work/gate" "$work"/trace.*
  : >"$work/log"
  COPIES_GATE=$work/gate TUTTI_TRACE=$work/trace.%p copies absent 3 &
  while ! grep -q 'no progress for .* in all_gather #0' "$work/log" && kill -0 $! 2>"$work/ended"; do
    sleep 0.1
  done
  : >"$work/gate"
  wait $! && grep -q 'rank 2 .* has called 0 operations, and not all_gather #0 yet' "$work/log"
  check $? "$on: a rank that does not call is named by the ranks that wait"
  "$build/bin/tutti" explain "$work"/trace.* >"$work/log" 2>&1
  grep -q '^rank 2 .* has not called operation #0 of comm .*, AllGather of 3000 int32, for which 2 others' \
    "$work/log"
  check $? "$on: ... and by explain"
done
[ "$failures" -eq 0 ]
