#!/bin/sh
# test_simt.sh: the GPU backend, host half and kernels, on this machine's CPUs (tests/simt): right results
# of every collective, with every algorithm and protocol of GPUs, of every type and operator; the emulator's
# bits; processes, hosts. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# QUICK=1 runs fewer sizes. Of the long lists (digests, slow warps, races, types of few elements) a
# quarter runs, by the day (part.inc).
# runner: 130 s
. "$(dirname "$0")/script.inc"
. "$here/part.inc"
use_build
part_of 4
unset NCCL_MAX_CTAS SIMT_SEED
export NCCL_SOCKET_IFNAME=lo
simt=$build/simt
tutti=$build/bin/tutti

# on_gpus COMMAND...: runs it on the GPU backend, two blocks per kernel unless $ctas is set, on $gpus GPUs
# (eight if it is not set).
on_gpus() {
  LD_LIBRARY_PATH=$simt TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads${gpus:+,devices=$gpus} \
    NCCL_MAX_CTAS=${ctas:-2} timeout 120 "$@" >"$work/out" 2>"$work/log" </dev/null
}

# bench COLLECTIVE FLAGS...: every row was checked and is right.
bench() {
  # The command's prefix is a list of words.
  # shellcheck disable=SC2086
  on_gpus $starter "$tutti" bench "$@" -n 1 -w 0 -q --nccl "$simt/libnccl.so.2" \
    --cudart "$simt/libtutti-simt.so" &&
    [ "$(awk '$9 != "N/A" { wrong += $9 } $13 != "N/A" { wrong += $13 } END { print (NR > 0), wrong + 0 }' \
      "$work/out")" = "1 0" ]
}
starter=

[ -e "$simt/libtutti-cuda.so" ] || { echo "not ok - build/simt is there"; exit 1; }
most=200K
[ -n "${QUICK:-}" ] && most=20K

for collective in all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter; do
  bench $collective -g 3 -b 0 -e $most -f 61
  check $? "$collective on three ranks gives right results"
