#!/usr/bin/env bash
# one_seed.sh: whether equal seeds give equal runs of four processes, and what their one order of events costs.
#
#   bench/one_seed.sh [SEEDS [ROUNDS]]      100 seeds, 100 all-reduces
#
# Runs examples/launched twice for each seed, compares the events of all processes byte for byte, and prints how
# many seeds gave equal ones. Then the median time of an all-reduce of 1 MiB of 4 ranks, checked by every rank,
# in us: ranks as threads of one process, as processes with one order of events, and as processes that each have
# a scheduler of their own (order=0). Appends to results/one-seed-<date>.txt.
. "$(dirname "$0")/bench.inc"
seeds=${1:-100} rounds=${2:-100}
set +e
export TUTTI_TRACE="$work/"
raw=$here/results/one-seed-$(date +%F).txt

# events NAME SEED: the events of one run are in $work/NAME and $work/NAME.1 to .3.
events() {
  TUTTI_SEED=$2 TUTTI_EVENTS="$work/$1" timeout 120 "$build/bin/tutti" launch -n 4 "$build/examples/launched" \
    >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
}

# equal: the two runs of a seed are equal in all processes.
equal() {
  for file in one one.1 one.2 one.3; do cmp -s "$work/$file" "$work/two${file#one}" || return 1; done
}

# span ROUNDS COMMAND...: wall time in us.
span() {
  begin=$(date +%s%N)
  timeout 300 "${@:2}" --ops all_reduce --bytes 1048576 --iterations "$1" >"$work/out" 2>&1 || exit 1
  echo $((($(date +%s%N) - begin) / 1000))
}

# each COMMAND...: the time of one all-reduce: five times, ROUNDS more rounds than another run; the median.
each() {
  for _ in 1 2 3 4 5; do
    few=$(span 1 "$@")
    many=$(span $((rounds + 1)) "$@")
    echo $(((many - few) / rounds))
  done | sort -n | sed -n 3p
}

program=$build/tests/rank_program
report() {
  good=0
  for seed in $(seq "$seeds"); do
    events one "$seed"
    events two "$seed"
    equal && good=$((good + 1))
  done
  echo "equal events of 4 processes in two runs: $good of $seeds seeds ($(stat -c %s "$work/one") bytes each)"
  threads=$(each "$program" --threads --size 4)
  ordered=$(each "$build/bin/tutti" launch -n 4 "$program" --launched)
  apart=$(TUTTI_EMU=order=0 each "$build/bin/tutti" launch -n 4 "$program" --launched)
  echo "all-reduce of 1 MiB, 4 ranks, guarded, us: one process $threads, four processes $ordered, with order=0 $apart"
}
report | while read -r line; do say "$line"; done
