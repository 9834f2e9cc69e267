#!/bin/sh
# test_bench.sh: `tutti bench` from outside: the format of the table and of the JSON file, exit codes of
# misuse, correct results of every collective in both modes, equal traces for equal seeds. Prints one `ok -
# ` or `not ok - ` line per check and fails if a check failed. Finds the command at
# ${BUILD:-build}/bin/tutti; QUICK=1 runs fewer sizes.
set -u
unset NCCL_PROTO NCCL_ALGO NCCL_TESTS_MIN_BW TUTTI_EMU TUTTI_SEED TUTTI_EVENTS TUTTI_MOVES \
  NCCL_DEBUG TUTTI_CUSTOM_FILE
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
tutti=${BUILD:-$here/../build}/bin/tutti
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
export TUTTI_TRACE="$work/"
failures=0
collectives="all_reduce all_gather reduce_scatter broadcast reduce sendrecv alltoall gather scatter"

# check STATUS DESCRIPTION: prints one line; on failure also the output of the last command.
check() {
  if [ "$1" -eq 0 ]; then
    echo "ok - $2"
    return
  fi
  echo "not ok - $2"
  for stream in out err; do
    [ -s "$work/$stream" ] && tail -n 20 "$work/$stream" | sed 's/^/    /'
  done
  failures=$((failures + 1))
}

# try CODE ARGUMENTS...: runs the command for at most a minute; true if it exits with CODE.
try() {
  expected=$1
  shift
  timeout 60 "$tutti" "$@" >"$work/out" 2>"$work/err" </dev/null
  code=$?
  [ "$code" -eq "$expected" ] && return 0
  echo "tutti $* : exit code $code, expected $expected" >>"$work/err"
  return 1
}

# misuse CODE TEXT ARGUMENTS...: the command exits with CODE and prints TEXT on standard error.
misuse() {
  code_wanted=$1
  text=$2
  shift 2
  try "$code_wanted" "$@" && grep -qF -e "$text" "$work/err"
  check $? "exit code $code_wanted and \`$text\`: tutti $*"
}

# Masks what varies between machines and models; keeps what a script would parse.
normalise() {
  sed -E -e 's/^# tutti .*/# tutti VERSION/' \
    -e '/^#  Rank/s/ Pid +[0-9]+ on +[^ ]+ device +/ Pid PID on HOST device /' \
    -e '/^#  Rank/s/ \[[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\] .*/ [BUS] NAME/' \
    -e 's/^(# Avg bus bandwidth    :) [0-9.e+-]+/\1 BANDWIDTH/' "$1" |
    awk '/^#/ { print; next }
      { columns = NF; width = length($0)
        printf "%s %s %s %s %s", $1, $2, $3, $4, $5
        for (i = 6; i <= NF; i++) {
          is_number = $i ~ /^[0-9]+\.[0-9][0-9]?$/
          printf " %s", is_number && i != 9 && i != 13 ? "N" : $i
        }
        printf " (%d columns, %d wide)\n", columns, width }'
}

[ -x "$tutti" ] || { echo "not ok - $tutti is there"; exit 1; }

# ---- the table
try 0 bench all_reduce --ranks 2 -b 8 -e 128 -f 4 --seed 7
check $? "bench all_reduce runs"
normalise "$work/out" >"$work/table"
diff -u "$here/golden/bench_table.txt" "$work/table" >"$work/err"
check $? "the table has the documented format"
try 0 bench sendrecv --ranks 3 -b 4K -e 4K -q
! grep -q '^#' "$work/out" && [ "$(awk '{print $9, $10, $13}' "$work/out")" = "0 N/A N/A" ]
check $? "--quiet prints only rows; sendrecv has no in-place columns"
try 0 bench all_reduce --ranks 2 -b 1K -e 1K --threads && grep -q ' (us)  (GB/s)' "$work/out" &&
  ! grep -q modelled "$work/out"