done
for option in Ring:LL Ring:LL128 Ring:Simple Tree:LL Tree:Simple Direct:LL Direct:Simple TwoShot:LL \
  TwoShot:Simple; do
  NCCL_ALGO=${option%:*} NCCL_PROTO=${option#*:} bench all_reduce -g 4 -b 40 -e $most -f 37
  check $? "all_reduce on four ranks gives right results by $option"
done
for protocol in LL LL128 Simple; do
  NCCL_PROTO=$protocol bench all_reduce -g 2 -b 1000 -e 1000 -d all -o all
  check $? "all types and operators give right results in $protocol"
done
ctas=5 bench alltoall -g 8 -b 64K -e 64K
check $? "eight ranks with five blocks per kernel give right results"
export NCCL_MULTI_RANK_GPU_ENABLE=1
for collective in all_reduce reduce_scatter alltoall; do
  gpus=1 bench $collective -g 4 -b 8 -e $most -f 61
  check $? "$collective of four ranks on one GPU gives right results"
done
starter="$tutti launch -n 4" gpus=1 bench all_reduce -b 8 -e $most -f 61
check $? "all_reduce of four processes on one GPU gives right results"
# Eight ranks ask for 32 blocks of a GPU that runs as many at once, of which a communicator gets half.
for collective in all_reduce alltoall; do
  SIMT_MULTIPROCESSORS=32 NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/debug" gpus=1 ctas=4 \
    bench $collective -g 8 -b 8 -e $most -f 61 &&
    grep -q 'ranks share GPUs .*: at most 2 channels' "$work/debug"
  check $? "$collective of eight ranks on a GPU that is too small for all their channels gives right results"
done
unset NCCL_MULTI_RANK_GPU_ENABLE
for collective in all_reduce sendrecv; do
  bench $collective -g 3 -b 8 -e 32K -f 64 -G 3
  check $? "$collective in graphs gives right results"
done
for seed in 1 2 3; do
  SIMT_SEED=$seed bench all_reduce -g 3 -b 100 -e 10000 -f 100 &&
    SIMT_SEED=$seed bench sendrecv -g 3 -b 100 -e 10000 -f 100
  check $? "threads of a block in another order give right results, seed $seed"
done

# The emulator's and the kernels' results have the same bits with the same algorithm and protocol.
cc -O1 -o "$work/digest" "$here/digest.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl || exit 3
direct="allgather:Direct;reducescatter:Direct;broadcast:Direct;reduce:Direct"
row=0
for option in Ring:LL Ring:LL128 Ring:Simple Direct:LL Direct:Simple TwoShot:LL TwoShot:Simple; do
  row=$((row + 1))
  in_part $row || continue
  export NCCL_ALGO="${option%:*}" NCCL_PROTO=${option#*:} NCCL_MAX_NCHANNELS=2
  [ "$NCCL_ALGO" = Ring ] || NCCL_ALGO="allreduce:$NCCL_ALGO;$direct"
  LD_LIBRARY_PATH=$build/lib TUTTI_BACKEND=emu TUTTI_EMU=mode=threads,channels=2 timeout 60 \
    "$work/digest" 3 777 >"$work/emulated" 2>"$work/log" && on_gpus "$work/digest" 3 777 &&
    diff "$work/emulated" "$work/out" >"$work/log"
  check $? "results have the emulator's bits by $option"
done
unset NCCL_ALGO NCCL_PROTO NCCL_MAX_NCHANNELS

# Every kernel on both sides of the steps at which flags, tags and halves of the flag's period wrap
# (gpu/wrap.c), with short buffers, since fibres are slow to clean long ones. With capability 9.0 long copies
# have the kernel for copy engines.
cc -O1 -o "$work/wrap" "$here/gpu/wrap.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl || exit 3
export NCCL_LL_BUFFSIZE=32768 NCCL_LL128_BUFFSIZE=61440 SIMT_KERNELS="$work/kernels" SIMT_CAPABILITY=90
ctas=1 on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" all 3 500 1 &&
  tail -n 1 "$work/out" | grep -q ': ok$'
check $? "all calls have the right bits on both sides of steps 2^31 and 2^32"
# Sums of two ranks over Simple have a kernel of their own.
for algo in Direct TwoShot; do
  NCCL_ALGO="allreduce:$algo;$direct" NCCL_PROTO=Simple ctas=1 \
    on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" 2 500 1 &&
    tail -n 1 "$work/out" | grep -q ': ok$'
  check $? "... and so have two ranks, all-reduces by $algo"
done
# A warp of each block may be far behind the others, on all GPUs or on one: the issue warp, a warp that moves
# data, or the commit warp. Each day has each warp, and in some days each option.
row=0
for warp in 0 1:2 -1 -1:1; do
  export SIMT_SLOW_WARP=$warp
  slow=0 options=
  row=$((row + 1))
  for option in Ring:Simple:270000 Ring:LL128:500 Direct:Simple:500 Direct:LL:500 TwoShot:Simple:500; do
    row=$((row + 1))
    in_part $row || continue
    options="$options $option"
    IFS=: read -r algo proto long <<EOF
$option
EOF
    [ "$algo" = Ring ] || algo="allreduce:$algo;$direct"
    NCCL_ALGO=$algo NCCL_PROTO=$proto ctas=1 \
      on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" 3 "$long" 1 || slow=1
    [ $slow = 0 ] || break
  done
  [ -z "$options" ] || check $slow "all calls have the right bits while warp $warp is slow:$options"
done
unset SIMT_SLOW_WARP
# All accesses are ordered as PTX demands (simt/order.h), in the order of fibres and in another.
# Small buffers make loops that use slots and descriptors again.
row=0
for option in Ring:LL128:500:1 Ring:Simple:3000:0 Tree:LL:500:0 Direct:LL:1500:0 TwoShot:LL:500:1 \
  TwoShot:Simple:3000:0; do
  row=$((row + 1))
  in_part $row || continue
  [ -z "${QUICK:-}" ] || case $option in *LL*) ;; *) continue ;; esac
  IFS=: read -r algo proto long seed <<EOF
$option
EOF
  case $algo in Ring) ;; Tree) algo=allreduce:Tree ;; *) algo="allreduce:$algo;$direct" ;; esac
  export NCCL_ALGO="$algo" NCCL_PROTO="$proto" NCCL_BUFFSIZE=65536 SIMT_RACES=1 SIMT_SEED="$seed"
  ctas=1 on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" 3 "$long" 1 &&
    tail -n 1 "$work/out" | grep -q ': ok$'
  check $? "no two accesses of kernels race by $option"
done
# Calls that alternate between two streams: kernels wait for the counts of others. Some of them clean lines.
NCCL_ALGO="allreduce:Direct;$direct" NCCL_PROTO=LL NCCL_LL_BUFFSIZE=4096 TUTTI_FIRST_STEP=4294967273 ctas=1 \
  on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" 3 600 0 streams &&
  tail -n 1 "$work/out" | grep -q ': ok$'
