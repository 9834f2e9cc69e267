#!/bin/sh
# test_spin.sh: checks the models of spin/ with Spin over all interleavings: no failed assertion, no
# deadlock, and no cycle, so every run ends. Then each of the models' bugs must be found.
. "$(dirname "$0")/script.inc"
if ! command -v spin > /dev/null; then
  echo "skip - spin is not installed: the models of the protocol are not checked"
  exit 0
fi

# build MODEL NAME FLAG: builds the checker of a model as $work/NAME.
build() {
  mkdir -p "$work/$2.d"
  (cd "$work/$2.d" && spin -a "$here/spin/$1.pml" && "${CC:-gcc}" -O0 -w "$3" -o "../$2" pan.c) \
    > "$work/$2.log" 2>&1 || cat "$work/$2.log"
}

# outcome NAME ARGUMENT: prints passed, or what the checker found.
outcome() {
  (cd "$work/$1.d" && "$work/$1" "$2" -m100000) > "$work/log" 2>&1
  grep -E '^pan:1:|^error: max search depth' "$work/log" && return
  grep -q 'errors: 0$' "$work/log" && echo passed
}

build fifo fifo_safety -DSAFETY & build ring ring_safety -DSAFETY & wait
build fifo fifo_cycles -DNP & build ring ring_cycles -DNP & wait
for model in fifo ring; do
  found=$(outcome ${model}_safety -n)
  [ "$found" = passed ]
  check $? "$model: no assertion fails and no process is stuck"
  found=$(outcome ${model}_cycles -l)
  [ "$found" = passed ]
  check $? "$model: every run ends"
  bugs=$([ "$model" = fifo ] && echo '1 2 3 4 5 6 7' || echo '1 2 3 4')
  for bug in $bugs; do
    found=$(BUG=$bug outcome ${model}_safety -n)
    case "$found" in pan:1:*) true ;; *) false ;; esac
    check $? "$model with bug $bug: ${found:-nothing was found}"
  done
done
[ "$failures" -eq 0 ]
