#!/usr/bin/env bash
# sim_workload.sh: time and memory of `tutti sim` for workloads: steps of training, repeated collectives, many
# ranks that are alike and that are not, and recorded jobs; and what the same calls would take on other
# clusters. Needs a finished build and /usr/bin/time. Prints each command with user seconds and peak memory,
# and appends that to bench/results/sim-workload-<date>.txt; OUT names another folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tutti=$(cd "${BUILD:-$here/../build}" && pwd)/bin/tutti
out=${OUT:-$here/results}/sim-workload-$(date +%Y-%m-%d).txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"
out=$(cd "$(dirname "$out")" && pwd)/$(basename "$out")
cp "$here/../examples/workloads/step.txt" "$work"
cd "$work"
export TUTTI_TRACE=off

printf 'ranks 64\nrepeat 100\n  all_reduce 1M\nend\n' >repeat.txt
printf 'ranks 64\nrepeat 10\n  all_reduce 64M after 1ms\nend\n' >large.txt
printf 'ranks 1024\nrepeat 4\n  all_reduce 1M\nend\n' >ranks.txt
printf 'ranks 64\nrepeat 1000\n  group\n    sendrecv 64K\n  end\n  compute 10us\nend\n' >messages.txt
printf 'ranks 1024\nall_reduce 1M\nall_gather 16M\nall_reduce 64M\nreduce_scatter 16M\nall_reduce 1M\n' >five.txt
# train RANKS LAYERS: forward and backward through layers over groups within a node, with gradients over
# groups across nodes during the backward pass; then the parameters.
train() {
  awk -v ranks="$1" -v layers="$2" 'BEGIN {
    print "ranks " ranks
    for (node = 0; node < ranks / 8; node++) print "comm tp" node " " 8 * node "-" 8 * node + 7
    for (gpu = 0; gpu < 8; gpu++) print "comm dp" gpu " " gpu "-" ranks - 1 "/8"
    for (back = 0; back < 2; back++) {
      print "repeat " layers
      for (node = 0; node < ranks / 8; node++) {
        print "all_gather 4M bfloat16 comm tp" node " after 20us"
        print "reduce_scatter 4M bfloat16 comm tp" node " after " 200 + 100 * back "us"
      }
      for (gpu = 0; back && gpu < 8; gpu++) print "reduce_scatter 64M bfloat16 comm dp" gpu " stream side wait main"
      print "end"
    }
    for (gpu = 0; gpu < 8; gpu++) print "all_gather 64M bfloat16 comm dp" gpu " wait side"
  }'
}
train 1024 20 >train.txt
{ train 1024 20 && printf 'all_reduce 8\nall_reduce 4 max\n'; } >norm.txt
train 256 5 >small.txt
# Full rings of records: eight processes, whose first calls are overwritten.
TUTTI_TRACE="$work/all_reduce.%r" "$tutti" launch -n 8 "$tutti" bench all_reduce -b 256K -e 256K -n 2500 >/dev/null
TUTTI_TRACE="$work/sendrecv.%r" "$tutti" launch -n 8 "$tutti" bench sendrecv -b 64K -e 64K -n 2500 >/dev/null

timed() {
  printf '\n$ tutti sim %s\n' "$*"
  { /usr/bin/time -f '%U s user, %e s, %M KiB' "$tutti" sim "$@" --rate; } 2>&1 | grep -v '^#$'
}

{
  printf '======== bench/sim_workload.sh\n%s\n' \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *//')"
  git -C "$here" log -1 --format='commit %h' 2>/dev/null || true
  printf 'load %s\n' "$(cut -d' ' -f1-3 /proc/loadavg)"
  timed --workload step.txt
  timed --workload step.txt --svg step.svg
  timed --workload repeat.txt
  timed --workload large.txt
  timed --workload ranks.txt
  timed --workload ranks.txt --exact
  timed --workload five.txt
  timed --workload train.txt | grep -v ' comm '
  timed --workload norm.txt | grep -v ' comm '
  timed --workload small.txt | grep -v ' comm '
  timed --workload small.txt --exact | grep -v ' comm '
  timed --workload messages.txt
  printf '\n%s bytes of records\n' "$(cat all_reduce.* | wc -c)"
  timed --records all_reduce.*
  timed --records sendrecv.*
  for cluster in "" "--scale nics:2 --scale links:2" "--fault slow-rank:3:4"; do
    # shellcheck disable=SC2086
    timed --records all_reduce.* --gaps --nodes 8 --gpus 1 $cluster
  done
} | tee -a "$out"