check $? "--threads prints measured times without the mark of predictions"
try 0 bench all_gather --ranks 4 -b 100 -e 100 -d double -q &&
  [ "$(awk '{print $1, $2}' "$work/out")" = "64 2" ]
check $? "all_gather's size is the size of all ranks, and each part is a multiple of 16 bytes"
try 0 bench all_reduce --ranks 2 -b 16 -e 64 -i 16 -q && [ "$(wc -l <"$work/out")" -eq 4 ]
check $? "-i steps sizes by bytes"
try 0 bench reduce --ranks 3 -r all -o all -d all -b 64 -e 64 -q && [ "$(wc -l <"$work/out")" -eq 216 ]
check $? "-r all -o all -d all covers 3 roots, 6 operators, 12 types"
try 0 bench all_reduce_perf --ranks 2 -e 64 --rate &&
  grep -qE '^# Emulator events [1-9][0-9]* steps [1-9]' "$work/out"
check $? "--rate prints numbers of events and steps"

# ---- JSON
try 0 bench all_reduce --ranks 2 -b 8 -e 64 -J "$work/file.json" &&
  python3 -m json.tool "$work/file.json" >/dev/null
check $? "-J writes well-formed JSON"
try 0 bench alltoall --ranks 2 -b 8 -e 64 --json && cp "$work/out" "$work/stdout.json" &&
  python3 - "$work/file.json" "$work/stdout.json" >"$work/out" 2>"$work/err" <<'PYTHON'
import json, sys
keys = ('version start_time args env nccl_version devices config results out_of_bounds average_bus_bandwidth '
        'end_time').split()
for path in sys.argv[1:]:
    run = json.load(open(path))
    missing = [key for key in keys if key not in run]
    assert not missing, missing
    assert run['version'] == 3 and run['modelled'] is True and len(run['devices']) == 2
    sizes = [8, 16, 32, 64] if 'all_reduce' in run['args'] else [0, 0, 32, 64]
    assert [row['size'] for row in run['results']] == sizes
    for row in run['results']:
        assert set(row) == set('size count type redop root out_of_place in_place'.split()), row
        for half in ('out_of_place', 'in_place'):
            assert set(row[half]) == {'time', 'alg_bw', 'bus_bw', 'nwrong'}, row
        assert row['out_of_place']['nwrong'] == 0
        assert (row['in_place']['time'] is None) == ('alltoall' in run['args'])
PYTHON
check $? "JSON has nccl-tests' keys, version 3"

# ---- misuse
misuse 2 "did you mean \`bench\`" bnech
misuse 2 "did you mean \`all_reduce\`" bench allreduce
misuse 2 "did you mean \`--iters\`" bench all_reduce --itres 3
misuse 2 "no flag \`-Q\`" bench all_reduce -Q
misuse 2 "needs a value" bench all_reduce --minbytes
misuse 2 "not a number" bench all_reduce -b 8x
misuse 2 "must be 1 to 8" bench all_reduce --slots 9
misuse 2 "did you mean \`float\`" bench all_reduce -d flaot
misuse 2 "must be 0 to 1, or all" bench reduce --ranks 2 -r 2
misuse 2 "is below -b" bench all_reduce -b 8K -e 1K
misuse 2 "give one of them" bench all_reduce -i 8 -f 2
misuse 2 "needs --threads" bench all_reduce -C 1
misuse 2 "needs the guarded mode" bench all_reduce --threads --trace "$work/never"
misuse 2 "needs one collective" bench
misuse 2 "not a decimal" bench all_reduce --seed banana
misuse 2 "what is asked for" trace
try 0 bench all_reduce --ranks 3 -b 4K -e 4K --in-place -q &&
  grep -Eq '^ +4096 +1024 +float +sum +-1 +N/A +N/A +N/A +N/A +[0-9.]+ +[0-9.]+ +[0-9.]+ +0$' "$work/out"
