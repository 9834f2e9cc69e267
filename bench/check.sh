#!/usr/bin/env bash
# check.sh: the time of the checker: every kind of plan of 2 to 64 ranks, single plans of 4,096 ranks, and all
# mutants. Needs a finished build. Prints the output and times of each command, and appends them to
# bench/results/check-<date>.txt; OUT names another folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tutti=${BUILD:-$here/../build}/bin/tutti
out=${OUT:-$here/results}/check-$(date +%Y-%m-%d).txt
mkdir -p "$(dirname "$out")"

timed() {
  printf '\n$ tutti check %s\n' "$*"
  # Lines of orders and of mutants are long, and not what is measured.
  { time "$tutti" check "$@"; } 2>&1 | cut -c1-200 | grep -E '^(proved|real|user|tutti)' || true
}

{
  printf '======== bench/check.sh\n%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *//')"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  timed --all --ranks 2-64
  timed all_reduce --algo ring --ranks 4096 --chunk 64 --count 4096 --channels 1
  timed all_reduce --algo tree --ranks 4096 --count 1000003
  timed reduce_scatter --algo pat --ranks 4096 --count 1000
  timed --mutants
} | tee -a "$out"
