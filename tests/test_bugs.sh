#!/bin/sh
# test_bugs.sh: every case of the suite of bugs, the wrong program and its correct twin, in guarded mode, with
# free threads, and with a process for each rank. Prints one line per run and fails if a bug is missed or a
# correct program is reported; with free threads misses are counted in the table alone.
# runner: 60 s, waits
. "$(dirname "$0")/script.inc"
use_build
python3 "$here/bugs/table.py" --build "$build" --lines
