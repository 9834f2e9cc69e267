#!/usr/bin/env bash
# flight.sh: PyTorch's analyser of Flight Recorder dumps (torchfrtrace) reads the dumps that `tutti trace
# export` makes from traces/, and finds the faults. Prints one line per check. Exit status 1: a check failed.
#
#     tests/gpu/flight.sh
#
#     BUILD=build               has bin/tutti
#     PYTHON=python3            a Python with PyTorch; tested with 2.11
#
# Needs no GPU. Without PyTorch it prints a skip line and exits with 0.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tutti=$(cd "${BUILD:-$root/build}" && pwd)/bin/tutti
python=${PYTHON:-python3}
work=$(mktemp -d) || exit 3
trap 'rm -rf "$work"' EXIT
failures=0

analyser=torch.distributed.flight_recorder.fr_trace
if ! timeout 120 "$python" -m $analyser --help >"$work/why" 2>&1; then
  echo "skip: no PyTorch with $analyser: $(tail -n 1 "$work/why")"
  exit 0
fi

# analyse NAME TEXT: the analyser's output for the trace contains each line of TEXT; if empty, no fault.
analyse() {
  local name=$1 wanted status=0
  mkdir "$work/$name"
  "$tutti" trace export --to flight -o "$work/$name" "$root/traces/$name"/*.txt >"$work/log" 2>&1 || status=1
  timeout 120 "$python" -m $analyser "$work/$name" -p nccl_trace_rank_ >>"$work/log" 2>&1 || status=1
  while read -r wanted; do
    [ -z "$wanted" ] || grep -qF -e "$wanted" "$work/log" || status=1
  done <<<"$2"
  [ -n "$2" ] || ! grep -qE 'has errors|Not all ranks|MISMATCH' "$work/log" || status=1
  if [ $status -eq 0 ]; then
    echo "ok - $name"
    return
  fi
  failures=$((failures + 1))
  echo "not ok - $name"
  tail -n 15 "$work/log" | sed 's/^/    /'
}

analyse count 'Collective sequence number: 3 has errors
Culprit rank 3; Error type: SIZE_OR_SYNTAX_MISMATCH'
analyse absent 'Not all ranks joining collective, sequence number: 3
missing ranks: {2}'
analyse type 'Error type: COLLECTIVE_DTYPE_MISMATCH'
analyse collective "Culprit rank 1; Error type: COLLECTIVE_TYPE_MISMATCH"
analyse order "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH"
analyse send_alone 'group info: 1:1'
analyse fine ''
[ "$failures" -eq 0 ]
