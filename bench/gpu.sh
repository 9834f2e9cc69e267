#!/usr/bin/env bash
# gpu.sh: on a machine with GPUs, checks this library and compares its speed with NVIDIA's. It needs a
# finished build, the programs of nccl-tests, bash, awk and coreutils; a C compiler only for the digests. The
# output of every command goes to files in $OUT; standard output has a line per check and, last, one table and
# one summary: the geometric mean of speed-ups per kind of run and collective, and the sizes at which this
# library is slower.
#
#     bench/gpu.sh check [nccl-tests|digests|sanitizer|graphs]
#     bench/gpu.sh bench [large|small|p2p|processes|registered|graphs|budget|init|hosts]
#     bench/gpu.sh tune
#     bench/gpu.sh all
#
# A name runs only that part; each part ends within MINUTES, and reports what it left out. Exit status 1: a
# check failed or a comparison could not be made; a missed target is not a failure.
#
#     BUILD=build          has lib/libnccl.so.2, lib/libtutti-cuda.so; and gpu/*, programs that must succeed
#     NCCL_TESTS=          folder of nccl-tests' *_perf programs, and of *_perf_mpi, made with MPI=1
#     MPIRUN="mpirun ..."  how processes are started; default: Open MPI's on this machine
#     COMM_INIT=           bench/comm_init.c as a program; default: cc builds it
#     COLLECTIVES="..."    those that bench measures, where a part measures several
#     NCCL_LIB=            NVIDIA's libnccl.so.2; default: what ldconfig or Python's nvidia.nccl has
#     DIGESTS=             folder with tests/digest.c as `digest-cuda` and `digest-emu`; default: cc builds
#     OUT=bench/results    where raw output goes, appended to gpu-<date>.txt
#     PROTO=               between hosts, NCCL_PROTO of this library alone: what each protocol takes
#     GPUS="1 2 4"         numbers of GPUs to check, as far as they are there; bench takes the largest, and
#                          some checks do. With NCCL_MULTI_RANK_GPU_ENABLE=1, numbers of ranks, which share
#                          the GPUs: check digests and check sanitizer alone
#     ROUNDS=3             times that the two libraries take turns; the table has medians
#     MINUTES=8            longest time of one part
#     QUICK=1              few sizes, one round: tries the script itself
#
# Each run's own NCCL_DEBUG=VERSION line must name the library that it is for. Settings of the library in the
# environment are unset, except NCCL_NVLS_ENABLE, which a machine may need.
set -u -o pipefail
unset NCCL_PROTO NCCL_ALGO NCCL_DEBUG NCCL_DEBUG_FILE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_BUFFSIZE \
  TUTTI_EMU TUTTI_SEED TUTTI_TRACE TUTTI_BACKEND NCCL_MAX_CTAS NCCL_HOSTID NCCL_P2P_DISABLE NCCL_SHM_DISABLE \
  TUTTI_EVENTS LD_PRELOAD LD_AUDIT
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
build=$(cd "${BUILD:-$root/build}" && pwd) || exit 3
tests=$(cd "${NCCL_TESTS:-.}" && pwd) || exit 3
toolkit=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "${OUT:-$here/results}" && out_folder=$(cd "${OUT:-$here/results}" && pwd) || exit 3
raw=$out_folder/gpu-$(date +%Y-%m-%d).txt
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
quick=${QUICK:-} rounds=${ROUNDS:-3} minutes=${MINUTES:-8}
[ -n "$quick" ] && rounds=1
failures=0 deadline=0 hang_count=0 details_max=10
all_collectives=${COLLECTIVES:-all_reduce all_gather reduce_scatter broadcast reduce alltoall sendrecv}
mpirun=${MPIRUN:-mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm_rsh_agent /bin/true}
: >"$work/rows"

# ---- running things

# The last command's failure: results that nccl-tests found wrong, or the end of its output.
detail() {
  awk '/^ *[0-9]+ +[0-9]+ / && NF >= 12 && ($9 + 0 > 0 || $13 + 0 > 0)' "$work/out" | head -n 3 >"$work/wrong"
  [ -s "$work/wrong" ] || tail -n 5 "$work/out" >"$work/wrong"
  strip <"$work/wrong" | cut -c1-160 | sed 's/^/    /'
}

