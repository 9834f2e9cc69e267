#!/bin/sh
# test_mutants_check.sh: plants bugs one at a time into copies of lib/protocol; the checker must find each.
# Runs a few, or all with --all (about a minute). See mutants/run_check.py.
# runner: 30 s
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/mutants/run_check.py" --build "${BUILD:-$here/../build}" "$@"
