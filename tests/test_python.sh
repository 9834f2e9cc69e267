#!/bin/sh
# test_python.sh: the call sites of programs that call the library from Python, with each interpreter on the
# path whose frames it knows, and with one that it does not know. Prints one `ok - ` or `not ok - ` line per
# check.
# runner: 10 s, waits
. "$(dirname "$0")/script.inc"
use_build
tutti=$build/bin/tutti line=$(grep -n 'nccl.ncclAllReduce' "$here/python_job.py" | cut -d: -f1)
export LIBRARIES="$build/lib" TUTTI_STALL_SECONDS=2

asked() { # INTERPRETER LIBRARY: runs the job and asks for the diagnosis of its records
  rm -f "$work"/*.trace
  timeout 60 "$1" "$here/python_job.py" "$2" >"$work/job" 2>&1
  status=$?
  noted $((status != 3)) "exit status 3, which was $status"
  cat "$work/job" >"$work/log"
  "$tutti" explain "$work"/*.trace >>"$work/log" 2>&1
}

tried=0
for python in python3 python3.11 python3.12 python3.13; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  case $version in 3.11 | 3.12 | 3.13) ;; *) continue ;; esac
  tried=1
  asked "$python" CDLL
  grep '^rank 1 .* has not called operation #2 ' "$work/log" |
    grep "; rank 1 called #1 at python_job.py:$line (step), rank 0" |
    grep -q ", rank 0 #2 at python_job.py:$line (step)\$"
  check $? "Python $version, without the GIL: the lines of Python are named"
  asked "$python" PyDLL
  grep -q "; rank [01] called #0 at python_job.py:$line (step)" "$work/log"
  check $? "Python $version, with the GIL: the line of Python is named"
done
[ $tried -eq 1 ] || echo 'skip: no Python 3.11 to 3.13'

for python in python3.8 python3.9 python3.10; do
  "$python" -c '' 2>/dev/null || continue
  asked "$python" CDLL
  grep -q '^rank 1 .* has not called operation #2 .*; rank 1 called #1 at [^ ]*ffi[^ ]*+0x' "$work/log"
  check $? "$python: a Python whose frames are not known: the place in the wrapper is named"
  break
done
[ "$failures" -eq 0 ]
