#!/bin/sh
# test_examples.sh: every examples/*.c from outside: built as its user would build it, with right results in
# both modes of the emulator, and repeatable in the guarded mode: one seed gives one trace, byte for byte,
# at any address and on any number of cores. Prints one `ok - ` or `not ok - ` line per check and fails if a
# check failed. Finds the library at ${BUILD:-build}.
# runner: 11 s
. "$(dirname "$0")/script.inc"
use_build

# good COMMAND...: exits with 0 within a minute, and the last line is `ok`.
good() {
  timeout 60 "$@" >"$work/log" 2>&1 </dev/null
  code=$?
  [ "$code" -eq 0 ] && [ "$(tail -n 1 "$work/log")" = ok ] && return 0
  echo "exit code $code: $*" >>"$work/log"
  return 1
}

# traced NAME COMMAND...: such a run, with its trace in $work/NAME.
traced() {
  trace="$work/$1"
  shift
  rm -f "$trace"
  TUTTI_EVENTS="$trace" good "$@"
}

# same NAME NAME: the two traces are not empty (a header alone has 64 bytes) and have the same bytes.
same() {
  [ "$(wc -c <"$work/$1")" -gt 64 ] && cmp "$work/$1" "$work/$2" >>"$work/log" 2>&1
}

# One seed, several runs: with and without address space randomization, on one core and on all.
check_repeats() {
  program=$1
  name=$2
  export TUTTI_SEED=0x2a
  traced first "$program" && traced second "$program" && same first second
  check $? "$name: the same seed gives the same trace"
  if setarch -R true 2>/dev/null; then
    traced second setarch -R "$program" && same first second
    check $? "$name: the trace does not depend on addresses"
  else
    echo "skip: $name: addresses always vary here: setarch -R is not allowed"
  fi
  traced second taskset -c "$core" "$program" && same first second
  check $? "$name: the trace does not depend on the number of cores"
  export TUTTI_SEED=43
  traced second "$program" && ! cmp -s -i 64 "$work/first" "$work/second" # the header holds the seed itself
  check $? "$name: another seed gives another trace"
  unset TUTTI_SEED
}

# The program whose rank 2 skips a call: it exits with a report that names rank 2, the same for the same
# seed.
check_forgets() {
  for turn in first second; do
    timeout 60 env TUTTI_SEED=7 TUTTI_EMU=devices=4 "$1" >"$work/log" 2>&1 </dev/null
    [ $? -eq 1 ] && grep -q 'deadlock: rank 2 has not called operation #0' "$work/log" &&
      grep -q 'these lanes wait' "$work/log" &&
      grep -q 'rank 2 has launched 0 of 1 kernels' "$work/log"
    check $? "forgets: reports a deadlock and which rank has not launched"
    sed 's/^\[.* NCCL WARN/NCCL WARN/' "$work/log" >"$work/report.$turn" # without date and process
  done
  cmp "$work/report.first" "$work/report.second" >"$work/log" 2>&1
  check $? "forgets: the same seed gives the same report"
}

# The first core that this process may use.
core=$(taskset -cp $$ | sed -E 's/.*: *([0-9]+).*/\1/')
for source in "$here"/../examples/*.c; do
  name=$(basename "$source" .c)
  program="$work/$name"
  # Word splitting is wanted: pkg-config's answer is a list of flags.
  # shellcheck disable=SC2046
  cc -Wall -Wextra -Werror -o "$program" "$source" $(pkg-config --cflags --libs tutti-emu) >"$work/log" 2>&1
  check $? "$name builds through pkg-config"
  [ -x "$program" ] || continue
  if [ "$name" = forgets ]; then
    check_forgets "$program"
    continue
  fi
  if [ "$name" = launched ] || [ "$name" = hangs ]; then
    good "$program" # finding out who launched it is ours; one rank alone has nothing to vary
    check $? "$name: runs alone"
  else
    ! grep -qi tutti "$source"
    check $? "$name uses no name of this library's own"
    check_repeats "$program" "$name"
  fi
  TUTTI_EMU=mode=threads good "$program"
  check $? "$name: runs in threads mode"
  TUTTI_EMU=slots=2,chunk=64,channels=3,depth=2,lag=50 good "$program"
  check $? "$name: runs with small buffers"
done

[ "$failures" -eq 0 ]