check $? '--in-place leaves the other half of a row out'
misuse 2 "the collective has no in-place form" bench sendrecv --in-place
misuse 3 "the buffers of 4096 ranks take 70368.7 GB of memory, and" bench all_reduce --ranks 4096 -b 8G -e 8G
misuse 3 "the buffers of 4096 ranks take" bench all_gather --ranks 4096 -b 8G -e 8G --threads
misuse 3 "cannot be written" bench all_reduce --ranks 2 -e 8 -J "$work/no/such/folder.json"
misuse 3 "refuses its settings" bench all_reduce --ranks 2 -e 8 --trace "$work/no/such/folder.tr"
misuse 4 "cannot be read" trace dump "$work/absent.tr"
misuse 4 "this is no file of records" trace dump "$tutti"
NCCL_TESTS_MIN_BW=1e9 misuse 1 "below NCCL_TESTS_MIN_BW" bench all_reduce --ranks 2 -e 8

# ---- help
try 0 help bench && grep -q -- '-b, --minbytes BYTES' "$work/out" && grep -q -- '--flag-bits' "$work/out"
check $? "help bench lists the flags"
try 0 bench --help && cp "$work/out" "$work/help" && try 0 help bench && cmp -s "$work/help" "$work/out"
check $? "bench --help is help bench"
try 0 help params && grep -q '^NCCL_BUFFSIZE ' "$work/out" && grep -q '^TUTTI_SEED ' "$work/out"
check $? "help params lists the library's settings"
grep -q '^Names that are accepted and have no effect' "$work/out" &&
  grep -q '^NCCL_NVTX_DISABLE$' "$work/out" && ! grep -q 'not implemented' "$work/out"
check $? "help params lists the accepted names without effect"
try 0 help --man params && grep -q '^\.SH ACCEPTED NAMES$' "$work/out" &&
  grep -q '^.fBNCCL_NVTX_DISABLE.fR$' "$work/out" &&
  grep -q '^.fBNCCL_BUFFSIZE.fR (default: 4194304;' "$work/out"
check $? "help --man params is a manual page with both lists"
try 0 --version && grep -q '^tutti [0-9]' "$work/out"
check $? "--version prints the version"

# ---- tuning
printf '# kept\nbroadcast 8 16 algo=Ring proto=LL\nall_reduce 8 1K ranks=5 algo=Ring proto=LL\n' >"$work/tune"
printf 'all_reduce 8 1K nodes=1 ranks=3 algo=Ring proto=LL128\n' >>"$work/tune"
try 0 bench all_reduce --ranks 3 -b 64 -e 1K -f 4 -n 1 -w 0 --channels 2 --tune "$work/tune"
check $? "bench --tune runs"
grep -q '^# kept$' "$work/tune" && grep -q '^broadcast 8 16 algo=Ring proto=LL$' "$work/tune" &&
  grep -q '^all_reduce 8 1K ranks=5' "$work/tune" && ! grep -q LL128$ "$work/tune" &&
  grep -qE '^all_reduce 64 [0-9]+ ranks=3 nodes=1 algo=[A-Za-z]+ proto=[A-Z0-9a-z]+ channels=[12] # ' \
    "$work/tune" &&
  grep -qE '^all_reduce [0-9]+ 4096 ranks=3' "$work/tune"
check $? "--tune keeps other lines, and its rules cover each size up to the next"
export TUTTI_TUNE_FILE="$work/tune"
try 0 explain plan all_reduce -b 1K -g 3 && grep -q 'chosen by line [0-9]* of the tuning file' "$work/out"
check $? "the tuner uses the rules of the file"
unset TUTTI_TUNE_FILE
echo 'all_reduce 8' >"$work/tune"
misuse 4 "tune:1: expected the size at which the rule ends" \
  bench all_reduce --ranks 2 -e 64 --tune "$work/tune"