check $? "no two accesses of kernels on two streams race"
unset NCCL_ALGO NCCL_PROTO NCCL_BUFFSIZE SIMT_RACES SIMT_SEED
# near ALGORITHM ARGS...: wrap with these arguments over LL, from step $first, is right.
near() {
  NCCL_ALGO=$1
  shift
  NCCL_ALGO=$NCCL_ALGO NCCL_PROTO=LL TUTTI_FIRST_STEP=$first ctas=1 \
    on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/wrap" "$@" &&
    tail -n 1 "$work/out" | grep -q ': ok$'
}
for first in 2147483616 4294967264; do
  near "allreduce:Direct;$direct" 6 100 1
  check $? "so have direct collectives of many ranks, from step $first"
  near "allreduce:Direct;allgather:Ring" 2 400 0 all_gather:all_reduce &&
    near "allreduce:TwoShot;allgather:Ring" 2 400 0 all_gather:all_reduce
  check $? "so have rings after a direct collective in each of the last steps before a wrap, from step $first"
done
NCCL_LL_BUFFSIZE=131072 near "allreduce:Direct;$direct" 2 1500 0 all_reduce:all_gather
check $? "so have several lines of a thread, from step $first"
unset NCCL_ALGO
unset NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE SIMT_KERNELS SIMT_CAPABILITY
# Copy engines: rings, messages, and chains, which go by slots. Their copies are as late as the program
# allows, or, with a seed, at any time before. Edges go by instructions.
export NCCL_PROTO=Simple SIMT_KERNELS="$work/copies-kernels"
row=0
for seed in 0 1 2; do
  export SIMT_SEED=$seed
  for option in all_gather:3:3M sendrecv:3:1048580 alltoall:3:3M broadcast:2:4M; do
    IFS=: read -r collective ranks bytes <<EOF
$option
EOF
    : >"$work/copies-kernels"
    ctas=1 bench "$collective" -g "$ranks" -b "$bytes" -e "$bytes" && grep -qx bulk "$work/copies-kernels"
    check $? "$collective by copy engines gives right results, seed $seed"
    case $collective$seed${QUICK:+quick} in broadcast[12]* | *2 | *quick) continue ;; esac
    row=$((row + 1))
    in_part $row || continue
    SIMT_RACES=1 ctas=1 bench "$collective" -g 2 -b "$bytes" -e "$bytes"
    check $? "no two accesses of $collective by copy engines race, seed $seed"
  done
done
unset NCCL_PROTO SIMT_KERNELS SIMT_SEED
missing=
for kernel in $(sed -n 's/^  CALL(\([a-z0-9_]*\), .*/\1/p' "$here/simt/kernels.cc"); do
  grep -qx "$kernel" "$work/kernels" || missing="$missing $kernel"
done
[ -z "$missing" ]
check $? "each kernel ran there$missing"

# shellcheck disable=SC2016
printf '#!/bin/sh\nNCCL_HOSTID=host$$ exec "$@"\n' >"$work/host"
chmod +x "$work/host"

# Sums in rank order have the emulator's bits, and one protocol's are the other's, every second day; over
# hosts too.
sums() { grep -E '^(all_reduce|reduce|reduce_scatter) ' "$1"; }
for option in LL Simple; do
  export TUTTI_SUM_ORDER=rank NCCL_PROTO=$option NCCL_MAX_NCHANNELS=2
  if [ $((part % 2)) -eq 0 ]; then
    LD_LIBRARY_PATH=$build/lib TUTTI_BACKEND=emu TUTTI_EMU=mode=threads,channels=2 timeout 60 \
      "$work/digest" 4 777 >"$work/emulated" 2>"$work/log" && on_gpus "$work/digest" 4 777 &&
      diff "$work/emulated" "$work/out" >"$work/log" && sums "$work/out" >"$work/sums.$option"
    check $? "sums in rank order have the emulator's bits in $option"
  fi
  starter="$tutti launch -n 3 $work/host"
  for collective in all_reduce reduce_scatter reduce; do
    bench $collective -b 128 -e 32K -f 16
    check $? "$collective of three hosts, sums in rank order in $option, gives right results"
  done
  starter=
done
if [ $((part % 2)) -eq 0 ]; then
  [ -s "$work/sums.LL" ] && cmp "$work/sums.LL" "$work/sums.Simple" >"$work/log" 2>&1
  check $? "... and the same bits in both"
