#!/bin/sh
# test_mutants_sim.sh: plants bugs one at a time into copies of lib/protocol; the simulator must say which
# lane waits for what. See mutants/run_sim.py.
# runner: 30 s
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1
exec python3 "$here/mutants/run_sim.py" --build "${BUILD:-$here/../build}" "$@"
