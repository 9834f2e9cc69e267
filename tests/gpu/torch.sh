#!/usr/bin/env bash
# torch.sh: PyTorch on GPUs with this library in place of NVIDIA's: runs each program torch_*.py of this
# folder with torchrun, one process per GPU, and the training with both libraries, whose losses must agree.
# Prints one line per run, and each failed check; complete outputs go to $OUT. Exit status 1: a check
# failed.
#
#     tests/gpu/torch.sh [collectives|groups|train|graphs|memory|abort|overlap|ctypes]...
#
#     BUILD=build               has lib/libnccl.so.2, libtutti-cuda.so and libtutti-audit.so
#     GPUS="1 2 4"              numbers of ranks; those above the machine's GPUs are left out, unless
#                               NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks share them
#     LIBRARY=tutti             or nccl, PyTorch's own, to test the programs themselves; or both
#     MODE=preload               or audit, path (LD_LIBRARY_PATH), installed (the wheel's own file is ours)
#     OUT=                      folder for outputs; default: a temporary one, which is removed
#     LIMIT=60                  longest time of one run, seconds
#     PYTHON=python3
#     PORT=                     the first loopback port to use; one per run
#
# The library of each process is determined from its /proc/self/maps and from the line that the library
# prints. Without a GPU or PyTorch it prints a skip line and exits with 0.
set -u -o pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
python=${PYTHON:-python3} limit=${LIMIT:-60} mode=${MODE:-preload} library=${LIBRARY:-tutti}
out=${OUT:-$work/out}
mkdir -p "$out" || exit 3
failures=0 port=${PORT:-$((20000 + $$ % 10000 * 4))}

if ! present=$(timeout 120 "$python" -c 'import torch; print(torch.cuda.device_count())' 2>"$work/why"); then
  echo "skip: no PyTorch: $(tail -n 1 "$work/why")"
  exit 0
fi
if [ "$present" -eq 0 ]; then
  echo "skip: PyTorch sees no GPU here"
  exit 0
fi
if [ "$library" != nccl ]; then
  build=$(cd "${BUILD:-$here/../../build}" && pwd) || exit 3
  [ -e "$build/lib/libtutti-cuda.so" ] || { echo "not ok - $build/lib has no libtutti-cuda.so" >&2; exit 1; }
fi

# The environment that loads a library into every process of a run.
settings_of() {
  [ "$1" = tutti ] || return
  echo TUTTI_BACKEND=cuda
  case $mode in
    preload) echo "LD_PRELOAD=$build/lib/libnccl.so.2" ;;
    audit) echo "LD_AUDIT=$build/lib/libtutti-audit.so" ;;
    path) echo "LD_LIBRARY_PATH=$build/lib:${LD_LIBRARY_PATH:-}" ;;
    installed) ;;
    *) echo "torch.sh: MODE=$mode: preload, audit, path or installed" >&2; exit 2 ;;
  esac
}

# ranks COUNT LIBRARY FILE PROGRAM...: a program under torchrun.
ranks() {
  local count=$1 which=$2 file=$3
  shift 3
  port=$((port + 1))
  # The modes are words.
  # shellcheck disable=SC2046
  env TMPDIR="$work" PYTHONPATH="$here" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=2 \
    TUTTI_TEST_LIBRARY="$which" NCCL_DEBUG="${NCCL_DEBUG:-VERSION}" $(settings_of "$which") \
    timeout -k 5 "$limit" "$python" -m torch.distributed.run --nnodes 1 --nproc-per-node "$count" \
    --master-addr 127.0.0.1 --master-port "$port" "$@" >"$file" 2>&1 </dev/null
}

# loaded LIBRARY FILE: by its own output in FILE the library was called, and no other.
loaded() {
  local ours others
  ours=$(grep -c 'NCCL version .*(tutti' "$2")
  others=$(grep '^NCCL version' "$2" | grep -vc '(tutti') # PyTorch's own errors name one too
  if [ "$1" = tutti ]; then [ "$ours" -gt 0 ] && [ "$others" -eq 0 ]; else [ "$ours" -eq 0 ]; fi && return
  echo "not ok - the library that was called is not $1" >>"$2"
}