[ "$(cat "$work/tune")" = 'all_reduce 8' ]
check $? "a malformed tuning file is not overwritten"
misuse 2 "sendrecv has only one option" bench sendrecv --ranks 2 -e 64 --tune "$work/other"
misuse 2 "needs sizes above 0" bench all_reduce --ranks 2 -b 0 -e 64 --tune "$work/other"
misuse 3 "cannot be written" bench all_reduce --ranks 2 -b 64 -e 64 -n 1 -w 0 --tune "$work/none/other"

# ---- another library and another CUDA runtime: here this build's own, as files
lib=${BUILD:-$here/../build}/lib
export TUTTI_BACKEND=emu TUTTI_EMU=mode=threads
try 0 bench all_reduce --ranks 3 -b 8 -e 64K -f 16 -n 2 --cudart "$lib/libtutti-cudart.so" &&
  grep -q '^# nccl-library=[0-9]* of .*/libnccl.so.2' "$work/out" && ! grep -q Emulator "$work/out" &&
  [ "$(awk '!/^#/ { wrong += $9 + $13; rows += 1 } END { print rows, wrong }' "$work/out")" = "4 0" ]
check $? "--cudart: a library loaded as a file is measured, with right results"
try 0 bench alltoall --nccl "$lib/libnccl.so.2" --cudart "$lib/libtutti-cudart.so" -e 1K -f 32 -G 2 \
  -J "$work/gpu.json" && grep -q 'nGpus 8 ' "$work/out" && grep -q '"mode": "gpu"' "$work/gpu.json" &&
  grep -q '"library": ".*libnccl.so.2"' "$work/gpu.json"
check $? "--nccl: one rank per device; graphs; the JSON names the library"
rm -f "$work/tune"
try 0 bench all_gather --ranks 3 -b 1K -e 64K -f 4 -n 2 -w 1 --cudart "$lib/libtutti-cudart.so" \
  --tune "$work/tune" && ! grep -q channels= "$work/tune" &&
  grep -qE '^all_gather 1008 [0-9]+ ranks=3 nodes=1 algo=[A-Za-z]+ proto=[A-Z0-9a-z]+ # ' "$work/tune"
check $? "--tune reads the options of the loaded library, and leaves the channels to it"
timeout 60 "$tutti" launch -n 2 "$tutti" bench all_reduce -b 1K -e 1K -n 2 -q \
  --cudart "$lib/libtutti-cudart.so" >"$work/out" 2>"$work/err" && [ "$(wc -l <"$work/out")" -eq 1 ]
check $? "--cudart works in two processes"
rm -f "$work/tune"
timeout 60 "$tutti" launch -n 2 "$tutti" bench all_reduce -b 1K -e 64K -f 8 -n 1 -w 0 --tune "$work/tune" \
  --cudart "$lib/libtutti-cudart.so" >"$work/out" 2>"$work/err" &&
  grep -qE '^all_reduce 1024 [0-9]+ ranks=2 nodes=1 algo=' "$work/tune"
check $? "--tune works in two processes"
misuse 2 "9 ranks in this process, and 8 GPUs are visible; take fewer (-g, -t), or set NCCL_MULTI_RANK_GPU" \
  bench all_reduce -g 9 --cudart "$lib/libtutti-cudart.so"
NCCL_MULTI_RANK_GPU_ENABLE=1 \
  try 0 bench all_reduce -g 9 -b 1K -e 1K -n 2 --cudart "$lib/libtutti-cudart.so" &&
  grep -qE 'Rank +7 .* device +7 ' "$work/out" && grep -qE 'Rank +8 .* device +0 ' "$work/out"
