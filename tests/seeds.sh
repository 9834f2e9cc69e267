#!/bin/sh
# seeds.sh: many seeds of the guarded mode, two halves in parallel: an 8-rank all-reduce with each protocol
# and small buffers (test_seeds.c), and small programs over an emulated network that fails, or that are
# aborted at a random moment (test_faults.c); then 40 of the latter with free threads. The argument is the
# number of seeds.
# runner: 7 s
. "$(dirname "$0")/script.inc"
use_build
seeds=${1:-1000}

# part PROGRAM FIRST COUNT [WORD]: runs a program and prints its output; the program must exit with 0 or 1.
part() {
  program="$build/tests/$1"
  shift
  "$program" "$@"
  status=$?
  [ "$status" -le 1 ] || echo "not ok - $program $* ended with status $status"
}

# halves PROGRAM FIRST COUNT
halves() {
  begin=$(date +%s)
  half=$(($3 / 2))
  part "$1" "$2" "$half" > "$work/first" 2>&1 &
  part "$1" $(($2 + half)) $(($3 - half)) > "$work/second" 2>&1
  wait $!
  cat "$work/first" "$work/second"
  echo "# $3 seeds of $1 took $(($(date +%s) - begin)) s"
}

halves test_seeds 1 "$seeds"
halves test_faults 1000 "$seeds"
part test_faults 1000 40 threads 2>&1
