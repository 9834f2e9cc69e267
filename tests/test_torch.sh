#!/bin/sh
# test_torch.sh: the backend "tutti" of torch.distributed: tests/torch_ranks.py, with threads and with
# processes as ranks. Without PyTorch it is skipped; TORCH_PYTHON names a Python that has it. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed.
# Compilers, installations and what else takes long in PyTorch run on one day in three (part.inc).
# runner: 130 s, computes
. "$(dirname "$0")/script.inc"
. "$here/part.inc"
use_build
part_of 3
python=${TORCH_PYTHON:-python3}
export TUTTI_LIBRARY_PATH="$build/lib" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export TUTTI_TRACE="$work/"
unset NCCL_DEBUG RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT

if ! "$python" -c 'import numpy, torch.distributed' >"$work/log" 2>&1; then
  echo "skip: PyTorch: $python lacks it or NumPy: pip install torch numpy (5.4 GB), or set TORCH_PYTHON"
  exit 0
fi

# Many cases in one process, because PyTorch takes a second or two to start.
for kind in right wrong; do
  names=$("$python" "$here/torch_ranks.py" --$kind)
  # shellcheck disable=SC2086
  timeout 300 "$python" "$here/torch_ranks.py" $names >"$work/log" 2>&1 </dev/null
  for name in $names; do
    grep -q "^right: $name\$" "$work/log"
    check $? "threads as ranks: $name"
  done
done

