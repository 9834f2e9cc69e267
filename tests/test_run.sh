#!/bin/sh
# test_run.sh: `tutti run`: sweeps of right and wrong programs (run_program.c): which failure is reported, how
# it is shrunk, that its command repeats it, time limits, signals, what is left behind, JUnit and JSON.
# runner: 20 s
. "$(dirname "$0")/script.inc"
use_build
verb=run
. "$here/verb.inc"
PATH=$build/bin:$PATH
program=$build/tests/run_program
export TMPDIR="$work/tmp"
mkdir "$TMPDIR"
# The folders of records that are kept, and processes whose command line begins with this.
kept() { find "$TMPDIR" -mindepth 2 -maxdepth 2 | wc -l; }
left() {
  count=0
  for each in /proc/[0-9]*/cmdline; do
    case $({ tr '\0' ' ' <"$each"; } 2>/dev/null) in "$1"*) count=$((count + 1)) ;; esac
  done
  echo $count
}

# ---- right programs
try 0 --seeds 1-40 "$program" right &&
  says '40 seeds passed, 16 of them with the default settings; 0 failed (' && [ ! -s "$work/err" ] &&
  [ "$(find "$TMPDIR" -mindepth 1 | wc -l)" = 0 ]
check $? "a right program passes; nothing is said on standard error, and no records are kept"
try 0 --seeds 5,20-22 -v "$program" right && says 'seed 5: passed in' 'default settings' \
  'seed 21: passed in' 'TUTTI_EMU=' '4 seeds passed'
check $? "numbers and ranges of seeds; --verbose says the settings of each run"
TUTTI_EMU=slots=7,lag=3 try 0 --seeds 1-60 -v "$program" right &&
  ! grep -q 'slots=[234]\|lag=[159]0' "$work/err"
check $? "keys that the user sets are left alone"
try 0 --seeds 1-4 -n 4 "$build/examples/launched" && says '4 seeds passed'
check $? "jobs of several processes"
echo text | "$tutti" run --seeds 1-4 "$program" reads >"$work/log" 2>&1
check $? "a program that reads finds nothing to read"

# ---- a bug that few orders of events show
try 1 --seeds 1-60 -j 1 "$program" race && cp "$work/out" "$work/one" &&
  says 'failed: exit status 1' '| rank 2 was first' 'It takes TUTTI_EMU=' 'reproduce: TUTTI_SEED='
check $? "a message race is found"
same=0
for jobs in 2 7; do
  try 1 --seeds 1-60 -j $jobs "$program" race &&
    [ "$(grep reproduce "$work/out")" = "$(grep reproduce "$work/one")" ] || same=1
