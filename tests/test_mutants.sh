#!/bin/sh
# test_mutants.sh: plants bugs one at a time into copies of the shared headers; the tests named for each
# must catch it. Tries a quarter of them, by the day (part.inc). See mutants/planted.py for the bugs and
# mutants/run.py for how.
# runner: 40 s
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/part.inc"
part_of 4
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$here/mutants/run.py" --build "${BUILD:-$here/../build}" \
  --part "$part/$parts"