fi
unset TUTTI_SUM_ORDER NCCL_PROTO NCCL_MAX_NCHANNELS

# A direct collective leaves its last slots to the operation that follows, here a ring that needs all of them.
printf 'all_reduce 0 6M algo=TwoShot proto=Simple\nall_reduce 6M max algo=Ring proto=Simple\n' >"$work/rules"
ctas=1 TUTTI_TUNE_FILE=$work/rules bench all_reduce -g 2 -b 4M -e 8M -f 2
check $? "a ring after a direct collective gives right results"

# Processes map each other's memory, or use TCP, and end.
starter="$tutti launch -n 3"
for collective in all_reduce sendrecv; do
  bench $collective -b 128 -e $most -f 37
  check $? "$collective of three processes gives right results"
done
starter="$tutti launch -n 2"
for collective in all_reduce alltoall; do
  NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 bench $collective -b 128 -e 8K -f 64
  check $? "$collective of two processes that map no memory gives right results"
done
starter="$tutti launch -n 2 $work/host"
for collective in all_reduce sendrecv alltoall; do
  bench $collective -b 128 -e 32K -f 16
  check $? "$collective of two hosts gives right results"
done
starter="$tutti launch -n 3 $work/host"
for collective in all_reduce broadcast; do
  NCCL_ALGO="allreduce:Direct;broadcast:Direct" NCCL_PROTO=LL bench $collective -b 128 -e 32K -f 16
  check $? "$collective of three hosts, direct over LL, gives right results"
done
starter="$tutti launch -n 2 $work/host"
for collective in all_gather reduce_scatter; do # a channel's ring may differ from another's
  ctas=3 bench $collective -g 2 -b 100K -e 100K
  check $? "$collective of two hosts with two GPUs each gives right results"
done

# Programs for GPUs: few elements on many ranks, counts that differ, kernels that spin, factors in device
# memory, lost processes, memory that is given back.
for program in few mismatch abort scalar streams leave lives crowd unload grow rma suspend processes; do
  [ "$program" != processes ] || [ -z "${QUICK:-}" ] || continue
  memory=SIMT_MEMORY= argument=
  case $program in
    few) [ "$parts" -eq 1 ] || argument=$((part % 4)) ;; # one of its types
    scalar) argument=4 ;;                                # sums
  esac
  [ "$program" != suspend ] || memory=SIMT_MEMORY=$work/memory:8192
  # Copies are seen, but not that streams wait for the numbers of signals.
  [ "$program" != rma ] || export TUTTI_RACE_CHECK=0
  cc -o "$work/$program" "$here/gpu/$program.c" -I"$build/include" -I"$build/include/tutti-emu" \
    -L"$build/lib" -ltutti-cudart -lnccl -lpthread && on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" \
    "$memory" TUTTI_EMU=mode=threads,devices=2 "$work/$program" ${argument:+"$argument"} &&
    tail -n 1 "$work/out" | grep -q ': ok$'
  check $? "gpu/$program succeeds${argument:+ ($argument)}"
  gpus=1 on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$memory" \
    NCCL_MULTI_RANK_GPU_ENABLE=1 NEED_RANKS=3 "$work/$program" ${argument:+"$argument"} &&
    tail -n 1 "$work/out" | grep -q ': ok$'
  check $? "gpu/$program with three ranks on one GPU succeeds"
  unset TUTTI_RACE_CHECK
done

# lives PROGRAM...: it ends by itself and is right.
lives() {
  on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" TUTTI_EMU=mode=threads,devices=${gpus:-2} "$@" &&
    tail -n 1 "$work/out" | grep -q ': ok$'
}
for mode in reset reset-abort reset-running reset-primary reset-release; do
  NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$work/debug" lives "$work/lives" $mode && cp "$work/debug" "$work/log" &&
    grep -q 'the program reset device 0 .* while the communicator lived' "$work/log"
  check $? "gpu/lives $mode ends well, with a sentence"
done
gpus=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NEED_RANKS=3 lives "$work/lives" reset-running
check $? "gpu/lives reset-running with three ranks on one GPU ends well"
lives "$work/lives" forked
check $? "what a forked child does with its parent's communicators is refused, and the parent goes on"
SIMT_EVENT_NODES=none lives "$work/lives" captured
check $? "a capture into a graph without nodes of events is refused with a sentence"
lives "$work/unload" living
check $? "the library may be closed while a communicator lives"
# Four communicators on GPUs that run the kernel of one at once, or less, and of ranks that share a GPU.
for blocks in 1 4; do
  ctas=$blocks SIMT_MULTIPROCESSORS=1 lives "$work/crowd"
  check $? "kernels of communicators that do not fit on a GPU together are ordered, $blocks blocks a kernel"