# outcome STATUS FILE TITLE SECONDS LIBRARY: one line for a run; for a failed one its failures and last lines.
outcome() {
  local good bad skipped
  loaded "$5" "$2"
  good=$(grep -c '^ok - ' "$2")
  bad=$(grep -c '^not ok - ' "$2")
  skipped=$(grep -c '^skip: ' "$2")
  if [ "$1" -eq 0 ] && [ "$bad" -eq 0 ] && [ "$good" -gt 0 ]; then
    echo "ok - $3: $good checks, $skipped skipped, $4 s"
    return
  fi
  failures=$((failures + 1))
  echo "not ok - $3: exit status $1, $good checks good, $bad bad, $4 s"
  grep -A 2 '^not ok - ' "$2" | cut -c1-300 | head -n 24
  [ "$bad" -gt 0 ] && return
  grep -vE 'frame #|^$' "$2" | tail -n 12 | cut -c1-300 | sed 's/^/    /'
}

# part_run NAME COUNT LIBRARY [ARGUMENT]: one of the programs.
part_run() {
  local name=$1 count=$2 which=$3 file=$out/torch-$1${4:+-$4}-$2-$3.txt begin=$SECONDS status
  ranks "$count" "$which" "$file" "$here/torch_$name.py" ${4:+"$4"}
  status=$?
  # The watchdog ends the process.
  if [ "${4:-}" = watchdog ] && [ "$count" -gt 1 ] && [ "$status" -ne 124 ] && [ "$status" -ne 137 ]; then
    [ "$status" -ne 0 ]
    status=$?
  fi
  outcome "$status" "$file" "$name${4:+, $4}, $count GPUs, $which" $((SECONDS - begin)) "$which"
}

# losses_compare COUNT: compares the losses of both libraries. Sums in another order change a loss by
# rounding, which grows with each training step, more with bfloat16.
losses_compare() {
  local a=$out/torch-train-$1-nccl.txt b=$out/torch-train-$1-tutti.txt
  awk '
    FNR == NR && $1 == "loss" { first[$2 " " $3] = $4; expected++ }
    FNR != NR && $1 == "loss" {
      seen++
      allowed = ($2 ~ /bf16/ ? 1e-2 : 1e-4) * ($3 + 1) / 4
      difference = $4 - first[$2 " " $3]
      if (difference < 0) difference = -difference
      if (difference > most) most = difference
      if (!($2 " " $3 in first) || difference > allowed * $4) { print $0, "not", first[$2 " " $3]; bad++ }
    }
    END { printf "%d losses of %d, the largest difference %.3g\n", seen, expected, most
          exit bad > 0 || seen != expected || !seen }' "$a" "$b" >"$work/losses" && {
    echo "ok - train, $1 GPUs, losses with both libraries: $(tail -n 1 "$work/losses")"
    return
  }
  failures=$((failures + 1))
  echo "not ok - train, $1 GPUs: the losses differ"
  head -n 5 "$work/losses" | sed 's/^/    /'
}

part() {
  local which libraries=$library count=$2 kind
  [ "$library" != both ] || libraries="nccl tutti"
  case $1 in
    train)
      # NVIDIA's library refuses ranks that share a GPU.
      if [ "$library" != nccl ] && [ "$count" -le "$present" ]; then libraries="nccl tutti"; fi
      ;;
  esac
  for which in $libraries; do
    case $1 in
      abort) for kind in work abort watchdog leave; do part_run abort "$count" "$which" "$kind"; done ;;
      groups) for kind in lazy eager; do part_run groups "$count" "$which" "$kind"; done ;;
      *) part_run "$1" "$count" "$which" ;;
    esac
  done
  [ "$1" != train ] || [ "$libraries" != "nccl tutti" ] || losses_compare "$count"
}

"$python" -c 'import torch; print("PyTorch", torch.__version__, "made for NCCL", torch.cuda.nccl.version())'
[ $# -gt 0 ] || set -- collectives groups train graphs memory abort overlap ctypes
for name; do
  [ -e "$here/torch_$name.py" ] || { echo "torch.sh: no part $name" >&2; exit 2; }
  for count in ${GPUS:-1 2 4}; do
    [ "$count" -gt "$present" ] && [ "${NCCL_MULTI_RANK_GPU_ENABLE:-0}" != 1 ] || part "$name" "$count"
  done
done
[ "$failures" -eq 0 ] || echo "$failures runs failed"
[ "$failures" -eq 0 ]
