#!/bin/sh
# test_kernel_mutants.sh: plants faults into copies of the GPU backend, kernels and host code, and runs them
# on CPUs; the program named for each must find it. Tries one in 24 of them, by the day (part.inc), or all
# with --all. See mutants/planted_kernels.py for the faults and mutants/run_kernels.py for how.
# runner: 130 s
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../build}
[ -e "$build/simt/libtutti-cuda.so" ] || { echo "not ok - $build/simt is there"; exit 1; }
. "$here/part.inc"
part_of 24
exec env PYTHONDONTWRITEBYTECODE=1 python3 "$here/mutants/run_kernels.py" --build "$build" \
  --part "$part/$parts" "$@"
