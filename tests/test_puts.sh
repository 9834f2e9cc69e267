#!/bin/sh
# test_puts.sh: one-sided calls between processes (tests/gpu/puts), on the GPU backend without a GPU: right
# results in windows of each kind of memory, memory that is back, a process that is killed, wrong calls and
# settings, which are refused with a sentence. Prints one `ok - ` or `not ok - ` line per check and fails if a
# check failed.
# runner: 60 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID SIMT_SEED NCCL_P2P_DISABLE
unset NCCL_SHM_DISABLE NCCL_P2P_DIRECT_DISABLE NCCL_CUMEM_ENABLE
export NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN
simt=$build/simt

cc -O1 -o "$work/puts" "$here/gpu/puts.c" -I"$here/simt/include" -I"$build/include" \
  -I"$build/include/tutti-emu" -L"$build/lib" -ltutti-cudart -lnccl -lpthread -ldl || exit 3

# puts MODE [RANKS [SENTENCE]]: succeeds on the GPU backend. Copies are seen by the check for races, but not
# that streams wait for the numbers of signals.
puts() {
  rm -f "$work/memory"
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 \
    TUTTI_RACE_CHECK=0 TUTTI_EMU=mode=threads,devices=${gpus:-8} SIMT_MEMORY="$work/memory:256" \
    timeout 60 "$work/puts" "$@" >"$work/log" 2>&1 </dev/null && tail -n 1 "$work/log" | grep -q ' ranks: ok$'
}

for ranks in 2 4; do
  puts data $ranks
  check $? "puts of $ranks ranks into windows of cudaMalloc, cuMemCreate and ncclMemAlloc"
done
gpus=1 NCCL_MULTI_RANK_GPU_ENABLE=1 puts data 3
check $? "the same among three processes on one GPU"
puts renew && puts renew 3
check $? "windows are deregistered, freed, and registered anew: memory is back"
puts suspend 3
check $? "windows outlive a suspension"
puts wrong && puts wrong 3
check $? "wrong offsets, small allocations and windows that are gone are refused"
puts freed && grep -q 'of a window was freed while it is registered' "$work/log" && puts freed 3
check $? "a window whose memory was freed is refused, and its owner is told"
puts late
check $? "a put of a group is refused if its window is gone when the group ends"
puts leave 3
check $? "ranks leave while another one has their windows mapped"
puts killed && grep -q 'rank 1 .* closed its connection without goodbye' "$work/log" && puts killed 3
check $? "a wait for a rank whose process is killed ends with an error that names it"
TUTTI_STALL_SECONDS=1 puts left && TUTTI_STALL_SECONDS=1 puts left 3
check $? "a wait for a rank that leaves without its signal ends with an error that names it"
# The ranks go on when both sentences are in the log, or are killed.
warned() {
  grep -q 'no progress for .* in WaitSignal' "$work/log" &&
    grep -q 'rank 1 .* has called 0 operations; it waits itself for rank 0 in WaitSignal' "$work/log"
}
: >"$work/log"
PUTS_GATE=$work/gate TUTTI_STALL_SECONDS=1 puts stuck &
while ! warned && kill -0 $! 2>"$work/ended"; do sleep 0.1; done
: >"$work/gate"
wait $! && warned
check $? "ranks that wait for each other's signals are warned of it"
puts stuck 3
check $? "a wait for a signal that never comes ends when the rank is aborted"
NCCL_P2P_DISABLE=1 puts apart 2 'on a GPU whose memory this process cannot map; use ncclSend'
check $? "GPUs that do not reach each other: refused with a sentence"
NCCL_SHM_DISABLE=1 puts apart 2 'shares no memory of the host, in which other processes count signals'
check $? "no shared memory of the host: refused with a sentence"
[ "$failures" -eq 0 ]
