#!/bin/sh
# test_backend.sh: which backend a process chooses, and what the log says about it; on a machine with GPUs
# also that results are bitwise equal to the emulator's. Prints one `ok - `, `not ok - ` or `skip: ` line
# per check and fails if a check failed. Finds the library at ${BUILD:-build}.
. "$(dirname "$0")/script.inc"
use_build
export LD_LIBRARY_PATH="$build/lib"

# A program that asks for the backend and links no CUDA runtime.
cat >"$work/which.c" <<'C'
#include <nccl.h>
#include <stdio.h>
#include <tutti.h>
int main(void) {
  ncclComm_t comm;
  const char *name = tutti_backend();
  const ncclResult_t result = ncclCommInitAll(&comm, 1, NULL);
  printf("%s %d\n", name, result);
  return 0;
}
C
cc -o "$work/which" "$work/which.c" $(pkg-config --cflags --libs tutti) >"$work/log" 2>&1
check $? "a program without a CUDA runtime builds"

# says BACKEND PATTERN: `which` names the backend, and a line of its log matches the pattern.
says() {
  NCCL_DEBUG=INFO timeout 60 "$work/which" >"$work/log" 2>&1
  grep -q "^$1 " "$work/log" && grep -q "$2" "$work/log"
}

TUTTI_BACKEND=emu says emu 'Backend emu: chosen by TUTTI_BACKEND'
check $? "TUTTI_BACKEND=emu chooses the emulator, and the log says so"
TUTTI_BACKEND=tpu says none 'TUTTI_BACKEND=tpu is none of emu and cuda'
check $? "an unknown backend is an error that names it"
TUTTI_EMU=channels=1 says emu 'Backend emu: TUTTI_EMU is set'
check $? "emulator settings in the environment choose the emulator"

if says cuda 'Backend cuda: the default where'; then
  gpu=1
  check 0 "a driver and a GPU are there: CUDA is the default"
else
  gpu=0
  says emu 'Backend emu: the default, because there is no CUDA: '
  check $? "without a GPU the emulator is the default, and the log says why"
  TUTTI_BACKEND=cuda says none 'TUTTI_BACKEND=cuda: .*; unset it or use TUTTI_BACKEND=emu'
  check $? "TUTTI_BACKEND=cuda without a GPU is an error that says so"
  TUTTI_BACKEND=cuda "$work/which" >"$work/log" 2>&1
  ! grep -q '^none 0' "$work/log"
  check $? "and no communicator is created"
fi

cc -O2 -Wall -o "$work/digest" "$here/digest.c" $(pkg-config --cflags --libs tutti-emu) >"$work/log" 2>&1
check $? "digest.c builds for the emulator"
NCCL_DEBUG=INFO "$work/digest" 1 1 >"$work/log" 2>&1
grep -q 'Backend emu: the program uses the emulated CUDA runtime' "$work/log"
check $? "a program with the emulated runtime gets the emulator"
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH "$work/digest" 3 1 >"$work/log" 2>&1
[ "$(grep -c 'GPU [0-9] (.*) <-> GPU [0-9] (.*): NVL$' "$work/log")" -eq 3 ]
check $? "the log has one line per pair of a communicator's GPUs"

# same RANKS PROTOCOL: both builds of digest.c print the same text.
same() {
  NCCL_PROTO=$2 TUTTI_EMU=mode=threads,channels=4 timeout 100 "$work/digest" "$1" \
    >"$work/emu" 2>"$work/log" &&
    NCCL_PROTO=$2 NCCL_MAX_NCHANNELS=4 timeout 100 "$work/digest_cuda" "$1" >"$work/cuda" 2>>"$work/log" &&
    cmp "$work/emu" "$work/cuda" >>"$work/log" 2>&1
}

toolkit=${CUDA_HOME:-/usr/local/cuda}
if [ "$gpu" -eq 0 ]; then
  echo "skip: results on a GPU: no GPU here"
elif ! cc -O2 -o "$work/digest_cuda" "$here/digest.c" -I"$build/include" -I"$toolkit/include" \
  -L"$build/lib" -lnccl -L"$toolkit/lib64" -L"$toolkit/lib" -lcudart >"$work/log" 2>&1; then
  echo "skip: results on a GPU: no CUDA toolkit in $toolkit"
else
  devices=$(nvidia-smi -L 2>/dev/null | wc -l)
  for protocol in Simple LL LL128; do
    same "$devices" "$protocol"
    check $? "$protocol: $devices GPUs and the emulator give the same bits"
  done
  # paths NAME=VALUE...: digest's log of paths, with these settings, in $work/topo.
  paths() {
    rm -f "$work/topo"
    env "$@" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH NCCL_DEBUG_FILE="$work/topo" NCCL_MAX_NCHANNELS=4 \
      timeout 100 "$work/digest_cuda" "$devices" 1 >"$work/log" 2>&1
  }
  if [ "$devices" -lt 2 ]; then
    echo "skip: paths between GPUs: one GPU here"
  else
    paths NCCL_PROTO=Simple
    grep -q 'GPU 0 (.*) <-> GPU 1 (.*): [A-Z]*' "$work/topo"
    check $? "the log has one line per pair of GPUs"
    ! grep -q 'stores into memory of device .*, as the driver allows, but' "$work/topo"
    check $? "all links between the GPUs pass their self-test"
    for protocol in Simple LL; do
      NCCL_P2P_DISABLE=1 same "$devices" "$protocol"
      check $? "$protocol: the same bits through host memory (NCCL_P2P_DISABLE=1)"
    done
    NCCL_P2P_LEVEL=0 same "$devices" Simple
    check $? "the same bits with NCCL_P2P_LEVEL=0"
    NCCL_P2P_DISABLE=1 same "$devices" ""
    check $? "the same bits with the default choice through host memory"
    paths NCCL_P2P_DISABLE=1
    grep -q 'GPU 0 (.*) <-> GPU 1 (.*): .*no peer access' "$work/topo"
    check $? "and the log says that there is no peer access"
    paths NCCL_P2P_LEVEL=near
    grep -q 'NCCL_P2P_LEVEL=near is no path' "$work/topo"
    check $? "an unknown NCCL_P2P_LEVEL is reported and ignored"
    paths NCCL_P2P_DISABLE=1 NCCL_PROTO=LL128
    grep -q 'NCCL_PROTO asks for LL128' "$work/topo"
    check $? "the log warns of LL128 on paths that do not support it"
  fi
fi

[ "$failures" -eq 0 ]
