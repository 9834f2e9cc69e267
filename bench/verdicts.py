#!/usr/bin/env python3
"""verdicts.py: the accuracy of `tutti explain` on jobs of several processes: runs tests/planted_program.c, each
with the fault of its number, asks for the diagnosis while the job hangs and once more after it was killed or has
ended, and prints precision and recall per fault, and a line for each wrong diagnosis.

  bench/verdicts.py [--jobs N] FIRST COUNT"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ.get('BUILD', os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'build'))
TUTTI = os.path.join(BUILD, 'bin', 'tutti')
PROGRAM = os.path.join(BUILD, 'tests', 'planted_program')
DEADLINE_S = 20
ANY, ROOT, OTHER, PAIR = range(4)
ENDED = "no rank's call explains it"

# Of each fault: the verdict's name in the table, the kinds of diagnosis that say it, whom it has to name, and a
# text that the sentence has to contain.
RIGHT = {
    'nothing': ('fine', ('fine',), ANY, ''),
    'late': ('fine', ('fine',), ANY, ''),
    'never': ('has not called', ('not arrived', 'alone'), ROOT, ''),
    'no join': ('did not join', ('not arrived',), ROOT, 'never came to make it'),
    'collective': ('collective', ('mismatch',), ROOT, ''),
    'count': ('count', ('mismatch',), ROOT, 'count'),
    'root': ('root', ('mismatch',), ROOT, 'root'),
    'type': ('type', ('mismatch',), ROOT, 'type'),
    'operator': ('operator', ('mismatch',), ROOT, 'operator'),
    'exit 0': ('exited', ('not arrived', 'died', 'alone'), ROOT, 'exited with status 0'),
    'exit 3': ('exited', ('died',), ROOT, 'exited with status 3'),
    'abort': ('died', ('died', 'not arrived', 'alone'), ROOT, 'was killed or crashed'),
    'killed': ('died', ('died', 'not arrived', 'alone'), ROOT, 'was killed or crashed'),
    'stopped': ('has not called', ('not arrived', 'away', 'alone'), ROOT, ''),
    'busy': ('away', ('away', 'not arrived', 'alone'), ROOT, ''),
    'send alone': ('alone', ('alone',), OTHER, ''),
    'recv alone': ('alone', ('alone',), OTHER, ''),
    'crossed': ('crossed', ('cycle',), ANY, 'communicators wait for one another'),
    'wrong comm': ('communicator', ('mismatch',), ROOT, 'another communicator'),
    'both send': ('both send', ('cycle',), PAIR, 'ranks of comm'),
}


def plan_of(number):
    text = subprocess.run([PROGRAM, str(number), 'plan'], capture_output=True, text=True, check=True).stdout
    return dict(word.split('=', 1) for word in text.strip().split(';'))


def explain(folder):
    """The diagnosis of the records in the folder; of none: nothing is wrong."""
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith('.trace')]
    if not files:
        return {'kind': 'fine', 'sentence': ''}
    asked = subprocess.run([TUTTI, 'explain', '--json'] + files, capture_output=True, text=True, timeout=60)
    return json.loads(asked.stdout) if asked.stdout else {'kind': 'none', 'sentence': asked.stderr}


def is_right(plan, answer):
    name, kinds, who, text = RIGHT[plan['fault']]
    rank, other = int(plan['rank']), int(plan['other'])
    named = answer.get('rank')
    # The receive of a later step may match a send that was meant to be alone, and differ from it; a later send of
    # the other rank makes both wait for one another.
    if name == 'alone' and answer['kind'] in ('mismatch', 'cycle') and named in (rank, other):
        return True
    # What the others called after the fault may not need this rank: then they end, and nobody waits for it.
    if plan['fault'] in ('never', 'stopped', 'busy') and named == rank and ENDED in answer['sentence']:
        return True
    if answer['kind'] not in kinds or text not in answer['sentence']:
        return False
    if who == PAIR:
        return named in (rank, other)
    # Of two ranks that differ neither is in the majority, and the sentence says so and names both.
    says_both = 'neither is in the majority' in answer['sentence'] and 'rank %d ' % rank in answer['sentence']
    tie = says_both or (name == 'communicator' and plan['ranks'] == '2')
    return who == ANY or tie or named == (other if who == OTHER else rank)


def job_settles(job, plan, folder):
    """Until the job has ended, or the diagnosis no longer changes; None, or the diagnosis."""
    deadline, last = time.monotonic() + DEADLINE_S, None
    while job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.15)
        if not os.path.exists(os.path.join(folder, 'planted')) or plan['fault'] in ('nothing', 'late'):
            continue
        answer = explain(folder)
        said = re.sub(r', for \d+ s when', '', answer['sentence'])
        if said == last and answer['kind'] not in ('fine', 'running', 'behind', 'none'):
            return answer if job.poll() is None else None
        last = said
    return None


def processes(folder):
    texts = [open(os.path.join(folder, name)).read() for name in os.listdir(folder) if name.startswith('process.')]
    return [int(text) for text in texts if text]


def send(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def runs(process):
    try:
        return open('/proc/%d/stat' % process).read().rsplit(')', 1)[1].split()[0] not in 'TtZX'
    except OSError:
        return False


def kill_all(victims):
    """As a scheduler does: all at once, so that no process sees another one's death."""
    for process in victims:
        send(process, signal.SIGSTOP)
    while any(runs(process) for process in victims):
        time.sleep(0.001)
    for process in victims:
        send(process, signal.SIGKILL)


