#!/bin/sh
# test_torch.sh: the backend "tutti" of torch.distributed: tests/torch_ranks.py, with threads and with
# processes as ranks. Without PyTorch it is skipped; TORCH_PYTHON names a Python that has it. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 60 s, computes
. "$(dirname "$0")/script.inc"
use_build
python=${TORCH_PYTHON:-python3}
export TUTTI_LIBRARY_PATH="$build/lib" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export TUTTI_TRACE="$work/"
unset NCCL_DEBUG RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT

if ! "$python" -c 'import torch.distributed' >"$work/log" 2>&1; then
  echo "skip: PyTorch: $python has none: pip install torch (5.4 GB), or set TORCH_PYTHON"
  exit 0
fi

for name in $("$python" "$here/torch_ranks.py" --list); do
  timeout 120 "$python" "$here/torch_ranks.py" "$name" >"$work/log" 2>&1
  check $? "threads as ranks: $name"
done

# job CASE: its four processes, as torchrun starts them.
job() {
  case_name=$1
  shift
  # shellcheck disable=SC2016
  timeout 120 "$build/bin/tutti" launch -n 4 "$@" sh -c 'export RANK=$TUTTI_RANK WORLD_SIZE=$TUTTI_SIZE
    export LOCAL_RANK=$TUTTI_RANK MASTER_ADDR=127.0.0.1 MASTER_PORT=${TUTTI_RENDEZVOUS##*:}
    exec "$@"' rank "$python" "$here/torch_ranks.py" "$case_name" >"$work/log" 2>&1 </dev/null
}

for name in dtypes collectives messages groups asynchronous data_parallel; do
  job "$name"
  check $? "processes as ranks: $name"
done
job timed_out
[ $? -eq 9 ] &&
  grep -q 'said: all_reduce: no result within 3 s: rank 1 .* has not called operation' "$work/log"
check $? 'a time-out is an exception with the diagnosis'
job lost -k
[ $? -eq 9 ] && ! grep -q AssertionError "$work/log"
check $? 'the loss of a rank is an exception that names it'
[ $failures -eq 0 ]