# ok STATUS DESCRIPTION: prints one line; for the first failures also the output.
ok() {
  if [ "$1" -eq 0 ]; then
    echo "ok - $2" | tee -a "$raw"
    return
  fi
  echo "not ok - $2" | tee -a "$raw"
  failures=$((failures + 1))
  [ "$failures" -gt "$details_max" ] || detail
}

skip() { echo "skip: $1" | tee -a "$raw"; }

# Removes paths and names of this machine from the output.
strip() {
  sed -E "s#$work/##g; s#$build/#build/#g; s#$tests/##g; s#$root/##g; s# Pid +[0-9]+ on +[^ ]+ device# device#
    s#^[^ ]+:[0-9]+:[0-9]+ \[#[#; s#\b$(uname -n)(:| pid)#host\1#g"
}

part_begin() {
  deadline=$(($(date +%s) + minutes * 60))
  hang_count=0
}

# Seconds of LIMIT that the part still has; fails when it has none, or when programs keep hanging.
seconds_left() {
  local left=$((deadline - $(date +%s)))
  [ "$left" -gt 2 ] && [ "$hang_count" -lt 3 ] || return 1
  echo $((left < $1 ? left : $1))
}

# keep LIBRARY LIMIT COMMAND...: runs it with tutti's or nccl's library in front, at most LIMIT seconds;
# leaves the output in $work/out and in the raw file. 124: it hung; 125: there was no time left to run it.
keep() {
  local library=$1 seconds status folder backend=
  seconds=$(seconds_left "$2") || { echo "not run: no time left" >"$work/out"; return 125; }
  shift 2
  folder=$build/lib
  if [ "$library" = tutti ]; then backend=TUTTI_BACKEND=cuda; else folder=$work/nccl; fi
  printf '\n$ [%s] %s\n' "$library" "$*" | strip >>"$raw"
  # An empty $backend must not become a word.
  # shellcheck disable=SC2086
  env $backend NCCL_DEBUG=VERSION LD_LIBRARY_PATH="$folder:$toolkit/lib64:${LD_LIBRARY_PATH:-}" \
    timeout -k 5 "$seconds" "$@" >"$work/out" 2>&1
  status=$?
  strip <"$work/out" >>"$raw"
  [ "$status" -eq 0 ] || echo "exit status $status" | tee -a "$work/out" >>"$raw"
  case $status in 124 | 137) hang_count=$((hang_count + 1)) ;; esac
  return "$status"
}

# loaded LIBRARY: the output of the last command says that it loaded this library.
loaded() {
  case $1 in
    tutti) grep -q 'NCCL version .*(tutti' "$work/out" ;;
    nccl) grep -q 'NCCL version' "$work/out" && ! grep -q '(tutti' "$work/out" ;;
  esac && return
  echo "this was not the library asked for: $1" | tee -a "$raw" >>"$work/out"
  return 1
}

# perf LIBRARY LIMIT COLLECTIVE FLAGS...: runs a program of nccl-tests with the settings in $settings, in
# $processes processes unless that is 0, on two "hosts" if $hosts is set; true if every result is right.
perf() {
  local library=$1 limit=$2 program=$tests/$3_perf half=$((processes / 2))
  shift 3
  # Settings and launcher are lists of words.
  # shellcheck disable=SC2086
  if [ "$processes" -eq 0 ]; then
    keep "$library" "$limit" env $settings "$program" "$@"
  elif [ -z "$hosts" ]; then
    keep "$library" "$limit" $mpirun -n "$processes" env $settings "${program}_mpi" "$@"
  else
    keep "$library" "$limit" $mpirun -n $half env $settings NCCL_HOSTID=first "${program}_mpi" "$@" \
      : -n $half env $settings NCCL_HOSTID=second "${program}_mpi" "$@"
  fi || return
  loaded "$library" && grep -q '^# Out of bounds values *: 0 OK' "$work/out" &&
    grep -qE '^ *[0-9]+ +[0-9]+ ' "$work/out"
}

