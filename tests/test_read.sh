#!/bin/sh
# test_read.sh: slots at the sender (NCCL_P2P_READ_ENABLE=1), in the emulator and on the GPU backend without a
# GPU (tests/simt), by threads and by processes: every call gives the bits that it gives with slots at the
# receiver; the slots are memory of the sender; ranks with different settings are told so; what `explain
# plan`, logs and replays say of it. Prints one `ok - ` or `not ok - ` line per check and fails if a check
# failed. QUICK=1 runs fewer settings.
# runner: 20 s
. "$(dirname "$0")/script.inc"
use_build
verb=
. "$here/verb.inc"
unset NCCL_NET NCCL_NET_PLUGIN NCCL_COMM_ID NCCL_HOSTID NCCL_MAX_CTAS SIMT_SEED TUTTI_RANK TUTTI_SIZE \
  TUTTI_RENDEZVOUS TUTTI_JOB NCCL_P2P_READ_ENABLE
export NCCL_SOCKET_IFNAME=lo
simt=$build/simt
small="NCCL_BUFFSIZE=4096 NCCL_MAX_NCHANNELS=2"

# program NAME SOURCE: a program for both backends.
program() {
  cc -O1 -o "$work/$1" "$here/$2" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
    -ltutti-cudart -lnccl -lpthread || exit 3
}
program digest digest.c
program wrap gpu/wrap.c
program slots gpu/slots.c

# emulated SETTINGS COMMAND..., on_gpus SETTINGS COMMAND...: runs it on the backend, with NAME=VALUE words.
emulated() {
  settings=$1
  shift
  # The settings are a list of words.
  # shellcheck disable=SC2086
  env $settings LD_LIBRARY_PATH="$build/lib" TUTTI_BACKEND=emu timeout 120 "$@" >"$work/out" 2>"$work/log" \
    </dev/null
}
on_gpus() {
  settings=$1
  shift
  # shellcheck disable=SC2086
  env LD_LIBRARY_PATH="$simt" TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads NCCL_MAX_CTAS=1 \
    LD_PRELOAD="$simt/libtutti-simt.so" $settings timeout 120 "$@" >"$work/out" 2>"$work/log" </dev/null
}
fine() { tail -n 1 "$work/out" | grep -q ': ok$'; }

# same BACKEND SETTINGS: digest's lines are those of slots at the receiver.
same() {
  "$1" "$2 NCCL_P2P_READ_ENABLE=0" "$work/digest" 3 77 && cp "$work/out" "$work/written" &&
    "$1" "$2 NCCL_P2P_READ_ENABLE=1" "$work/digest" 3 77 && [ -s "$work/out" ] &&
    diff "$work/written" "$work/out" >"$work/log"
}

# ---- the emulator

seeds='1 2 3'
[ -n "${QUICK:-}" ] && seeds=1
for algo in Ring Tree; do
  for seed in $seeds; do
    same emulated "$small NCCL_PROTO=Simple NCCL_ALGO=allreduce:$algo TUTTI_SEED=$seed" &&
      same emulated "$small NCCL_PROTO=Simple NCCL_ALGO=allreduce:$algo TUTTI_SEED=$seed \
        TUTTI_EMU=weak=1,depth=3,lag=50"
    check $? "emulator, $algo, seed $seed: every call has the same bits, with weak memory too"
  done
  same emulated "$small NCCL_PROTO=Simple NCCL_ALGO=allreduce:$algo TUTTI_EMU=mode=threads"
  check $? "emulator, $algo, threads mode: every call has the same bits"
done
same emulated "$small"
check $? "emulator, all algorithms and protocols: every call has the same bits"

reads=NCCL_P2P_READ_ENABLE=1
for mode in guarded threads; do
  emulated "$reads NCCL_PROTO=Simple NCCL_BUFFSIZE=16384 TUTTI_EMU=mode=$mode" "$tutti" launch -n 3 \
    "$work/wrap" 0 3000 1 && fine
  check $? "emulator, processes, $mode: every call has the right bits"
  for place in "sender $reads" "receiver NCCL_P2P_READ_ENABLE=0" "receiver TUTTI_EMU=mode=$mode"; do
    emulated "TUTTI_EMU=mode=$mode ${place#* }" "$work/slots" "${place% *}" && fine &&
      emulated "TUTTI_EMU=mode=$mode ${place#* }" "$tutti" launch -n 2 "$work/slots" "${place% *}" && fine
    check $? "emulator, $mode: with ${place#* } the slots are at the ${place% *}, by threads and processes"
  done
done
for mode in guarded threads; do
  emulated "TUTTI_EMU=mode=$mode $reads" "$tutti" launch -n 2 "$work/slots" sender "$work/left-$mode" &&
    fine
  check $? "emulator, $mode: a process does not end before its slots have been read"
done
emulated NCCL_P2P_DIRECT_DISABLE=1 "$tutti" launch -n 2 "$work/slots" receiver "$work/left"
[ $? -ne 0 ] && grep -q 'wrong: rank 0 may leave before rank 1 has read its slots' "$work/out"
check $? "... but one without slots that are read does"
emulated "$reads NCCL_CHECK_MODE=LOCAL TUTTI_PEER_TIMEOUT_SECONDS=2 NCCL_DEBUG=WARN" "$tutti" launch \
  -n 2 "$work/slots" sender - && grep -q ': ok$' "$work/out" && cat "$work/out" >>"$work/log" &&
  says "rank 0 of comm '" 'leaves, though not all that it has sent was received in 2 s' \
    'set NCCL_P2P_READ_ENABLE=0'
