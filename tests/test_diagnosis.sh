#!/bin/sh
# test_diagnosis.sh: runs that go wrong as their numbers say, and what is said of them: some of those that
# bench/diagnosis.sh makes. Prints one `ok - ` or `not ok - ` line a check and fails when one did.
# runner: 60 s, waits
. "$(dirname "$0")/script.inc"
use_build

# Forty of them in a row, and those that were judged wrongly once.
"$build/tests/diagnosis_program" 1 40 >"$work/log" 2>&1
check $? 'what went wrong in forty runs is found'
for seed in 5 13 167 277 434 1008 1066 1097 1294 2031 2263 20072 20207; do
  "$build/tests/diagnosis_program" $seed 1 >"$work/log" 2>&1
  check $? "run $seed: $(awk 'NR == 2 { print $1 }' "$work/log")"
done
[ "$failures" -eq 0 ]
