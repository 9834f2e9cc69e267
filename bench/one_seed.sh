#!/usr/bin/env bash
# one_seed.sh: whether equal seeds give equal runs of four processes, and what their one order of events costs.
#
#   bench/one_seed.sh [SEEDS]      100 seeds
#
# Runs examples/launched twice for each seed, compares the events of all processes byte for byte, and prints how
# many seeds gave equal ones. Then the time of an all-reduce of 1 MiB of 4 ranks in us (one_seed.c), the median
# of five runs: in one process, in processes with one order of events, and in processes that each have a
# scheduler of their own (order=0). Appends to results/one_seed-<date>.txt.
. "$(dirname "$0")/bench.inc"
seeds=${1:-100}
export TUTTI_TRACE="$work/"
launch=("$build/bin/tutti" launch -n 4)

# events NAME SEED: the events of one run are in $work/NAME and $work/NAME.1 to .3.
events() {
  TUTTI_SEED=$2 TUTTI_EVENTS="$work/$1" timeout 120 "${launch[@]}" "$build/examples/launched" >"$work/out" 2>&1
}

# equal: the two runs of a seed are equal in all processes.
equal() {
  for file in one one.1 one.2 one.3; do cmp -s "$work/$file" "$work/two${file#one}" || return 1; done
}

# median COMMAND...
median() {
  for _ in 1 2 3 4 5; do timeout 120 "$@"; done | sort -n | sed -n 3p
}

compile one_seed
good=0
for seed in $(seq "$seeds"); do
  events one "$seed"
  events two "$seed"
  if equal; then good=$((good + 1)); fi
done
say "equal events of 4 processes in two runs: $good of $seeds seeds ($(stat -c %s "$work/one") bytes each)"
one=$(median "$work/one_seed" all)
ordered=$(median "${launch[@]}" "$work/one_seed")
apart=$(TUTTI_EMU=order=0 median "${launch[@]}" "$work/one_seed")
say "all-reduce of 1 MiB, 4 ranks, guarded, us: one process $one, four processes $ordered, with order=0 $apart"
