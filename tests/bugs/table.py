#!/usr/bin/env python3
"""Runs every case of the suite of bugs, the wrong program and its correct twin, and prints a table: how
many wrong programs of each class were detected (recall), and how many reports were right (precision).

    python3 tests/bugs/table.py [--build DIR] [--modes guarded,threads,processes] [--jobs N]
                                [--seeds N] [--lines]
                                [CASE...]

A wrong program is detected if it ends by itself, without a signal, and its output matches everything
that the case demands: the kind of error, the rank, often the line. A run that hangs until the timeout,
crashes, or fails with another message is missed. A correct twin must print nothing and end with status
0. Where only some orders fail, seeds 1 to 200 are tried in guarded mode, and 200 runs with free threads.

--lines prints an `ok - ` or `not ok - ` line for each run instead of the table; what free threads miss is
not a failure there. --seeds N runs each
correct twin with seeds 1 to N. The status is 0 if guarded mode and processes have precision and recall
1, apart from cases that state why they are missed."""
import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEEDS = 200  # within which the bug must be found
SEEDS_RIGHT = 10  # of the correct twin of such a case
TIMEOUT_S = 40
STALL_SECONDS = 2  # ranks of a wrong program that wait are reported after this time, if not at once
MODES = ('guarded', 'threads', 'processes')
ENVIRONMENT = re.compile('^(TUTTI|NCCL|CUDA)_')  # that the caller has set must not change the result

Case = collections.namedtuple('Case', 'name class_name file ranks kind flags missed says')
Result = collections.namedtuple('Result', 'case mode right good how output')


def read_cases(program):
    """The cases, in the order of their files."""
    cases = []
    for line in subprocess.check_output([program, '--list'], text=True).splitlines():
        name, class_name, file, ranks, kind, flags, missed, *says = line.split('\t')
        cases.append(Case(name, class_name, file, int(ranks), kind, flags.split(), missed, says))
    names = collections.Counter(case.name for case in cases)
    twice = [name for name in names if names[name] > 1]
    if twice:
        sys.exit('these names are used twice: ' + ', '.join(twice))
    return cases


class Suite:
    """Where the programs are and how they run."""

    def __init__(self, build, work, seeds):
        self.program = os.path.join(build, 'tests', 'bugs', 'bugs')
        self.launcher = os.path.join(build, 'bin', 'tutti')
        self.work, self.seeds = work, seeds

    def run(self, case, mode, right, seed):
        """Status (None: the timeout) and output of one run."""
        command = [self.program] + ['--right'] * right + [case.name]
        if mode == 'processes':
            command = [self.launcher, 'launch', '-n', str(case.ranks)] + command
        environment = {name: value for name, value in os.environ.items() if not ENVIRONMENT.match(name)}
        environment.update(LC_ALL='C', TUTTI_SEED=str(seed), TUTTI_TRACE=self.work + '/')
        if not right:  # a correct program may wait that long on a busy machine
            environment.update(TUTTI_STALL_SECONDS=str(STALL_SECONDS),
                               TUTTI_INIT_TIMEOUT_SECONDS=str(STALL_SECONDS))
        if mode == 'threads':
            environment['TUTTI_EMU'] = 'mode=threads'
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors='replace',
                              start_new_session=True) as process:
            try:
                return process.communicate(timeout=TIMEOUT_S)[0], process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return process.communicate()[0], None

    def check_wrong(self, case, mode):
        """The wrong program must be detected."""
        for seed in range(1, 1 + (SEEDS if 'seeds' in case.flags else 1)):
            output, status = self.run(case, mode, False, seed)
            if status is None:
                return Result(case, mode, False, False, 'hangs', output)
            if status < 0 or status >= 128:
                return Result(case, mode, False, False, 'crashes with status %d' % status, output)
            lacking = [text for text in case.says if not re.search(text, output)]
            if not lacking:
                return Result(case, mode, False, True, 'seed %d' % seed, output)
            if status != 0:
                break
        how = 'status %d, without "%s"' % (status, '", "'.join(lacking))
        return Result(case, mode, False, False, how, output)

    def check_right(self, case, mode):
        """The correct twin must be silent."""
        for seed in range(1, 1 + max(self.seeds, SEEDS_RIGHT if 'seeds' in case.flags else 1)):
            output, status = self.run(case, mode, True, seed)
            if status != 0 or output:
                how = 'hangs' if status is None else 'status %d, seed %d' % (status, seed)
                return Result(case, mode, True, False, how, output)
        return Result(case, mode, True, True, '', '')

    def check(self, case, mode, right):
        return self.check_right(case, mode) if right else self.check_wrong(case, mode)


def print_failures(results):
    """What each run that was not as it should be printed."""
    for result in results:
        if result.good:
            continue
        print('\n%s %s (%s, %s): %s%s' % ('FALSE ALARM' if result.right else 'MISSED', result.case.name,
                                          result.mode, result.case.file, result.how,
                                          '; known: ' + result.case.missed if result.case.missed else ''))
        for line in result.output.splitlines()[:12]:
            print('    ' + line[:400])


def row(name, results):
    """One line of the table."""
    wrong = [result for result in results if not result.right]
    hits = sum(result.good for result in wrong)
    alarms = sum(not result.good for result in results if result.right)
    precision = hits / (hits + alarms) if hits + alarms else 1
    return '%-22s %5d %5d %5d %5d %10.3f %7.3f' % (name, len(wrong), hits, len(wrong) - hits, alarms,
                                                   precision, hits / len(wrong))


def print_table(results):
    """A table for each mode, a line for each class."""
    for mode in MODES:
        of_mode = [result for result in results if result.mode == mode]
        if not of_mode:
            continue
        print('\n%-22s %5s %5s %5s %5s %10s %7s' % (mode, 'cases', 'TP', 'FN', 'FP', 'precision', 'recall'))
        for name in dict.fromkeys(result.case.class_name for result in of_mode):
            print(row(name, [result for result in of_mode if result.case.class_name == name]))
        print(row('all', of_mode))


def print_lines(results):
    """As the other tests print their checks."""
    for result in results:
        name = '%s: %s, %s' % (result.mode, result.case.name, 'correct twin' if result.right else 'bug')
        if result.good:
            print('ok - ' + name)
        elif result.case.missed:
            print('skip - %s: %s' % (name, result.case.missed))
        elif result.mode == 'threads':
            print('    (%s: missed, as free threads fix no order: %s)' % (name, result.how))
        else:
            print('not ok - %s: %s' % (name, result.how))
            print('\n'.join('    ' + line[:400] for line in result.output.splitlines()[:20]))


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--modes', default=','.join(MODES))
    parser.add_argument('--jobs', type=int, default=2 * (os.cpu_count() or 2))
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument('--lines', action='store_true')
    parser.add_argument('names', nargs='*')
    options = parser.parse_args()
    modes = options.modes.split(',')
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        suite = Suite(options.build, work, options.seeds)
        cases = [case for case in read_cases(suite.program)
                 if not options.names or case.name in options.names]
        runs = [(case, mode, right) for mode in modes for case in cases for right in (False, True)
                if mode != 'processes' or 'processes' in case.flags]
        results = list(pool.map(lambda run: suite.check(*run), runs))
    if options.lines:
        print_lines(results)
    else:
        print_failures(results)
        print_table(results)
    failed = [result for result in results if not result.good and not result.case.missed]
    return 1 if any(result.mode != 'threads' for result in failed) else 0


if __name__ == '__main__':
    sys.exit(main())