done
# 48 blocks fit, 6 in each of 8 parts. 24 blocks of another communicator leave each part 3 places, 16 leave 4.
for others in 24 16; do
  SIMT_MULTIPROCESSORS=48:8 NCCL_PROTO=Simple ctas=64 lives "$work/crowd" clusters 8 $others
  check $? "a kernel's clusters find place beside $others blocks, or it has none"
done
crowd_shared="env SIMT_MULTIPROCESSORS=11 NCCL_MULTI_RANK_GPU_ENABLE=1 NEED_RANKS=2"
gpus=1 ctas=4 lives $crowd_shared "$work/crowd"
check $? "communicators of ranks that share a GPU have blocks of their own there"
gpus=1 ctas=4 lives $crowd_shared "$work/crowd" full && ! grep -q '^crowd: 64 ' "$work/out" &&
  grep -q 'NCCL_MAX_CTAS=[1-9]' "$work/out"
check $? "a communicator that finds no free multiprocessors is refused with numbers and the cure"
# A client of MPS that may use half of the multiprocessors has the budget of that half.
refused=$(grep -h 'NCCL_MAX_CTAS=[1-9]' "$work/out" | head -n 1)
gpus=1 ctas=4 lives $crowd_shared SIMT_MULTIPROCESSORS=22 SIMT_MPS=1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 \
  CUDA_MPS_PIPE_DIRECTORY=/run/mps NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/debug" "$work/crowd" full &&
  [ "$(grep -h 'NCCL_MAX_CTAS=[1-9]' "$work/out" | head -n 1)" = "$refused" ] &&
  grep -q 'device 0 is shared by .* (MPS) of /run/mps: .* get 11 of its 22 multiproc' "$work/debug"
check $? "the budget of a client of MPS is its part of the multiprocessors, and the log says so"
# Graphs of two communicators, replayed at once by the ranks in different orders.
for blocks in 4 3; do
  rm -f "$work/debug"
  gpus=3 ctas=2 SIMT_MULTIPROCESSORS=$blocks NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/debug" \
    lives "$work/crowd" graphs &&
    [ "$(grep -c 'more blocks than the 3 that fit on it: kernels of graphs wait for none' "$work/debug")" = \
      $(((4 - blocks) * 3)) ]
  check $? "graphs of two communicators are replayed at once, on $blocks multiprocessors; a sentence if few"
done
# Captures, and replays at once, with launches between them.
cc -o "$work/graphs" "$here/gpu/graphs.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
  -ltutti-cudart -lnccl -lpthread && lives "$work/graphs" 2
check $? "gpu/graphs succeeds"
NCCL_GRAPH_MIXING_SUPPORT=0 lives "$work/graphs" 1
check $? "captured and plain launches are ordered with NCCL_GRAPH_MIXING_SUPPORT=0, too"
# Two processes on slices of one GPU, which have one place on the bus.
# shellcheck disable=SC2016
printf '#!/bin/sh\nSIMT_MIG=$TUTTI_RANK SIMT_IPC_NAMESPACE=$TUTTI_RANK exec "$@"\n' >"$work/slice"
chmod +x "$work/slice"
starter="$tutti launch -n 2 $work/slice" gpus=1 bench all_reduce -b 128 -e 8K -f 64
check $? "slices of a GPU (MIG) are told apart"

# Repeated calls, whose launches are kept: they are used, counted, and have the numbers of their operations.
cc -O1 -o "$work/again" "$here/gpu/again.c" -I"$build/include" -I"$build/include/tutti-emu" \
  -L"$build/lib" -ltutti-cudart -lnccl -lpthread && on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" \
  TUTTI_TRACE="$work/again-trace" TUTTI_EMU=mode=threads,devices=2 "$work/again" &&
  tail -n 1 "$work/out" | grep -q ': ok$'
check $? "gpu/again succeeds"
"$tutti" trace dump "$work"/again-trace* >"$work/log" &&
  [ "$(grep -c '^place .* flags=1 ' "$work/log")" -ge 90 ] &&
  ! awk '{ for (i = 2; i <= NF; i++) { split($i, field, "="); value[field[1]] = field[2] } }
         $1 == "comm" { calls += value["calls"]; launched += value["launched"] }
         $1 == "launch" { launches += 1; operations += value["operations"] }
         END { if (calls == 0 || calls != operations || launched != launches)
                 print calls, operations, launched, launches }' "$work/log" | grep .