done
check $same "... the same failure, with the same settings, with any number of jobs"
try 1 --seeds 1-9 -j 8 --no-shrink "$program" late && says 'seed 3 failed' '2 seeds passed' '6 were not run'
check $? "... which is that of the lowest seed, also if a higher one fails earlier"
command=$(sed -n 's/^reproduce: //p' "$work/one")
! sh -c "$command" >"$work/log" 2>&1 && says 'rank 2 was first'
check $? "... and its command repeats it"
rm -rf "${TMPDIR:?}"/*
try 1 --seeds 1-100 "$program" picky slots=2 && says 'TUTTI_EMU=slots=2 to fail' &&
  grep -q "^reproduce: TUTTI_SEED=[0-9]* TUTTI_EMU=slots=2 $program picky slots=2\$" "$work/out" &&
  [ "$(kept)" = 1 ] && folder=$(sed -n 's/^records: *//p' "$work/out") &&
    "$tutti" explain "$folder"/*.trace >/dev/null
check $? "settings are shrunk to those that matter; the records of the failure alone are kept"
try 1 --seeds 1-30 --no-shrink "$program" picky chunk=1K && ! grep -q 'It takes' "$work/out"
check $? "--no-shrink"
try 1 --seeds 1-60 --keep-going "$program" picky slots=2 &&
  count=$(grep -c '^seed [0-9]* failed' "$work/out") && [ "$count" -gt 1 ] &&
  says "; $count failed (" && ! grep -q 'not run' "$work/out"
check $? "--keep-going runs all seeds and reports each failure"

# ---- failures of each kind
TUTTI_EMU=devices=4,channels=1 try 1 --seeds 1-9 "$build/examples/forgets" &&
  says 'NCCL WARN deadlock' 'diagnosis: ' 'rank 2' 'with other seeds: the order of events does not matter' \
    'reproduce: TUTTI_SEED=1 TUTTI_EMU=devices=4,channels=1 '
check $? "a deadlock that has nothing to do with the order of events: this is said, with the diagnosis"
try 1 --seeds 1-9 "$program" early && says 'exit status 4' '(it printed nothing)' \
  'ended before it made a communicator'
check $? "a program that ends before it makes a communicator"
rm -rf "${TMPDIR:?}"/*
try 1 --seeds 1-9 -t 2 --no-shrink -n 4 "$build/examples/hangs" &&
  says 'no end within 2 s' 'rank 2 (process' 'for which 3 others wait' 'tutti launch -n 4' &&
    [ "$(kept)" = 1 ] && [ "$(left "$build/examples/hangs")" = 0 ]
check $? "a job that hangs is ended and diagnosed, and all of its processes with it"
try 1 --seeds 1 --no-shrink "$program" noisy 300 && says 'exit status 5' '| the last line <&>' &&
  [ "$(wc -c <"$work/out")" -lt 20000 ]
check $? "a program that prints without end is not kept in memory"
try 0 --seeds 1-3 "$program" leaves && [ "$(left "$program leaves")" = 0 ]
check $? "what a run leaves behind is ended"
try 2 --seeds 1-9 "$program" nothing && says 'made no communicator' 'tutti doctor'
check $? "a program that never calls NCCL is no test"
try 2 --seeds 1-9 "$work/absent" && says 'cannot be run: No such file' && try 2 "$here/run_program.c" &&
  says 'cannot be run: Permission denied' && try 2 -n 2 "$work/absent" && says 'cannot be run: '
check $? "programs that cannot be executed"
try 2 && says 'needs a program' && try 2 --seeds 9-1 true && says '--seeds 9-1: must be' &&
  try 2 --seeds 1,x true && try 2 --seeds 1-1000000000 true && TUTTI_EMU=slot=2 try 2 true &&
  says 'did you mean slots?'
check $? "wrong command lines and settings"

# ---- a signal
rm -rf "${TMPDIR:?}"/*
"$tutti" run --seeds 1-9 -j 3 "$program" sleeps >"$work/log" 2>&1 &
pid=$!
until [ "$(left "$program sleeps")" -ge 3 ]; do sleep 0.05; done
kill -INT $pid
wait $pid
[ $? -eq 130 ] && says '0 seeds passed' '9 were not run' 'ended by signal 2' &&
  [ "$(left "$program sleeps")" = 0 ] && [ "$(find "$TMPDIR" -mindepth 1 | wc -l)" = 0 ]
check $? "an interrupt ends all runs, prints what was found, and leaves nothing behind"

# On a terminal a line shows the rate and the failures; it is cleared before the report.
python3 - "$tutti" run --seeds 1 -t 3 --no-shrink "$program" sleeps >"$work/log" <<'P'
import os, pty, sys
pty.spawn(sys.argv[1:])
P
says 'runs a second, 0 failed' 'no end within 3 s'
check $? "progress on a terminal"

# ---- reports for machines
cat >"$work/read.py" <<'P'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find('testsuite')
cases = suite.findall('testcase')
failures = [case.find('failure') for case in cases if case.find('failure') is not None]
assert int(suite.get('tests')) == len(cases) and int(suite.get('failures')) == len(failures)
assert all(float(case.get('time')) >= 0 and case.get('name').startswith('seed ') for case in cases)
print(len(cases), len(failures), *(text for each in failures for text in (each.get('message'), each.text)))
P
try 1 --seeds 1-9 --junit "$work/junit.xml" "$program" noisy 0 &&
  python3 "$work/read.py" "$work/junit.xml" >"$work/log" && says '1 1 exit status 5 reproduce: TUTTI_SEED=1' \
  "$(printf 'the last line <&> "?\357\277\275\303\251"')"
check $? "JUnit: what a program prints is escaped, and bytes that XML lacks are replaced"
try 0 --seeds 1-20 --junit "$work/junit.xml" "$program" right &&
  python3 "$work/read.py" "$work/junit.xml" >"$work/log" && grep -q '^20 0$' "$work/log"
check $? "JUnit: a test case for each seed"
try 3 --junit "$work/absent/file" "$program" right && says 'cannot be written' && [ ! -s "$work/out" ]
check $? "JUnit: a file that cannot be written is found before the first run"
try 1 --seeds 1-100 --json "$program" picky slots=2 && python3 - "$work/out" <<'P'
import json, sys
found = json.load(open(sys.argv[1]))
last = found['runs'][-1]
assert found['failed'] == 1 and found['passed'] + found['failed'] + found['not_run'] == 100
assert last['state'] == 'failed' and 'slots=2' in last['settings'] and last['reason'] == 'exit status 3'
assert found['shrunk']['repeats'] and ' TUTTI_EMU=slots=2 ' in found['shrunk']['reproduce']
P
check $? "JSON"
[ "$failures" -eq 0 ]
