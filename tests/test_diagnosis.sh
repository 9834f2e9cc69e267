#!/bin/sh
# test_diagnosis.sh: runs with a random fault each, and their diagnoses: some of those that
# bench/diagnosis.sh makes. Prints one `ok - ` or `not ok - ` line per check and fails if a check failed.
# runner: 60 s, waits
. "$(dirname "$0")/script.inc"
use_build

# Forty consecutive runs, and runs whose diagnosis was once wrong.
"$build/tests/diagnosis_program" 1 40 >"$work/log" 2>&1
check $? 'forty runs with random faults get the right diagnosis'
for seed in 5 13 167 277 434 1008 1066 1097 1294 2031 2263 20072 20207; do
  "$build/tests/diagnosis_program" $seed 1 >"$work/log" 2>&1
  check $? "run $seed: $(awk 'NR == 2 { print $1 }' "$work/log")"
done
[ "$failures" -eq 0 ]