# ---- the machine

gpu_names() { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null; }

machine() {
  printf '\n======== bench/gpu.sh %s\n' "$*"
  gpu_names | sort | uniq -c | awk '{ count = $1; sub(/^ *[0-9]+ /, ""); print count " x " $0 }' |
    sed 's/, /, driver /'
  "$toolkit/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([^,]*\),.*/CUDA \1/p'
  echo "$(nproc) cores; Linux $(uname -r); NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-}; GPUs checked: $gpus"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  nvidia-smi topo -m 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' | grep '^GPU[0-9]' >>"$raw" || true
}

# Links NVIDIA's library to $work/nccl, so that no other library is in its folder.
nccl_find() {
  local path=${NCCL_LIB:-}
  [ -n "$path" ] || path=$(ldconfig -p 2>/dev/null | awk '$1 == "libnccl.so.2" { print $NF; exit }')
  [ -n "$path" ] || path=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' \
    2>"$work/out")/lib/libnccl.so.2
  if [ ! -f "$path" ] || grep -aq tutti_backend "$path"; then
    echo "no libnccl.so.2 of NVIDIA's: '$path'" >"$work/out"
    return 1
  fi
  mkdir -p "$work/nccl" && ln -sf "$(realpath "$path")" "$work/nccl/libnccl.so.2"
}

# ---- checks

# set_run COLLECTIVE FLAGS...: counts a run of this library; records a failure.
set_run() {
  local status
  perf tutti 100 "$@"
  status=$?
  [ "$status" -ne 125 ] || { left_out=$((left_out + 1)); return; }
  run_count=$((run_count + 1))
  [ "$status" -eq 0 ] || { ok 1 "nccl-tests $*"; wrong_count=$((wrong_count + 1)); }
}

# Every type and operator in and out of place, by threads and by one thread; many calls in a row; graphs. With
# the most GPUs also barriers between calls, registered and unaligned buffers, every root, a large one.
sets() {
  local collective=$1 n=$2 small="-b 8 -e 8M -f 64" every="-b 8 -e 8M -f 32 -d all -o all -n 1 -w 0"
  [ -n "$quick" ] && small="-b 8 -e 64K -f 64" every="-b 8 -e 64K -f 64 -d all -o all -n 1 -w 0"
  # The flags are lists of words.
  # shellcheck disable=SC2086
  {
    set_run "$collective" -t "$n" -g 1 -r $((n - 1)) $every
    [ "$n" -eq 1 ] || set_run "$collective" -t 1 -g "$n" $every
    [ -z "$quick" ] || return
    set_run "$collective" -t "$n" -g 1 -b 1000 -e 4000000 -f 3 -n 50 -w 5
    set_run "$collective" -t "$n" -g 1 $small -n 4 -w 1 -G 10
    [ "$n" -eq "$gpus_most" ] || return
    set_run "$collective" -t 1 -g "$n" $small -n 4 -w 1 -z 1
    set_run "$collective" -t "$n" -g 1 $small -n 4 -w 1 -R 1
    set_run "$collective" -t "$n" -g 1 $small -n 2 -w 1 -u 1 -d all
    set_run "$collective" -t "$n" -g 1 $small -n 2 -w 1 -r -1
    set_run "$collective" -t "$n" -g 1 -b 256M -e 256M -n 3 -w 1
  }
}

check_nccl_tests() {
  local collective n run_count wrong_count left_out
  if [ ! -x "$tests/all_reduce_perf" ]; then
    skip "nccl-tests: NCCL_TESTS names no folder with all_reduce_perf"
    return
  fi
  for n in $gpus_falling; do
    for collective in all_reduce reduce_scatter all_gather broadcast reduce alltoall sendrecv; do
      run_count=0 wrong_count=0 left_out=0
      sets "$collective" "$n"
      [ "$run_count" -eq 0 ] || [ "$wrong_count" -gt 0 ] || ok 0 "$collective, $n GPUs: $run_count runs"
      [ "$left_out" -eq 0 ] || skip "$collective, $n GPUs: $left_out runs left out: time or hangs"
    done
  done
}

