#!/bin/sh
# test_plan_grid.sh: between hosts the planner takes the option that is the best in the simulation, or at most
# 10 % slower: a part of the grid of bench/plan_grid.py. Prints one `ok - ` or `not ok - ` line per check and
# fails if a check failed. Finds the command at ${BUILD:-build}/bin/tutti.
. "$(dirname "$0")/script.inc"
verb=sim
. "$here/verb.inc"

grid() {
  python3 "$root/bench/plan_grid.py" --tutti "$tutti" "$@" >"$work/log" 2>&1
}
grid --nodes 2,4,16 --factor 16
check $? "2, 4 and 16 nodes: each choice is within a tenth of the best option"
grid --nodes 128 --factor 128 all_reduce all_gather
check $? "128 nodes: the same"
NCCL_PROTO=LL grid --nodes 2 --factor 16 all_gather
check $? "the environment does not change the comparison"
printf '#!/bin/sh\ncase "$*" in *--proto*) exec %s "$@" ;; *) exec %s "$@" --algo ring --proto LL ;; esac\n' \
  "$tutti" "$tutti" >"$work/slow" && chmod +x "$work/slow"
grid --tutti "$work/slow" --nodes 4 --factor 64 all_gather
[ $? -eq 1 ] && grep -q 'slower$' "$work/log"
check $? "a planner that takes LL at every size fails"

[ "$failures" -eq 0 ]