check $? "repeated calls are launched again as they were, and each launch is counted"
# Works that share a block, whose warps are compared with their bytes and sides: again and in a graph, too.
for option in 4:LL 3:Simple; do
  [ "$option" = 3:Simple ] || [ -z "${QUICK:-}" ] || continue
  : >"$work/again-steps"
  NCCL_ALGO=allreduce:Tree NCCL_PROTO=${option#*:} SIMT_STEPS="$work/again-steps" gpus=${option%:*} \
    on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/again" &&
    tail -n 1 "$work/out" | grep -q ': ok$' && grep -q '^[1-9]' "$work/again-steps"
  check $? "gpu/again succeeds with trees over ${option#*:}, and repeated works have their warps"
done
: >"$work/again-steps"
SIMT_STEPS="$work/again-steps" gpus=3 \
  on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" "$work/again" messages &&
  tail -n 1 "$work/out" | grep -q ': ok$' && grep -q '^[1-9]' "$work/again-steps"
check $? "repeated messages of different sizes arrive, and have their warps"
on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" TUTTI_EMU=mode=threads,devices=2 "$work/again" differs &&
  tail -n 1 "$work/out" | grep -q ': ok$' &&
  [ "$(grep -c 'do not agree on operation 9:' "$work/log")" -ge 2 ] &&
  ! grep 'do not agree on operation' "$work/log" | grep -v 'operation 9:'
check $? "a call that differs from repeated ones is named by its number"

# A rank alone copies without a kernel, unless the operator scales its input.
cc -O1 -o "$work/alone" "$here/gpu/alone.c" -I"$build/include" -I"$build/include/tutti-emu" \
  -L"$build/lib" -ltutti-cudart -lnccl -lpthread && on_gpus env LD_PRELOAD="$simt/libtutti-simt.so" \
  SIMT_KERNELS="$work/alone-kernels" "$work/alone" && tail -n 1 "$work/out" | grep -q ': ok$'
check $? "gpu/alone succeeds"
[ "$(tr -d '\n' <"$work/alone-kernels")" = simple ]
check $? "a rank alone launches a kernel only to scale"

# A GPU without code in the library (tests/simt/SConscript lists those with code) is named, with the fix.
refused() {
  ! SIMT_CAPABILITY=$1 NCCL_DEBUG=WARN bench all_reduce -g 2 -b 64 -e 64 && cat "$work/out" >>"$work/log" &&
    grep -q "has compute capability $2, and libtutti-cuda.so has no code for it.*$3" "$work/log"
}
refused 70 7.0 'GPUs before 8.0 are not supported'
check $? "a GPU that is too old is named, with the fix"
SIMT_CAPABILITY=89 bench all_reduce -g 2 -b 64 -e 64
check $? "code for 8.0 runs on 8.9"
SIMT_CAPABILITY=100 NCCL_DEBUG=INFO NCCL_DEBUG_FILE="$work/info" bench all_reduce -g 2 -b 64 -e 64 &&
  cp "$work/info" "$work/log" && grep -q '10.0): the driver compiles the kernels from PTX' "$work/log"
check $? "PTX is compiled for a newer GPU, and the log says so"

# Hung jobs: their diagnosis while they hang and after they are killed, and their replays.
if [ -z "${QUICK:-}" ]; then
  mkdir -p "$work/hanging/gpu" "$work/hanging/bin"
  cc -o "$work/hang" "$here/gpu/hang.c" -I"$build/include" -I"$build/include/tutti-emu" -L"$build/lib" \
    -ltutti-cudart -lnccl -lpthread || exit 3
  cat >"$work/hanging/gpu/hang" <<END
#!/bin/sh
LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads,devices=2 \\
  NCCL_MAX_CTAS=4 exec $work/hang "\$@"
END
  chmod +x "$work/hanging/gpu/hang"
  ln -s "$tutti" "$work/hanging/bin/tutti"
  BUILD=$work/hanging sh "$here/gpu/hang.sh" >"$work/hangs" 2>&1
  cat "$work/hangs"
  grep -q '^ok - blocked: replay' "$work/hangs" && ! grep -q '^not ok' "$work/hangs"
  check $? "jobs that hang are explained and replayed"
fi
[ "$failures" -eq 0 ]
