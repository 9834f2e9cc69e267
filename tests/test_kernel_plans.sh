#!/bin/sh
# test_kernel_plans.sh: runs every plan that the tuner may choose for GPUs, with the GPU backend's own kernels
# on this machine's CPUs (tests/simt), and proves that each element of each output is exactly the sum, or the
# element, that it must be, and that nothing else is written (gpu/plans.c); and that the kernels' reads,
# writes and posts are the schedule's (simt/steps.h). Prints a line for each number of ranks and hosts: how
# many distinct plans ran. Runs a part (1/40) of the settings, by the day (part.inc); with --all
# all of them, and then every option of the tuner and every kernel must have run.
# runner: 30 s
. "$(dirname "$0")/script.inc"
use_build
unset SIMT_SEED SIMT_KERNELS
simt=$build/simt
[ -e "$simt/libtutti-cuda.so" ] || { echo "not ok - $build/simt is there"; exit 1; }
[ "${1:-}" != --all ] || TEST_PART=all
. "$here/part.inc"
part_of 40
row=0

${CC:-cc} -O1 -o "$work/plans" "$here/gpu/plans.c" -I"$root/lib" -I"$build/include" \
  -I"$build/include/tutti-emu" -L"$build/lib" -ltutti-cudart -lnccl || exit 3
# $PER_HOST processes of the launch are one host.
# shellcheck disable=SC2016
printf '#!/bin/sh\nNCCL_HOSTID=host$((TUTTI_RANK / PER_HOST)) exec "$@"\n' >"$work/host"
chmod +x "$work/host"
export NCCL_SOCKET_IFNAME=lo SIMT_KERNELS="$work/kernels" SIMT_STEPS="$work/steps"
: >"$work/kernels"

# A shape is PROCESSESxGPUS, or PROCESSESxGPUS/PER_HOST if a host has several processes.
ranks_of() {
  echo $((${1%%x*} * $(echo "${1#*x}" | cut -d/ -f1)))
}

title_of() {
  case $1 in
    1x*) echo "$(ranks_of "$1") ranks of one process" ;;
    */*) echo "$(ranks_of "$1") ranks on $((${1%%x*} / ${1#*/})) hosts, ${1#*/} processes each" ;;
    *) echo "$(ranks_of "$1") ranks on ${1%%x*} hosts" ;;
  esac
}