# digest KIND: the program's path; builds it if DIGESTS has none; KIND is cuda or emu.
digest_build() {
  digest=${DIGESTS:-$work}/digest-$1
  [ ! -x "$digest" ] || return 0
  local include=$build/include/tutti-emu libraries="-ltutti-cudart -lnccl"
  [ "$1" = emu ] || { include=$toolkit/include libraries="-L$toolkit/lib64 -lcudart -lnccl"; }
  # shellcheck disable=SC2086
  cc -O2 -o "$digest" "$root/tests/digest.c" -I"$build/include" -I"$include" -L"$build/lib" $libraries \
    >"$work/out" 2>&1
}

# digest_run SETTINGS RANKS COUNT...: the GPUs' lines to $work/gpu.
digest_run() {
  local settings=$1
  shift
  digest_build cuda || return
  # shellcheck disable=SC2086
  keep tutti 100 env $settings "$digest" "$@" || return
  loaded tutti && grep -v '^NCCL version\|^\[' "$work/out" >"$work/gpu"
}

# digest_same FILE: compares the GPUs' lines with this file; else reports how many differ, and the first.
digest_same() {
  grep -v '^#' "$1" | diff - "$work/gpu" >"$work/out" && return
  {
    grep '^<' "$work/out" | awk '{ print $2 }' | sort | uniq -c | awk '{ printf "%s %d lines; ", $2, $1 }'
    echo
    grep '^[<>]' "$work/out" | head -n 4
  } >"$work/difference"
  mv "$work/difference" "$work/out"
  cat "$work/out" >>"$raw"
  return 1
}

digest_recorded() {
  local n=$1 protocol=$2 golden=$root/tests/golden/digests-$1-$2.txt
  [ -f "$golden" ] || golden=$root/tests/golden/digests-$n.txt
  [ -f "$golden" ] || return 0
  digest_run "$(sed -n 's/^# settings: //p' "$golden") NCCL_PROTO=$protocol NCCL_ALGO=Ring" "$n" &&
    digest_same "$golden"
  ok $? "digests, $n GPUs, $protocol: the recorded bits (small buffers)"
}

# The order of a sum depends on the algorithm: both sides use the same one.
direct="allreduce:Direct;allgather:Direct;reducescatter:Direct;broadcast:Direct;reduce:Direct"

# The same with buffers of the usual size, and more elements, against the emulator on this machine, whose own
# are shorter: the size of a ring's chunks decides the order of a sum.
digest_live() {
  local n=$1 protocol=$2 channels=$3 algos=${4:-Ring} counts="777 300000 300011"
  digest_build emu || { ok 1 "digest.c builds for the emulator"; return; }
  # shellcheck disable=SC2086
  env NCCL_PROTO="$protocol" NCCL_ALGO="$algos" TUTTI_EMU=mode=threads,channels="$channels" \
    NCCL_BUFFSIZE=4194304 \
    LD_LIBRARY_PATH="$build/lib" timeout 100 "$digest" "$n" $counts >"$work/emu" 2>"$work/out" &&
    digest_run "NCCL_MAX_NCHANNELS=$channels NCCL_PROTO=$protocol NCCL_ALGO=$algos" "$n" $counts &&
    digest_same "$work/emu"
  ok $? "digests, $n GPUs, $protocol, ${algos%%:*}, $channels channels: the emulator's bits (usual buffers)"
}

check_digests() {
  local n protocol before=$failures
  for n in $gpus_falling; do
    for protocol in Simple LL LL128; do
      digest_recorded "$n" "$protocol"
      digest_live "$n" "$protocol" 4
    done
    digest_live "$n" Simple 1 # long enough for bulk copies
    for protocol in LL Simple; do
      digest_live "$n" $protocol 4 "$direct"
      digest_live "$n" $protocol 16 "${direct/Direct/TwoShot}"
    done
  done
  [ "$failures" -ne "$before" ] || gpu_names | sort -u | head -n 1 |
    sed 's/, /, driver /; s/^/for the golden files of the numbers checked: # recorded on: /'
}