# job 'CASE...' [ARGUMENT...]: their four processes, as torchrun starts them.
job() {
  case_name=$1
  shift
  # shellcheck disable=SC2016,SC2086
  timeout 300 "$build/bin/tutti" launch -n 4 "$@" sh -c 'export RANK=$TUTTI_RANK WORLD_SIZE=$TUTTI_SIZE
    export LOCAL_RANK=$TUTTI_RANK MASTER_ADDR=127.0.0.1 MASTER_PORT=${TUTTI_RENDEZVOUS##*:}
    exec "$@"' rank "$python" "$here/torch_ranks.py" $case_name >"$work/log" 2>&1 </dev/null
}

# The tutorial's test fails with some seeds, the same ones in every run, and its events repeat.
sed -n '/^```python/,/^```$/p' "$root/docs/pytorch-on-cpus.md" | sed '/^```$/,$d; /^```/d' \
  >"$work/test_training.py"
# seeds NAME ARGUMENT...: pytest's lines of the tests that fail, in $work/NAME.
seeds() {
  seeds_name=$1
  shift
  (cd "$work" && timeout 120 "$python" -m pytest -q -p tutti.pytest_plugin "$@") >"$work/log" 2>&1
  [ $? -eq 1 ] && grep '^FAILED' "$work/log" >"$work/$seeds_name"
}
if "$python" -c 'import pytest' 2>"$work/log"; then
  seeds one test_training.py && mv "$work/tutti-traces" "$work/first" && seeds two test_training.py &&
    cmp "$work/one" "$work/two" >>"$work/log" 2>&1
  check $? 'pytest: the seeds that fail are the same in every run'
  seed=$(sed -n '1s/.*\[seed\([0-9]*\)\].*/\1/p' "$work/one")
  trace=test_training.py-test_sums-seed$seed.events
  seeds again "test_training.py::test_sums[seed$seed]" --tutti-seeds "$seed" &&
    grep -q "another communicator" "$work/log" && grep -q "test_training.py:15 (sum_buckets)" "$work/log" &&
    cmp "$work/first/$trace" "$work/tutti-traces/$trace" >>"$work/log" 2>&1
  check $? 'pytest: the command that it prints repeats the run, event by event'
  (cd "$work" && "$python" -m pytest -q -p tutti.pytest_plugin --tutti-seeds 5-3) >"$work/log" 2>&1
  [ $? -eq 4 ] && grep -q -- '--tutti-seeds 5-3: seeds are numbers from 1 on' "$work/log"
  check $? 'pytest: wrong seeds are an error of the command line'

else
  echo "skip: pytest: $python has none: pip install pytest"
fi
if in_part 2 && "$python" -c 'import pytest' 2>"$work/log"; then
  # The commands of the CI files, with the wheel in an environment of its own. pip finds PyTorch, NumPy and
  # pytest beside it, so nothing is downloaded.
  mkdir "$work/ci" && cp "$work/test_training.py" "$work/ci"
  "$python" "$root/python/wheel.py" "$build" "$work/ci" >"$work/log" 2>&1 &&
    "$python" -m venv "$work/ci/venv" >>"$work/log" 2>&1
  for packages in "$work"/ci/venv/lib/python*/site-packages; do
    "$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)' \
      >"$packages/beside.pth"
  done
  printf '#!/bin/sh\nexec python -m pytest "$@"\n' >"$work/ci/venv/bin/pytest"
  chmod +x "$work/ci/venv/bin/pytest"
  sed -n 's/^      - run: //p' "$root/docs/pytorch-on-cpus.md" >"$work/github"
  sed -n '/^  script:/,/^  artifacts:/s/^    - //p' "$root/docs/pytorch-on-cpus.md" >"$work/gitlab"
  for place in github gitlab; do
    (cd "$work/ci" && rm -rf tutti-traces && unset PYTHONPATH TUTTI_LIBRARY_PATH &&
      PATH="$work/ci/venv/bin:$PATH" timeout 120 sh -e "$work/$place") >"$work/log" 2>&1
    [ $? -eq 1 ] && [ "$(wc -l <"$work/$place")" -eq 2 ] && grep -q 'another communicator' "$work/log" &&
      [ "$(find "$work/ci/tutti-traces" -name '*.events' | wc -l)" -eq "$(grep -c '^FAILED' "$work/log")" ]
    check $? "the commands for $place: the wheel is installed, and the tutorial's test fails with its seeds"
  done
fi

# `splits` is last: some ranks make more groups there, so PyTorch would name the next group differently.
names='dtypes collectives messages tags any_source groups asynchronous data_parallel pipelines
  interleaved_pipeline ring_attention splits'
job "$names"
for name in $names; do
  [ "$(grep -c "right: $name\$" "$work/log")" -eq 4 ]
  check $? "processes as ranks: $name"
done
job missing_gpus
check $? 'cpu:tutti,cuda:nccl without a GPU'
timeout 120 "$python" -m torch.distributed.run --nproc-per-node 2 --max-restarts 1 --standalone \
  "$here/torch_ranks.py" restarted >"$work/log" 2>&1 </dev/null
[ $? -eq 0 ] && [ "$(grep -c 'right: restarted$' "$work/log")" -eq 2 ]
check $? 'torchrun starts the ranks again when one has died'
if ! in_part 1; then
  : # another day
elif c++ --version >"$work/log" 2>&1; then
  TORCHINDUCTOR_CACHE_DIR="$work/inductor" timeout 300 \
    "$python" "$here/torch_ranks.py" inductor >"$work/log" 2>&1
  check $? 'threads as ranks: torch.compile with inductor'
else
  echo "skip: inductor: there is no C++ compiler"
fi
job timed_out
[ $? -eq 9 ] &&
  grep -q 'said: all_reduce: no result within the timeout of 3 s: rank 1 .* has not called' "$work/log"
check $? 'a time-out is an exception with the diagnosis'
# Each of these runs in processes of its own, too, of which four import PyTorch.
apart='for_pipelines any_source_alone detail rank_sum_order any_sum_order monitored second_job'
! in_part 0 || apart="$apart context_parallelism"
job "--each $apart"
cp "$work/log" "$work/apart"
# told CASE DESCRIPTION: it was right on all ranks.
told() {
  cp "$work/apart" "$work/log"
  [ "$(grep -c "right: $1\$" "$work/log")" -eq 4 ]
  check $? "$2"
}
told for_pipelines 'processes as ranks: messages in groups that are made for pipelines'
told any_source_alone 'processes as ranks: receives of any source end after all others have left'
told detail 'TORCH_DISTRIBUTED_DEBUG=DETAIL'
told rank_sum_order 'TUTTI_SUM_ORDER=rank: buckets of any size give the same bits'
told any_sum_order '... and other bits without it'
told monitored 'monitored_barrier() names the rank that does not come'
told second_job 'a process has another rank in its second job'
! in_part 0 || told context_parallelism 'context_parallel(), as far as PyTorch has it on CPUs'
job late_pipeline
[ $? -eq 9 ] &&
  grep -q 'said: .*made before torch.distributed.pipelining was imported.*import it before' "$work/log"
check $? 'Interleaved1F1B in a group that was made too early is an exception with the cure'
job group_timed_out
[ $? -eq 9 ] &&
  grep -q 'said: new_group (group 1 of ranks 0, 1): rank 1 did not call it, within 3 s' "$work/log" &&
  grep -q 'called by rank 0 at torch_ranks.py:' "$work/log"
check $? 'a group that a rank does not make is an exception that names the rank and the lines'
job lost -k
[ $? -eq 9 ] && ! grep -q AssertionError "$work/log"
check $? 'the loss of a rank is an exception on the others'
[ $failures -eq 0 ]