check $? "a message that nobody receives keeps its sender's end for a while, and is named"
emulated "$reads" "$work/slots" receiver
[ $? -eq 1 ] && grep -q 'wrong: rank 0 holds .* must be at the receiver, rank 1' "$work/out"
check $? "... which the program would not say of the other end"
emulated "$reads NCCL_PROTO=Simple NCCL_BUFFSIZE=16384 TUTTI_EMU=mode=threads" "$tutti" launch -n 4 \
  sh -c 'NCCL_HOSTID=host$((TUTTI_RANK / 2)) exec "$0" 0 3000 1' "$work/wrap" && fine
check $? "two hosts of two processes, where networks join the hosts: every call has the right bits"
emulated "$reads NCCL_PROTO=Simple NCCL_BUFFSIZE=16384 TUTTI_EMU=devices=4,nodes=2,net=1" \
  "$work/wrap" 4 3000 1 && fine
check $? "... and so has an emulated network"
emulated "$reads TUTTI_FIRST_STEP=4294967264 NCCL_PROTO=Simple" "$work/wrap" 3 3000 1 && fine
check $? "... and so have steps past 2^32"

# ---- what is said of it

# shellcheck disable=SC2016
emulated '' "$tutti" launch -n 3 sh -c '[ "$TUTTI_RANK" != 1 ] || export NCCL_P2P_READ_ENABLE=1
  exec "$0" 0 100 1' "$work/wrap"
[ $? -ne 0 ] && says 'NCCL_P2P_READ_ENABLE is 0 on rank 0 (process ' ') and 1 on rank 1 (process ' \
  'give it the same value everywhere'
check $? "ranks with different settings fail, and the error names variable, ranks and values"
export NCCL_P2P_READ_ENABLE=1
NCCL_ALGO=ring NCCL_PROTO=simple try 0 explain plan all_reduce -g 4 -b 1M &&
  says 'within a host slots are at the sender'
check $? "explain plan says where the slots are"
NCCL_ALGO=twoshot NCCL_PROTO=simple try 0 explain plan all_reduce -g 4 -b 1M &&
  ! says 'slots are at the sender' && NCCL_ALGO=ring NCCL_PROTO=LL try 0 explain plan all_reduce -g 4 -b 1M &&
  ! says 'slots are at the sender'
check $? "... and not of direct collectives, and of LL"
emulated "NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=P2P NCCL_PROTO=Simple" "$tutti" launch -n 2 \
  "$work/wrap" 0 300 0 all_gather &&
  grep -q 'Channel 00/0 : 0 -> 1 via shared memory/read, connection 0, protocol 2' "$work/out"
check $? "the log of connections has /read, as NCCL's"
try 0 check all_reduce --ranks 3 --algo ring --proto simple && try 0 check all_reduce --nodes 3 --gpus 1 \
  --algo tree --proto simple && try 0 check sendrecv --ranks 3 --proto simple
check $? "the checker proves plans with slots at the sender"
emulated NCCL_P2P_READ_ENABLE=2 "$work/slots" receiver && fine &&
  says 'NCCL_P2P_READ_ENABLE=2 is outside 0..1; it is ignored, and 0 stays'
check $? "a value that is neither 0 nor 1 is ignored with a warning"

unset NCCL_P2P_READ_ENABLE

# ---- the GPU backend without a GPU

[ -e "$simt/libtutti-cuda.so" ] || { echo "not ok - build/simt is there"; exit 1; }
for option in Ring:Simple Tree:Simple; do
  same on_gpus "NCCL_PROTO=${option#*:} NCCL_ALGO=allreduce:${option%:*} NCCL_BUFFSIZE=65536"
  check $? "kernels, $option: every call has the same bits"
done
same on_gpus ''
check $? "kernels, all algorithms and protocols: every call has the same bits"
on_gpus "$reads NCCL_PROTO=Simple NCCL_BUFFSIZE=65536" "$tutti" launch -n 2 "$work/wrap" 0 9000 1 && fine
check $? "kernels, processes: every call has the right bits"
on_gpus "$reads NCCL_PROTO=Simple SIMT_SLOW_WARP=-1:1 NCCL_BUFFSIZE=16384" "$work/wrap" 3 3000 1 && fine
check $? "... while a commit warp is slow"
for place in "sender $reads" "receiver NCCL_P2P_READ_ENABLE=0"; do
  on_gpus "TUTTI_EMU=mode=threads,devices=2 ${place#* }" "$work/slots" "${place% *}" && fine &&
    on_gpus "TUTTI_EMU=mode=threads,devices=2 ${place#* }" "$tutti" launch -n 2 "$work/slots" \
      "${place% *}" && fine
  check $? "kernels: with ${place#* } the slots are at the ${place% *}, by threads and processes"
done
on_gpus "TUTTI_EMU=mode=threads,devices=2 $reads" "$tutti" launch -n 2 "$work/slots" sender "$work/gone" &&
  fine
check $? "kernels: a process does not end before its slots have been read"
[ "$failures" -eq 0 ]
