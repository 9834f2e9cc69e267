#!/bin/sh
# test_mutants_host.sh: faults planted one at a time into copies of the host's sources, each of which named
# tests must catch: the quick ones, or with --all all of them (some minutes). See mutants/planted_host.py for
# the faults and mutants/run_host.py for how.
# runner: 50 s, waits
set -u
here=$(cd "$(dirname "$0")" && pwd)
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$here/mutants/run_host.py" --build "${BUILD:-$here/../build}" "$@"
