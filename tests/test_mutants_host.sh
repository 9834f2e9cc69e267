#!/bin/sh
# test_mutants_host.sh: plants bugs one at a time into copies of the host's sources; the tests named for
# each must catch it. Runs the quick ones, or all with --all (some minutes). See mutants/planted_host.py for
# the bugs and mutants/run_host.py for how.
# runner: 50 s, waits
set -u
here=$(cd "$(dirname "$0")" && pwd)
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$here/mutants/run_host.py" --build "${BUILD:-$here/../build}" "$@"
