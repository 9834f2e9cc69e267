#!/usr/bin/env python3
"""Plants one bug at a time into copies of the host's sources and proves that the named tests catch it.

    python3 tests/mutants/run_host.py [--build DIR] [--all] [NAME...]

Tries the quick bugs of planted_host.py, or all, or those of these names. Each is compiled with the build's
flags, linked in place of the original and run with only the named tests, which must pass without the bug and
with it fail, crash, or exceed FAULT_SECONDS. Prints one `ok - `, `not ok - ` or `skip - ` line each; a fault
whose file no longer has what it replaces is `not ok` whether or not it is tried. The exit status is 0 if no
line is `not ok`. Everything is built in DIR/mutants_host; the folder of a bug that was missed is kept. DIR
must have a build of the tests."""
import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys

from planted_host import FAULTS
from run import CC, ROOT, call, one_line, planted_at, planted_text

FLAGS = ['-std=c11', '-O2', '-fPIC', '-ffp-contract=off', '-fno-semantic-interposition', '-D_GNU_SOURCE',
         '-Ilib', '-Ilib/backends/emu', '-Ilib/backends/emu/cudart/include']
LIBRARIES = ['-lcmocka', '-pthread', '-ldl', '-lm', '-lexpat', '-lnettle']
SOUND_SECONDS, FAULT_SECONDS = 60, 20  # tests take some seconds: one that hangs has found the bug

# A CMocka program runs all of its tests; this object makes it run only those named in $TESTS.
CHOOSER = '''
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
__attribute__((constructor)) static void choose(void) { cmocka_set_test_filter(getenv("TESTS")); }
'''


class Base:
    """A finished build, and the folder for the mutants built from it."""

    def __init__(self, build):
        self.build, self.folder = build, os.path.join(build, 'mutants_host')
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.chooser = os.path.join(self.folder, 'chooser.o')
        with open(self.chooser[:-1] + 'c', 'w', encoding='utf-8') as file:
            file.write(CHOOSER)
        call([CC, '-c', self.chooser[:-1] + 'c', '-o', self.chooser])

    def link(self, folder, program, objects):
        """The linker skips an archive's member if `objects` define all of its names."""
        target = os.path.join(folder, 'tests', program)
        os.makedirs(os.path.dirname(target))
        os.symlink(os.path.join(self.build, 'tests/plugins'), os.path.join(folder, 'tests/plugins'))
        os.symlink(os.path.join(self.build, 'lib'), os.path.join(folder, 'lib'))
        test = os.path.join(self.build, 'obj/tests', program + '.os')
        archives = [os.path.join(self.build, 'obj', name) for name in ('libtutti_tests.a', 'libtutti_all.a')]
        call([CC, '-o', target, test, self.chooser] + objects + archives + LIBRARIES)
        return target


def run_tests(program, tests, seconds):
    """How the run ended (passed, failed, crash, hang or skipped), and its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(('TUTTI_', 'NCCL_'))}
    env['TESTS'] = tests
    env['TUTTI_TRACE'] = 'off'  # a failing test would leave its records
    with subprocess.Popen([program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            output = process.communicate(timeout=seconds)[0].decode(errors='replace')
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 'hang', 'no end after %d s' % seconds
    if process.returncode < 0:
        return 'crash', output
    if process.returncode > 0 or not re.search(r'\[==========\].* [1-9]\d* test\(s\) run', output):
        return 'failed', output
    return ('passed' if re.search(r'\[  PASSED  \] [1-9]', output) else 'skipped'), output


def first_words(output):
    """The assertion that failed, if there is one."""
    lines = [line for line in re.sub('Could not run test|Test teardown failed', '', output).split('\n')
             if 'Failure!' in line or line.startswith('[  ERROR')]
    lines = lines or [line for line in output.split('\n') if line.startswith('[  FAILED')] or [output]
    return one_line(re.sub(r'^[: ]*(\[ +\S+ +\] (--- )?)+', '', lines[0]), 110)


def stale(faults):
    """A sentence for each fault whose file no longer has what it replaces."""
    for fault in faults:
        try:
            with open(os.path.join(ROOT, fault.file), encoding='utf-8') as file:
                planted_at(file.read(), fault)
        except (RuntimeError, OSError) as error:
            yield 'fault %s: %s' % (fault.name, error)


def try_sound(base, program, tests, number):
    folder = os.path.join(base.folder, 'sound%d' % number)
    kind, output = run_tests(base.link(folder, program, []), tests, SOUND_SECONDS)
    if kind in ('passed', 'skipped'):
        shutil.rmtree(folder)
    return kind, output


def try_fault(base, fault, sound):
    """(ok, not ok or skip; the line to print)."""
    folder = os.path.join(base.folder, fault.name)
    where = '%s %s' % (fault.program, fault.tests)
    kind, output = sound.result()
    if kind == 'skipped':
        return 'skip', 'fault %s: %s is skipped here' % (fault.name, where)
    if kind != 'passed':
        return 'not ok', 'fault %s: %s does not pass without it: %s' % (fault.name, where,
                                                                        first_words(output))
    try:
        copy = os.path.join(folder, 'source', fault.file)
        os.makedirs(os.path.dirname(copy))
        with open(os.path.join(ROOT, fault.file), encoding='utf-8') as file:
            text = planted_text(file.read(), fault)
        with open(copy, 'w', encoding='utf-8') as file:
            file.write(text)
        call([CC] + FLAGS + ['-c', copy, '-o', folder + '/fault.o'])
        program = base.link(folder, fault.program, [folder + '/fault.o'])
        kind, output = run_tests(program, fault.tests, FAULT_SECONDS)
    except RuntimeError as error:
        return 'not ok', 'fault %s: does not compile: %s' % (fault.name, error)
    if kind == 'passed':
        return 'not ok', 'fault %s: MISSED by %s' % (fault.name, where)
    shutil.rmtree(folder)
    return 'ok', 'fault %s: caught by %s (%s: %s)' % (fault.name, where, kind, first_words(output))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--all', action='store_true', help='all faults, not the quick ones alone')
    parser.add_argument('names', nargs='*', metavar='NAME', help='faults of planted_host.py')
    options = parser.parse_args()
    faults = [fault for fault in FAULTS
              if (fault.name in options.names if options.names else options.all or fault.quick)]
    old = list(stale(FAULTS))
    for line in old:
        print('not ok - ' + line, flush=True)
    base = Base(os.path.abspath(options.build))
    with concurrent.futures.ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        pairs = sorted({(fault.program, fault.tests) for fault in faults})
        sound = {pair: pool.submit(try_sound, base, *pair, number) for number, pair in enumerate(pairs)}
        jobs = [pool.submit(try_fault, base, fault, sound[fault.program, fault.tests]) for fault in faults]
        outcomes = []
        for job in jobs:
            outcome, line = job.result()
            outcomes.append(outcome)
            print('%s - %s' % (outcome, line), flush=True)
    return 1 if old or 'not ok' in outcomes else 0


if __name__ == '__main__':
    sys.exit(main())
