#!/bin/sh
# test_fuzz.sh: runs every parser's fuzz target over its corpus (tests/fuzz/corpus/NAME) under gcc's
# sanitizers, and over each file truncated. run_tests.py runs mutants of them with libFuzzer. Prints one
# `ok - ` or `not ok - ` line per check and fails if a check failed.
. "$(dirname "$0")/script.inc"
use_build

# The parsers report errors of bad inputs; such errors are not failures here.
replay() {
  timeout 120 "$@" >"$work/log" 2>&1 </dev/null
}

count=0
for target in "$here"/fuzz/fuzz_*.c; do
  [ -e "$target" ] || continue
  name=$(basename "$target" .c)
  name=${name#fuzz_}
  count=$((count + 1))
  replay "$build/fuzz/replay_$name" "$here/fuzz/corpus/$name"/*
  check $? "fuzz target $name passes its corpus"
  mkdir "$work/$name"
  for file in "$here/fuzz/corpus/$name"/*; do
    for part in 1 2 3; do
      head -c $(($(wc -c <"$file") * part / 4)) "$file" >"$work/$name/$(basename "$file").$part"
    done
  done
  replay "$build/fuzz/replay_$name" "$work/$name"/*
  check $? "fuzz target $name passes its corpus, truncated"
done
[ "$count" -gt 0 ] || echo "skip: fuzz targets: there are none"
[ "$failures" -eq 0 ]