# start SHAPE ARGS...: plans with these arguments.
start() {
  shape=$1
  shift
  gpus=$(echo "${shape#*x}" | cut -d/ -f1)
  per_host=1
  [ "${shape#*/}" = "$shape" ] || per_host=${shape#*/}
  launch="$build/bin/tutti launch -n ${shape%%x*} $work/host"
  [ "${shape%%x*}" -gt 1 ] || launch=
  # The launch's words are a list.
  # shellcheck disable=SC2086
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda PER_HOST=$per_host \
    TUTTI_EMU=mode=threads,devices=8 nice timeout 600 $launch "$work/plans" "$gpus" "$@" </dev/null
}

# try SHAPE MOST SETTINGS CALLS...: one row. SETTINGS: NAME=VALUE words.
try() {
  row=$((row + 1))
  in_part "$row" || return 0
  shape=$1 most=$2 settings=$3
  shift 3
  name=$(echo "$shape" | tr / _)
  # shellcheck disable=SC2163
  if (for setting in $settings; do export "$setting"; done
      start "$shape" "$most" "$work/keys.$name" "$@") >"$work/out" 2>"$work/log" &&
    grep -q 'plans of [1-9][0-9]* calls: ok$' "$work/out"; then
    sed -n 's/.*plans of \([0-9]*\) calls: ok$/\1/p' "$work/out" >>"$work/calls.$name"
  else
    cat "$work/out" >>"$work/log"
    check 1 "$(title_of "$shape"), $settings $*"
  fi
  echo "$shape" >>"$work/shapes"
}

# Short buffers: every protocol makes several loops of few bytes.
short="NCCL_BUFFSIZE=4096 NCCL_LL_BUFFSIZE=8192 NCCL_LL128_BUFFSIZE=15360"
direct="all_reduce reduce reduce_scatter all_gather broadcast all_to_all"
sums="all_reduce reduce reduce_scatter"

# Lists of calls are lists of words.
# shellcheck disable=SC2086
one_process() {
  shape=1x$1 most=$2
  for blocks in 1 2; do
    set -- "$short NCCL_MAX_CTAS=$blocks"
    for proto in LL LL128 Simple; do
      try "$shape" "$most" "$1 NCCL_ALGO=Ring NCCL_PROTO=$proto"
    done
    for proto in LL Simple; do
      try "$shape" "$most" "$1 TUTTI_SUM_ORDER=rank NCCL_PROTO=$proto" $sums
      try "$shape" "$most" "$1 NCCL_ALGO=Direct NCCL_PROTO=$proto" $direct
      try "$shape" "$most" "$1 NCCL_ALGO=TwoShot NCCL_PROTO=$proto" all_reduce
      try "$shape" "$most" "$1 NCCL_ALGO=Tree NCCL_PROTO=$proto" all_reduce
    done
    [ "$shape" = 1x2 ] || try "$shape" "$most" "$1 NCCL_ALGO=TwoShot NCCL_PROTO=Simple" broadcast reduce
  done
  try "$shape" 100000 NCCL_MAX_CTAS=5 # the tuner's own choice, with the usual buffers
}

# shellcheck disable=SC2086
several_processes() {
  shape=$1 most=$2
  for proto in LL Simple; do
    try "$shape" "$most" "$short NCCL_MAX_CTAS=1 NCCL_ALGO=Ring NCCL_PROTO=$proto"
    try "$shape" "$most" "$short NCCL_MAX_CTAS=1 NCCL_ALGO=Tree NCCL_PROTO=$proto" all_reduce
    try "$shape" "$most" "$short NCCL_MAX_CTAS=2 TUTTI_SUM_ORDER=rank NCCL_PROTO=$proto" $sums
  done
  try "$shape" "$most" "$short NCCL_MAX_CTAS=2 NCCL_ALGO=Direct NCCL_PROTO=LL" $direct
  try "$shape" "$most" NCCL_MAX_CTAS=2
}

# With all accesses of the kernels compared with PTX's memory model. Simple is ten times slower than LL. The
# two works of a tree over LL in place are ordered by the data alone, which the model does not count.
# shellcheck disable=SC2086
races() {
  set -- 1x3 "$short SIMT_RACES=1 SIMT_CAPABILITY=90 NCCL_MAX_CTAS=1"
  for proto in LL LL128; do try "$1" 2000 "$2 NCCL_ALGO=Ring NCCL_PROTO=$proto"; done
  try "$1" 2000 "$2 NCCL_ALGO=Direct NCCL_PROTO=LL" $direct
  try "$1" 2000 "$2 NCCL_ALGO=TwoShot NCCL_PROTO=LL" all_reduce
  try "$1" 2000 "$2 NCCL_ALGO=Tree NCCL_PROTO=LL" all_reduce out-of-place
  for call in all_reduce reduce reduce_scatter all_gather broadcast; do
    try "$1" 200 "$2 NCCL_ALGO=Ring NCCL_PROTO=Simple" $call
    try "$1" 200 "$2 NCCL_ALGO=Direct NCCL_PROTO=Simple" $call
  done
  for algo in TwoShot Tree; do try "$1" 200 "$2 NCCL_ALGO=$algo NCCL_PROTO=Simple" all_reduce; done
  for call in broadcast reduce; do try "$1" 200 "$2 NCCL_ALGO=TwoShot NCCL_PROTO=Simple" $call; done
}

# Calls of all kinds in turn, groups of two, which share a kernel, and bursts without a wait in between; the
# program compares their bits.
${CC:-cc} -O1 -o "$work/wrap" "$here/gpu/wrap.c" -I"$build/include" -I"$build/include/tutti-emu" \
  -L"$build/lib" -ltutti-cudart -lnccl || exit 3
for option in Ring:LL Ring:LL128 Ring:Simple Direct:LL Direct:Simple TwoShot:LL TwoShot:Simple Tree:LL \
  Tree:Simple; do
  LD_LIBRARY_PATH=$simt LD_PRELOAD=$simt/libtutti-simt.so TUTTI_BACKEND=cuda TUTTI_EMU=mode=threads \
    NCCL_MAX_CTAS=1 NCCL_ALGO=allreduce:${option%:*} NCCL_PROTO=${option#*:} \
    nice timeout 300 "$work/wrap" 3 500 1 >"$work/out" 2>"$work/log" </dev/null && grep -q ': ok$' "$work/out"
  check $? "mixed calls, groups and bursts of three ranks by $option move what the schedule says"
done
for ranks in 2 3 4 5 6 7 8; do
  one_process $ranks $((4096 * ranks))
done
for shape in 2x1 3x1 4x1 2x2 3x2 2x4 4x1/2; do several_processes $shape 8192; done
races
# Long copies have the kernel for copy engines: rings, chains, which go by slots, slots that are read at their
# sender, messages.
long="SIMT_CAPABILITY=90 NCCL_MAX_CTAS=1 NCCL_ALGO=Ring NCCL_PROTO=Simple"
try 1x2 3000000 "$long" all_gather
try 1x2 7000000 "$long SIMT_SEED=1" broadcast
try 1x2 3000000 "$long SIMT_SEED=2 NCCL_P2P_READ_ENABLE=1" all_gather
try 1x3 4000000 "$long SIMT_SEED=3" all_to_all exchange

for shape in $(awk '!seen[$0]++' "$work/shapes"); do
  name=$(echo "$shape" | tr / _)
  count=$(sort -u "$work/keys.$name" 2>/dev/null | wc -l)
  calls=$(awk '{ sum += $1 } END { print sum + 0 }' "$work/calls.$name" 2>/dev/null)
  [ "$count" -gt 0 ] && ! grep 'no plan is recorded' "$work/keys.$name" >"$work/log"
  check $? "$(title_of "$shape"): $count plans of $calls calls: every output element is its sum"
  [ "$parts" -eq 1 ] || continue
  start "$shape" options 2>"$work/log" | sort -u >"$work/options"
  cut -d' ' -f1-3 "$work/keys.$name" | sort -u | comm -13 - "$work/options" >>"$work/log"
  [ -s "$work/options" ] && [ ! -s "$work/log" ]
  check $? "... with each of the tuner's $(wc -l <"$work/options") triples of call, algorithm, protocol"
done

all=0 missing='' ran=0
for kernel in $(sed -n 's/^  CALL(\([a-z0-9_]*\), .*/\1/p' "$here/simt/kernels.cc"); do
  all=$((all + 1))
  if grep -qx "$kernel" "$work/kernels"; then ran=$((ran + 1)); else missing="$missing $kernel"; fi
done
if [ "$parts" -eq 1 ]; then
  [ -z "$missing" ]
  check $? "each of $all kernels ran there$missing"
else
  echo "# $ran of $all kernels ran, part $part of $parts"
fi
awk '{ works += $1 } END { print works + 0; exit !works }' "$work/steps" >"$work/works"
check $? "the reads, writes and posts of $(cat "$work/works") works are their schedule's"
[ "$failures" -eq 0 ]
