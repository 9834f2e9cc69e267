#!/bin/sh
# test_device_api.sh: kernels of a program that use nccl_device.h (gpu/lsa.cu), compiled by g++ and run on the
# GPU backend without a GPU (tests/simt): right results of ranks in processes and in one process, whatever the
# order of threads, without races; wrong calls, a rank that registers no window, and ranks out of reach, which
# get a sentence. Prints one `ok - ` or `not ok - ` line per check and fails if a
# check failed.
# runner: 40 s
. "$(dirname "$0")/script.inc"
use_build
unset NCCL_MAX_CTAS SIMT_SEED NCCL_P2P_DISABLE NCCL_SHM_DISABLE NCCL_CUMEM_ENABLE TUTTI_TRACE
export NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=WARN
simt=$build/simt

# compile OUTPUT FLAGS...
compile() {
  compile_out=$1
  shift
  g++ -x c++ -std=c++17 -O1 -DNCCL_DEVICE_CODE "$@" -I"$here/simt/include" -I"$here" -I"$build/include" \
    -I"$build/include/tutti-emu" -o "$compile_out" "$here/gpu/lsa.cu" -x none -L"$simt" \
    -ltutti-simt -ltutti-cudart -l:libnccl.so.2 -lpthread
}
# Plain accesses of device code are watched, as those of the library's kernels.
watched() {
  compile "$1" -c -g1 -fsanitize=thread --param tsan-distinguish-volatile=1 "-I$2" && mv "$1" "$1.o" &&
    g++ -o "$1" "$1.o" -L"$simt" -ltutti-simt -ltutti-cudart -l:libnccl.so.2 -lpthread
}
compile "$work/lsa" && watched "$work/watched" "$build/include"
check $? "a program with device code is compiled by g++"

# lsa MODE RANKS [PROGRAM]
lsa() {
  LD_LIBRARY_PATH=$simt TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 TUTTI_EMU=mode=threads,devices=${gpus:-8} \
    timeout 100 "$work/${3:-lsa}" "$1" "$2" >"$work/log" 2>&1 </dev/null
  noted $? "the program succeeds" || return 1
  tail -n 1 "$work/log" | grep -q ' ranks: ok$'
}

lsa data 2 && lsa data 3
check $? "ranks in processes add up each other's memory, and meet at barriers"
lsa together 2 && lsa together 5
check $? "... ranks in one process"
for seed in 1 2; do
  SIMT_SEED=$seed lsa together 3
  check $? "... with threads in another order, seed $seed"
done
SIMT_RACES=1 SIMT_SEED=3 lsa together 3 watched
check $? "no two accesses of the kernels race"
# Faults of the header, which the same run must find.
mkdir "$work/broken"
while IFS='|' read -r name from to; do
  sed -z "s/$from/$to/" "$here/../lib/nccl_device.h" >"$work/broken/nccl_device.h"
  ! cmp -s "$here/../lib/nccl_device.h" "$work/broken/nccl_device.h" &&
    watched "$work/broken/lsa" "$work/broken" && ! SIMT_RACES=1 SIMT_SEED=3 lsa together 3 broken/lsa &&
    grep -q 'simt: race\|is .*, not \|seen\[1 + rank\]' "$work/log"
  check $? "planted in nccl_device.h: $name is found"
done <<'END'
an arrival without release|releases ? cuda::memory_order_release|releases ? cuda::memory_order_relaxed
a wait without acquire|acquires ? cuda::memory_order_acquire|acquires ? cuda::memory_order_relaxed
a wait for the round before|(round + 1)) < 0|round) < 0
a signal without release|add(value, cuda::memory_order_release|add(value, cuda::memory_order_relaxed
a wait for a signal without acquire|at.load(order)|at.load(cuda::memory_order_relaxed)
a signal before the group has stored|\(srcOffset), bytes);\)\n *coop.sync();|\1
an arrival before the group has come|releases = \([^;]*\);\n *coop.sync();|releases = \1;
END
gpus=1 NCCL_MULTI_RANK_GPU_ENABLE=1 lsa together 3
check $? "... three ranks on one GPU"
TUTTI_INIT_TIMEOUT_SECONDS=1 lsa late 2 &&
  grep -q 'WARN .*ncclDevCommCreate.* rank 1 has not registered so many; call ncclCommWindowReg' "$work/log"
check $? "a rank that does not take part is named, with the cure"
for option in NCCL_P2P_DISABLE NCCL_SHM_DISABLE; do
  ! env $option=1 LD_LIBRARY_PATH="$simt" TUTTI_BACKEND=cuda NCCL_MAX_CTAS=1 \
    TUTTI_EMU=mode=threads,devices=8 timeout 100 "$work/lsa" data 2 >"$work/log" 2>&1 &&
    grep -q 'lsa.cu:.*ncclDevCommCreate.* (ncclGin) in this release, and some ranks are out of' "$work/log"
  check $? "$option=1: each rank is alone in its team, and what needs others is refused"
done
[ "$failures" -eq 0 ]