check $? "with NCCL_MULTI_RANK_GPU_ENABLE=1 nine ranks share eight GPUs"
misuse 3 "has no ncclGetVersion; take NCCL 2.28 or newer" bench all_reduce --nccl "$lib/libtutti-audit.so"
misuse 3 "take the runtime of CUDA 12" bench all_reduce --cudart "$lib/libtutti-audit.so"
unset TUTTI_BACKEND TUTTI_EMU
misuse 3 "no/such/libcudart.so" bench all_reduce --cudart "$work/no/such/libcudart.so"
misuse 2 "--slots is the emulator's" bench all_reduce --gpu --slots 2
misuse 2 "--trace is the emulator's" bench all_reduce --gpu --trace "$work/never"

# ---- results
max=256K
[ -n "${QUICK:-}" ] && max=4K
for mode in "" --threads; do
  for collective in $collectives; do
    status=0
    for ranks in 1 2 3 5 8; do
      iterations=""
      [ -n "$mode" ] && iterations="-n 2 -w 1"
      # shellcheck disable=SC2086
      try 0 bench $collective --ranks $ranks -b 0 -e $max -f 61 -r $((ranks - 1)) -q $mode $iterations ||
        { status=1; break; }
    done
    check $status "$collective gives right results with 1, 2, 3, 5, 8 ranks ${mode:---guarded}"
  done
done
for mode in "" --threads; do
  # shellcheck disable=SC2086
  try 0 bench all_reduce --ranks 3 -d all -o all -b 1000 -e 1000 -q $mode
  check $? "all types and operators give right results ${mode:---guarded}"
  # shellcheck disable=SC2086
  try 0 bench reduce_scatter -t 3 -g 2 -b 3K -e 48K -f 4 -q $mode
  check $? "three host threads of two ranks each give right results ${mode:---guarded}"
  # shellcheck disable=SC2086
  try 0 bench all_reduce --ranks 4 -b 16K -e 16K -G 2 -n 3 -m 2 -R 1 -q $mode
  check $? "graphs, aggregation and registered buffers give right results ${mode:---guarded}"
done
export NCCL_ALGO=PAT
for collective in all_gather reduce_scatter; do
  try 0 bench $collective --ranks 7 -b 1K -e 256K -f 16 --slots 2 --chunk 4096
  check $? "$collective by aggregated trees (PAT) gives right results"
  misuse 1 "NCCL_ALGO" bench $collective --ranks 4 -b 1K -e 1K --proto LL
done
unset NCCL_ALGO
for proto in LL LL128 Simple; do
  try 0 bench all_reduce --ranks 4 -b 1 -e 64K -f 17 -d int8 --proto $proto --slots 2 --chunk 48 \
    --flag-bits 5 -q
  check $? "small buffers give right results, $proto"
done

# ---- same seed, same run
first="$work/first.tr" second="$work/second.tr" other="$work/other.tr"
try 0 bench all_reduce --ranks 4 -b 1K -e 1K --seed 0x2a --trace "$first" &&
  try 0 bench all_reduce --ranks 4 -b 1K -e 1K --seed 42 --trace "$second" &&
  cmp -s "$first" "$second" && [ -s "$first" ]
check $? "the same seed gives the same trace"
try 0 bench all_reduce --ranks 4 -b 1K -e 1K --seed 43 --trace "$other" && ! cmp -s "$first" "$other"
check $? "another seed gives another trace"
status=0
try 0 bench all_reduce -t 4 -g 1 -b 1K -e 1K --seed 42 --trace "$first" || status=1
for run in 1 2 3 4 5 6 7 8 9 10 11 12; do
  try 0 bench all_reduce -t 4 -g 1 -b 1K -e 1K --seed 42 --trace "$second" && cmp -s "$first" "$second" ||
    { status=1; break; }
done
check $status "the same seed gives the same trace with four host threads"
try 0 trace dump "$first" && grep -q ' lane comm ' "$work/out"
check $? "trace dump prints records"
head -c 1000 "$first" 2>/dev/null >"$work/torn.tr"
misuse 4 "is cut off" trace dump "$work/torn.tr"

[ "$failures" -eq 0 ]
