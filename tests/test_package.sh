#!/bin/sh
# test_package.sh: the Python package, from the source tree and from the wheel. Prints one `ok - ` or
# `not ok - ` line per check and fails if a check failed.
# runner: 10 s, computes
. "$(dirname "$0")/script.inc"
use_build
export TUTTI_LIBRARY_PATH="$build/lib" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1
unset NCCL_DEBUG

for name in collectives messages in_place_and_device operators_and_splits wrong_arguments mismatch; do
  timeout 60 python3 "$here/package_calls.py" $name >"$work/log" 2>&1 && [ "$(tail -n 1 "$work/log")" = ok ]
  check $? "Python package: $name"
done

TUTTI_LIBRARY_PATH=$work timeout 60 python3 -c 'import tutti' >"$work/log" 2>&1
[ $? -eq 1 ] && grep -q "ImportError: libnccl.so.2 is in none of $work: set TUTTI_LIBRARY_PATH" "$work/log"
check $? 'Python package: a folder without the library is named'

# `scons wheel` calls the same program.
python3 "$root/python/wheel.py" "$build" "$work" >"$work/log" 2>&1 && wheel=$(ls "$work"/tutti-*.whl) &&
  [ "$(stat -c %s "$wheel")" -lt 8000000 ] &&
  python3 -m zipfile -e "$wheel" "$work/site" >>"$work/log" 2>&1 &&
  env -u TUTTI_LIBRARY_PATH PYTHONPATH="$work/site" timeout 60 python3 -c '
import os, tutti
from tutti import _library
assert str(_library.folder()) == os.environ["PYTHONPATH"] + "/tutti/lib", _library.folder()
comm = tutti.Communicator.init(1, 0, tutti.get_unique_id())
comm.destroy()
print("ok")' >>"$work/log" 2>&1 && [ "$(tail -n 1 "$work/log")" = ok ]
check $? 'the wheel is smaller than 8 MB, and brings its own libraries'
case $wheel in *manylinux_*_"$(uname -m)".whl) true ;; *) false ;; esac
check $? 'its tag names the processor'

# A library for another processor than those that wheels are made for (its ELF header says MIPS).
cp -r "$build/bin" "$build/lib" "$work/" && chmod u+w "$work/lib/libnccl.so.2" &&
  printf '\010' | dd of="$work/lib/libnccl.so.2" bs=1 seek=18 conv=notrunc status=none &&
  ! python3 "$root/python/wheel.py" "$work" "$work/other" >"$work/log" 2>&1 &&
  grep -q 'libnccl.so.2: for processor 8 of ELF; wheels are made for x86_64 and aarch64' "$work/log"
check $? 'no wheel is made for a processor that is not known'
[ "$failures" -eq 0 ]