def run(seed):
    plan = plan_of(seed)
    folder = tempfile.mkdtemp(prefix='verdicts.')
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('NCCL_', 'TUTTI_'))}
    environment.update(TUTTI_TRACE=folder + '/%r.trace', TUTTI_EMU='mode=' + plan['mode'], TUTTI_SEED=str(seed),
                       TUTTI_STALL_SECONDS='30', TUTTI_TRACE_BYTES=str(1 << 20))
    if plan['check']:
        environment['NCCL_CHECK_MODE'] = plan['check']
    command = [TUTTI, 'launch', '-n', plan['ranks']] + ['-k'] * (plan['keep_going'] == '1') + [PROGRAM, str(seed)]
    with open(os.path.join(folder, 'log'), 'w') as log:
        job = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        live = job_settles(job, plan, folder)
        kill_all(processes(folder) + [job.pid])
        job.wait()
    for process in processes(folder):
        while os.path.exists('/proc/%d' % process):
            time.sleep(0.01)
    # Nothing in the records of a killed job says that a process had been stopped before.
    answers = [explain(folder)] * (live is None or plan['fault'] != 'stopped') + [live] * (live is not None)
    shutil.rmtree(folder)
    plan['live'] = live is not None
    return seed, plan, answers


def verdict_name(answer):
    """The verdict that a wrong answer gives, as a row of the table."""
    for name, kinds, _, text in RIGHT.values():
        if answer['kind'] in kinds and (answer['kind'] != 'mismatch' or 'another ' + name in answer['sentence']):
            return name
    return answer['kind']


def table(results):
    meant, found, right = (collections.Counter() for _ in range(3))
    for _, plan, answers in results:
        name = RIGHT[plan['fault']][0]
        wrong = [answer for answer in answers if not is_right(plan, answer)]
        meant[name] += 1
        right[name] += not wrong
        found[verdict_name(wrong[0]) if wrong else name] += 1
    print('%-15s %6s %6s %6s %10s %7s' % ('verdict', 'meant', 'found', 'right', 'precision', 'recall'))
    for name in sorted(set(meant) | set(found)):
        print('%-15s %6d %6d %6d %10.3f %7.3f' % (name, meant[name], found[name], right[name],
                                                 right[name] / max(found[name], 1), right[name] / max(meant[name], 1)))
    return sum(right.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('first', type=int)
    parser.add_argument('count', type=int)
    flags = parser.parse_args()
    results = []
    with concurrent.futures.ThreadPoolExecutor(flags.jobs) as pool:
        for number, plan, answers in pool.map(run, range(flags.first, flags.first + flags.count)):
            results.append((number, plan, answers))
            for answer in answers:
                if not is_right(plan, answer):
                    print('%d: %s: %s, rank %s: %s' % (number, ' '.join('%s=%s' % row for row in plan.items() if row[0] != 'live'),
                                                       answer['kind'], answer.get('rank'), answer['sentence']))
    good = table(results)
    live = sum(plan['live'] for _, plan, _ in results)
    print('%d runs, %d of them also asked while they hung, %d right' % (len(results), live, good))
    sys.exit(good != len(results))


if __name__ == '__main__':
    main()