# sanitize TOOL PROTOCOL SUMMARY: compute-sanitizer's tool finds nothing in small all-reduces.
sanitize() {
  local n
  n=$(echo "$gpus" | tr ' ' '\n' | awk 'NR == 1 || $1 <= 2' | tail -n 1)
  keep tutti 150 env NCCL_PROTO="$2" "$sanitizer" --tool "$1" --report-api-errors no --error-exitcode 9 \
    "$tests/all_reduce_perf" -b 8 -e 64K -f 8 -g "$n" -n 1 -w 0 && loaded tutti && grep -q "$3" "$work/out"
  ok $? "compute-sanitizer $1, $n GPUs, $2: nothing found"
}

check_sanitizer() {
  local protocol sanitizer
  sanitizer=$(command -v compute-sanitizer || echo "$toolkit/bin/compute-sanitizer")
  if [ ! -x "$sanitizer" ] || [ ! -x "$tests/all_reduce_perf" ]; then
    skip "sanitizer: no compute-sanitizer, or no all_reduce_perf in NCCL_TESTS"
    return
  fi
  for protocol in Simple LL LL128; do
    sanitize memcheck "$protocol" 'ERROR SUMMARY: 0 errors'
  done
  skip "racecheck: the warps of a block meet through words of shared memory, which it takes for races"
}

