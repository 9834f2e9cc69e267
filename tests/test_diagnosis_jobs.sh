#!/bin/sh
# test_diagnosis_jobs.sh: jobs of several processes with a random fault each, and their diagnoses: some of
# those that bench/verdicts.py runs, whose diagnosis was once wrong. Prints one `ok - ` or `not ok - ` line
# per check and fails if a check failed.
# runner: 20 s, waits
. "$(dirname "$0")/script.inc"
use_build
command -v python3 >/dev/null || { echo 'skip: python3 is not installed'; exit 0; }
export BUILD="$build"
for seed in 10 28 32 42 148 367 434 485; do
  timeout 60 python3 "$root/bench/verdicts.py" --jobs 1 $seed 1 >"$work/log" 2>&1
  check $? "job $seed: $("$build/tests/planted_program" $seed plan)"
done
[ "$failures" -eq 0 ]