# Our own programs: graphs, aborts and other things that nccl-tests does not test.
check_graphs() {
  local program found=0
  for program in "$build"/gpu/*; do
    if [ -d "$program" ] || [ ! -x "$program" ]; then continue; fi
    found=1
    keep tutti 60 "$program"
    ok $? "build/gpu/$(basename "$program")"
  done
  [ "$found" -eq 1 ] || skip "graphs: no programs in build/gpu"
}

# ---- comparisons

# measure LIBRARY MODE COLLECTIVE FLAGS...: one library's half of a turn; stores a row per size.
measure() {
  local library=$1 mode=$2
  shift 2
  if ! perf "$library" 100 "$@" -d float -o sum; then
    ok 1 "$mode, $library: $settings $*"
    return
  fi
  grep -o -m 1 'NCCL version.*' "$work/out" >"$work/version.$library"
  awk -v library="$library" -v mode="$mode" -v collective="$1" '/^ *[0-9]+ +[0-9]+ / && NF >= 12 {
    print mode, collective, $1, library, $6, $8 }' "$work/out" >>"$work/rows"
}

# turn MODE COLLECTIVE FLAGS...: NCCL's library, then this one, with the same flags.
turn() {
  measure nccl "$@" -c 0
  measure tutti "$@" -c 0
}

turns_large() {
  local collective last=2G
  [ -n "$quick" ] && last=128M
  for collective in all_reduce all_gather reduce_scatter broadcast reduce; do
    turn large "$collective" -t "$gpus_most" -g 1 -b 64M -e $last -f 2 -n 5 -w 2
  done
}

turns_p2p() {
  local collective
  for collective in sendrecv alltoall; do
    turn p2p "$collective" -t "$gpus_most" -g 1 -b 64M -e 1G -f 16 -n 5 -w 2
  done
}

turns_small() {
  local last=64M iterations=100
  [ -n "$quick" ] && last=32K iterations=10
  turn plain all_reduce -t "$gpus_most" -g 1 -b 8 -e $last -f 4 -n $iterations -w 20
  turn graph all_reduce -t "$gpus_most" -g 1 -b 8 -e $last -f 4 -n 20 -w 5 -G $((iterations / 10))
}

# One process per GPU, the usual way to start programs.
turns_processes() {
  local collective first=1K last=1G processes=$gpus_most
  [ -n "$quick" ] && last=1M
  for collective in $all_collectives; do
    if [ "$collective" = all_reduce ]; then first=8; else first=1K; fi
    turn processes "$collective" -g 1 -b $first -e $last -f 4 -n 20 -w 5
  done
}

# NCCL's best of plain, registered and symmetric buffers, beside this library with plain buffers.
turns_registered() {
  local collective option last=1G
  [ -n "$quick" ] && last=1M
  for collective in $all_collectives; do
    for option in 0 1 2; do
      measure nccl registered "$collective" -t "$gpus_most" -g 1 -b 8 -e $last -f 4 -n 20 -w 5 -c 0 -R $option
    done
    measure tutti registered "$collective" -t "$gpus_most" -g 1 -b 8 -e $last -f 4 -n 20 -w 5 -c 0
  done
}

turns_graphs() {
  local collective last=16M
  [ -n "$quick" ] && last=32K
  for collective in $all_collectives; do
    turn graphs "$collective" -t "$gpus_most" -g 1 -b 8 -e $last -f 4 -n 10 -w 3 -G 10
  done
}

# No more than eight multiprocessors for a collective.
turns_budget() {
  local collective last=1G settings="NCCL_MAX_CTAS=8 NCCL_MAX_NCHANNELS=8"
  [ -n "$quick" ] && last=16M
  for collective in $all_collectives; do
    turn budget "$collective" -t "$gpus_most" -g 1 -b 16M -e $last -f 8 -n 5 -w 2
  done
}

# Two hosts by name, on this machine: TCP over the loopback interface. NCCL would still find shared memory.
turns_hosts() {
  local collective hosts=1 settings processes last=64M count=2
  local common="NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1"
  [ -n "$quick" ] && last=1M
  [ "$gpus_most" -lt 4 ] || count="2 4"
  for processes in $count; do
    for collective in all_reduce all_gather sendrecv; do
      settings="$common NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"
      measure nccl "hosts$processes" "$collective" -g 1 -b 1K -e $last -f 4 -n 10 -w 2 -c 0
      settings="$common${PROTO:+ NCCL_PROTO=$PROTO}"
      measure tutti "hosts$processes" "$collective" -g 1 -b 1K -e $last -f 4 -n 10 -w 2 -c 0
    done
  done
}

# Time to make communicators, and their GPU memory.
turns_init() {
  local library status program=${COMM_INIT:-$work/comm_init}
  [ -x "$program" ] || cc -O2 -o "$program" "$here/comm_init.c" -I"$build/include" -I"$toolkit/include" \
    -L"$build/lib" -L"$toolkit/lib64" -lcudart -lnccl >"$work/out" 2>&1 || {
    ok 1 "comm_init.c builds"
    return
  }
  for library in nccl tutti; do
    keep "$library" 60 "$program" "$gpus_most" && loaded "$library"
    status=$?
    ok $status "init, $library: $(sed -n 's/^init: //p' "$work/out")"
  done
}

# Every option of every collective, one process per GPU, into $OUT/gpus<N>-<date>.tune, which TUTTI_TUNE_FILE
# takes; then NCCL beside this library with those rules, and without.
turns_tune() {
  local collective first last=1G processes=$gpus_most settings rules
  rules=$out_folder/gpus$gpus_most-$(date +%Y-%m-%d).tune
  [ -n "$quick" ] && last=64K
  for collective in all_reduce all_gather reduce_scatter broadcast reduce; do
    if [ "$collective" = all_reduce ]; then first=8; else first=1K; fi
    # The launcher is a list of words.
    # shellcheck disable=SC2086
    keep tutti 200 $mpirun -n "$processes" "$build/bin/tutti" bench "$collective" --gpu -b $first -e $last \
      -f 4 -n 20 -w 5 -c 0 --tune "$rules" && loaded tutti
    ok $? "tune, $collective: $(grep -c "^$collective " "$rules" 2>/dev/null) rules"
    settings=
    turn processes "$collective" -g 1 -b $first -e $last -f 4 -n 20 -w 5
    settings="TUTTI_TUNE_FILE=$rules"
    turn tuned "$collective" -g 1 -b $first -e $last -f 4 -n 20 -w 5
  done
}

# bench PART: its turns, as many rounds as time allows.
bench() {
  local round begin now rounds=$rounds
  if [ ! -x "$tests/all_reduce_perf" ] || ! nccl_find; then
    ok 1 "bench $1: needs NCCL_TESTS and NVIDIA's library"
    return
  fi
  case $1 in
    processes | hosts | tune)
      [ "$1" != tune ] || rounds=1
      if [ ! -x "$tests/all_reduce_perf_mpi" ] || ! command -v "${mpirun%% *}" >/dev/null; then
        skip "bench $1: no mpirun, or no all_reduce_perf_mpi in NCCL_TESTS"
        return
      fi ;;
    registered | graphs | budget) [ "$rounds" -le 2 ] || rounds=2 ;;
  esac
  begin=$(date +%s)
  for round in $(seq "$rounds"); do
    now=$(date +%s)
    if [ "$round" -gt 1 ] && [ $((deadline - now)) -lt $(((now - begin) / (round - 1))) ]; then
      skip "bench $1: round $round and later: no time left"
      break
    fi
    "turns_$1"
  done
}

# awk functions of the table and the summary: the median of value[key, 1..count[key]], and sizes as text.
functions='
  function median(key, i, j, n, swap) {
    n = count[key]
    for (i = 2; i <= n; i++)
      for (j = i; j > 1 && value[key, j] < value[key, j - 1]; j--) {
        swap = value[key, j]; value[key, j] = value[key, j - 1]; value[key, j - 1] = swap
      }
    return n % 2 ? value[key, (n + 1) / 2] : n ? (value[key, n / 2] + value[key, n / 2 + 1]) / 2 : 0
  }
  function size(bytes) {
    if (bytes >= 1073741824) return bytes / 1073741824 "G"
    if (bytes >= 1048576) return bytes / 1048576 "M"
    return bytes >= 1024 ? bytes / 1024 "K" : bytes ""
  }
'

# Medians of the rows, in the order of the runs; with a pattern, only of the modes that match it.
table() {
  grep -E "^(${1:-.*}) " "$work/rows" | awk -v gpus="$gpus_most" "$functions"'
    function is_bandwidth(mode) { return mode == "large" || mode == "p2p" || mode == "budget" }
    function target(mode, collective, bytes, ratio, ours) {
      if (mode == "budget" && (bytes < 134217728 || collective == "reduce")) return "-"
      if (mode == "budget" && collective ~ /reduce/) return ours >= 280 ? "yes" : "no (280)"
      if (mode == "budget") return ours >= 330 ? "yes" : "no (330)"
      if (mode !~ /^(large|p2p|plain|graph)$/) return ratio <= 1 ? "yes" : "no (1.00)"
      if (mode == "large") return ratio >= 0.97 ? "yes" : "no (0.97)"
      if (mode == "p2p") return ratio >= 0.95 ? "yes" : "no (0.95)"
      return bytes > 32768 ? "-" : ratio <= 1 ? "yes" : "no (1.00)"
    }
    { name = $1 " " $2 " " $3
      if (!(name in seen)) { seen[name] = 1; names[++name_count] = name }
      key = name " " $4
      value[key, ++count[key]] = is_bandwidth($1) ? $6 + 0 : $5 + 0 }
    END {
      if (!name_count) exit
      printf "%d GPUs, float, sum, out of place; medians; ratio is tutti / NCCL\n", gpus
      printf "%-22s %6s %9s %9s      %6s  %s\n", "collective", "bytes", "NCCL", "tutti", "ratio", "target met"
      for (i = 1; i <= name_count; i++) {
        split(names[i], part, " ")
        nccl = median(names[i] " nccl")
        ours = median(names[i] " tutti")
        ratio = nccl > 0 ? ours / nccl : 0
        verdict = ratio > 0 ? target(part[1], part[2], part[3], ratio, ours) : "not measured"
        unit = is_bandwidth(part[1]) ? "GB/s" : "us"
        title = part[1] == "graph" ? part[2] ", in a graph" : part[2]
        if (part[1] ~ /^(processes|tuned|registered|graphs|budget|hosts)/) title = part[1] " " part[2]
        printf "%-22s %6s %9.2f %9.2f %-4s %6.2f  %s\n", title, size(part[3]), nccl, ours, unit, ratio,
          verdict
      }
    }'
}

# NCCL's median time divided by this library's; for registered buffers NCCL's best option counts. Sizes at
# which this library is more than 2 % slower are named, with the ratio of times.
summary() {
  awk "$functions"'
    function best(key, i, least) {
      for (i = 1; i <= count[key]; i++) if (!least || value[key, i] < least) least = value[key, i]
      return least
    }
    $5 + 0 > 0 {
      row = $1 " " $2
      if (!(row in seen)) { seen[row] = 1; rows[++row_count] = row }
      if (!((row, $3) in known)) { known[row, $3] = 1; sizes[row, ++size_count[row]] = $3 }
      key = row " " $3 " " $4
      value[key, ++count[key]] = $5 + 0 }
    END {
      if (!row_count) exit
      printf "%-26s %5s %9s  %s\n", "speed-up over NCCL", "sizes", "geo. mean", "slower at (NCCL time / ours)"
      for (r = 1; r <= row_count; r++) {
        row = rows[r]; logs = 0; n = 0; slower = ""
        for (s = 1; s <= size_count[row]; s++) {
          bytes = sizes[row, s]
          nccl = row ~ /^registered/ ? best(row " " bytes " nccl") : median(row " " bytes " nccl")
          ours = median(row " " bytes " tutti")
          if (nccl <= 0 || ours <= 0) continue
          logs += log(nccl / ours); n++
          if (nccl / ours < 0.98) slower = slower sprintf(" %s:%.2f", size(bytes), nccl / ours)
        }
        if (n) printf "%-26s %5d %9.2f %s\n", row, n, exp(logs / n), slower == "" ? " nowhere" : slower
      }
    }' "$work/rows"
}

# ---- what was asked for

present=$(gpu_names | wc -l)
gpus=
for n in ${GPUS:-1 2 4}; do
  [ "$n" -gt "$present" ] && [ "${NCCL_MULTI_RANK_GPU_ENABLE:-0}" != 1 ] || gpus="$gpus $n"
done
gpus=${gpus# }
[ -n "$gpus" ] || { echo "not ok - nvidia-smi tells of $present GPUs here: nothing to check" >&2; exit 1; }
gpus_falling=$(echo "$gpus" | tr ' ' '\n' | sort -rn | tr '\n' ' ')
gpus_most=${gpus_falling%% *}

case ${1:-all} in
  check) parts="check-${2:-*}" ;;
  bench) parts="bench-${2:-*}" ;;
  tune) parts=tune ;;
  all) parts="*" ;;
  *) sed -n '/^#  *bench\/gpu.sh/s/^# *//p' "$0" >&2; exit 2 ;;
esac
machine "$@" | tee -a "$raw"
known=0
processes=0 hosts='' settings=''
for part in check-digests check-graphs check-sanitizer check-nccl-tests bench-large bench-p2p bench-small \
  bench-processes bench-registered bench-graphs bench-budget bench-init bench-hosts tune; do
  # A pattern is wanted.
  # shellcheck disable=SC2254
  case $part in $parts) ;; *) continue ;; esac
  known=1
  part_begin
  case $part in
    check-nccl-tests) check_nccl_tests ;;
    check-*) "check_${part#check-}" ;;
    *) bench "${part#bench-}" ;;
  esac
done
[ "$known" -eq 1 ] || { echo "no such part: ${2:-}" >&2; exit 2; }
{
  sort -u "$work"/version.* 2>/dev/null
  table 'large|p2p|plain|graph|budget'
  summary
} | tee -a "$raw"
# The other rows go only to the raw file.
table 'processes|tuned|registered|graphs|hosts[0-9]*' >>"$raw"
[ "$failures" -eq 0 ] || echo "$failures not ok"
[ "$failures" -eq 0 ]
