#!/usr/bin/env python3
"""Plants faults into copies of the GPU backend, host code and kernels, runs it on CPUs (tests/simt), and
proves that the test programs find each of them.

    python3 tests/mutants/run_kernels.py [--build DIR] [--all | --part N/M] [--table FILE] [NAME...]

One build has all faults of planted_kernels.py: each is a branch, and SIMT_PLANTED=NUMBER chooses one when a
program starts. Without a fault every scenario must pass; with one, its scenario must fail as the table says:
wrong bits, a hang that the watchdog explains, an error. Those that it calls `steps` must also pass where the
kernel is not compared with its schedule. Those that it calls `equal` must be reached and must not fail.
Prints one `ok - ` or `not ok - ` line each; the exit status is 0 if all are ok.
--part runs every M-th fault, from the N-th on. Everything is built in DIR/mutants_kernels. DIR must have a
finished build of `prefix` and `simt`."""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from planted_kernels import ALWAYS, FAULTS, KERNELS
from run import ROOT, call, one_line

CC, CXX = os.environ.get('CC', 'gcc'), os.environ.get('CXX', 'g++')
INCLUDES = ['tests/simt/include', 'tests', 'lib', 'lib/kernels', 'lib/backends/emu/cudart/include']
FLAGS = ['-O1', '-fPIC', '-w', '-ffp-contract=off', '-D_GNU_SOURCE', '-DCAPABILITY_CODE=80,90',
         '-DCAPABILITY_PTX=90']
C_FLAGS = ['-std=gnu11']
CXX_FLAGS = ['-x', 'c++', '-std=c++17', '-fno-exceptions', '-fno-rtti', '-g1', '-fsanitize=thread', '--param',
             'tsan-distinguish-volatile=1'] # as tests/simt/SConscript has them
ORDERS = 4           # of a block's threads, in which a fault that does not show is tried: SIMT_SEED
HANG_SECONDS = 3     # a program of which the watchdog says that it hangs must not end in this time
RUN_SECONDS = 240     # a run without any word is `silence`; long, because the machine may be busy
UNCAUGHT = ('equal',)
# Processes that are hosts: joined by sockets, or each with an emulated NIC (tests/simt/verbs.c).
HOSTS = {'sockets': 'NCCL_HOSTID=host$$ exec "$@"',
         'nics': 'LD_LIBRARY_PATH=$LD_LIBRARY_PATH/verbs:$LD_LIBRARY_PATH '
                 'SIMT_NICS=$TUTTI_TRACE/nics:$TUTTI_RANK:1 NCCL_HOSTID=host$$ exec "$@"'}

# What the library says of a hang, before or after an abort.
NO_PROGRESS = re.compile(rb'operations make no progress: [^\n]*\n|'
                         rb'[^\n]*its kernels are still behind [^\n]*\n')

HEADER = '''
#ifdef __cplusplus
extern "C" {
#endif
extern int simt_planted;
int simt_planted_reached(void);
#ifdef __cplusplus
}
#endif
#define PLANTED(number) (__builtin_expect(simt_planted == (number), 0) && simt_planted_reached())
'''

CHOOSER = '''
#include <stdlib.h>
#include <unistd.h>
int simt_planted;
int simt_planted_reached(void) {
  static int said;
  if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) && write(2, "planted: reached\\n", 17) < 0) abort();
  return 1;
}
__attribute__((constructor)) static void choose(void) {
  const char *number = getenv("SIMT_PLANTED");
  if (number) simt_planted = atoi(number);
}
'''


# Rules of a tuning file: a ring that needs all slots after a direct collective that leaves some to it.
RULES = 'all_reduce 0 6M algo=TwoShot proto=Simple\nall_reduce 6M max algo=Ring proto=Simple\n'


# ---- the sources with all faults ----

def place_of(text, fault):
    """Begin and end of what the fault replaces: all of `find`, or what is between its two @."""
    before, piece, behind = fault.find.split('@') if '@' in fault.find else ('', fault.find, '')
    pattern = ''.join('(%s)' % r'\s+'.join(re.escape(word) for word in part.split()) if part.split() else '()'
                      for part in (before, piece, behind)).replace(')(', r')\s*(')
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise RuntimeError('fault %s: what is to be replaced occurs %d times in %s, not once' %
                           (fault.name, len(found), fault.file))
    return found[0].span(2)


def branch(number, wrong, right):
    """The text that acts wrongly if the fault is chosen: a statement or an expression."""
    if right.rstrip().endswith((';', '}')):
        return '{ if (PLANTED(%d)) { %s } else { %s } }' % (number, wrong, right)
    return '(PLANTED(%d) ? (%s) : (%s))' % (number, wrong, right)


def planted_in(text, places):
    """The text with all its faults. A place may contain others, or be the same."""
    done, parts = 0, []
    places = sorted(places, key=lambda place: (place[0][0], -place[0][1], place[1]))
    while places:
        (begin, end), number, wrong = places.pop(0)
        if begin < done:
            raise RuntimeError('what fault %d replaces overlaps with that of another' % number)
        inner = [((at - begin, to - begin), other, other_wrong)
                 for (at, to), other, other_wrong in places if to <= end]
        places = [place for place in places if place[0][1] > end]
        parts += [text[done:begin], branch(number, wrong, planted_in(text[begin:end], inner))]
        done = end
    return ''.join(parts) + text[done:]


def sources_plant(folder):
    """Writes the sources with faults, and returns their names."""
    files = {fault.file for fault in FAULTS} | {file for file, _, _ in ALWAYS}
    for name in files:
        with open(os.path.join(ROOT, name), encoding='utf-8') as file:
            text = file.read()
        for _, find, replace in (row for row in ALWAYS if row[0] == name):
            if text.count(find) != 1:
                raise RuntimeError('%s has not once: %s' % (name, find))
            text = text.replace(find, replace)
        places = [(place_of(text, fault), number, fault.replace)
                  for number, fault in enumerate(FAULTS, 1) if fault.file == name]
        copy = os.path.join(folder, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(copy, 'w', encoding='utf-8') as file:
            file.write(planted_in(text, places))
    return files


# ---- the build ----

def compile_one(folder, files, source):
    place = os.path.join(folder, source) if source in files else source
    target = os.path.join(folder, os.path.basename(source) + '.o')
    first = [folder + '/lib', folder + '/lib/kernels']
    call(['nice', CXX if source.endswith('.cu') else CC] + FLAGS +
         (CXX_FLAGS if source.endswith('.cu') else C_FLAGS) +
         ['-I' + path for path in first + INCLUDES] +
         ['-include', folder + '/planted.h', '-c', place, '-o', target])
    return target


def includes_one(source, files):
    with open(os.path.join(ROOT, source), encoding='utf-8') as file:
        text = file.read()
    return any('#include "%s"' % name[len('lib/'):] in text for name in files)


def library_build(pool, build, folder):
    """build/simt with a libtutti-cuda.so that has the faults; the other objects are the build's."""
    files = sources_plant(folder)
    for name, text in (('planted.h', HEADER), ('planted.c', CHOOSER), ('rules', RULES)):
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
            file.write(text)
    mine = ['lib/kernels/kernel_%s.cu' % kernel for kernel in KERNELS]
    mine += [path for path in (os.path.relpath(found, ROOT) for found in
                               sorted(glob.glob(ROOT + '/lib/backends/cuda/*.c')))
             if path in files or includes_one(path, files)]
    jobs = [pool.submit(compile_one, folder, files, source) for source in mine + ['planted.c']
            if source != 'planted.c']
    call([CC, '-O1', '-fPIC', '-c', folder + '/planted.c', '-o', folder + '/planted.o'])
    objects = [job.result() for job in jobs] + [folder + '/planted.o']
    built = {os.path.basename(target) for target in objects}
    elsewhere = {name + '.cc.o' for name in ('block', 'copy_engine', 'runtime', 'memory', 'memory_limit',
                                             'registered', 'graph_events', 'graph_objects', 'reset',
                                             'watch', 'order', 'driver', 'driver_memory')}
    for path in sorted(glob.glob(build + '/obj/tests/simt/*.o*')):
        name = os.path.basename(path)
        if name not in elsewhere and name.replace('.os', '.o') not in built:
            objects.append(path)
    shutil.copytree(build + '/simt', folder + '/simt')
    simt = folder + '/simt'
    call([CXX, '-shared', '-o', simt + '/libtutti-cuda.so', '-Wl,-rpath,$ORIGIN',
          '-Wl,--version-script=lib/backends/cuda/cuda.map'] + objects +
         [simt + '/libtutti-simt.so', simt + '/libnccl.so.2', simt + '/libtutti-cudart.so',
          '-lpthread', '-ldl', '-lm'])


PROGRAMS = {'wrap': 'tests/gpu/wrap.c', 'mismatch': 'tests/gpu/mismatch.c', 'abort': 'tests/gpu/abort.c',
            'scalar': 'tests/gpu/scalar.c', 'slots': 'tests/gpu/slots.c', 'again': 'tests/gpu/again.c',
            'plans': 'tests/gpu/plans.c', 'vmm': 'tests/gpu/vmm.c', 'lives': 'tests/gpu/lives.c',
            'rma': 'tests/gpu/rma.c', 'puts': 'tests/gpu/puts.c', 'copies': 'tests/gpu/copies.c',
            'graphs': 'tests/gpu/graphs.c', 'crowd': 'tests/gpu/crowd.c',
            'leases': 'tests/gpu/leases.c', 'suspend': 'tests/gpu/suspend.c'}


def programs_build(pool, build, folder):
    wanted = {fault.run.program for fault in FAULTS} & set(PROGRAMS)
    jobs = [pool.submit(call, [CC, '-O1', '-w', '-o', os.path.join(folder, name), PROGRAMS[name],
                               '-Itests/simt/include', '-Itests', '-Ilib', '-I' + build + '/include',
                               '-I' + build + '/include/tutti-emu',
                               '-L' + build + '/lib', '-ltutti-cudart', '-lnccl', '-lpthread', '-ldl'])
            for name in sorted(wanted)]
    for job in jobs:
        job.result()


# ---- runs ----

def command_of(run, build, folder):
    words = run.arguments.split()
    simt = folder + '/simt'
    if run.program == 'bench':
        words = [build + '/bin/tutti', 'bench'] + words + ['-w', '0', '-q'] + \
            ([] if '-n' in words else ['-n', '1']) + \
            ['--nccl', simt + '/libnccl.so.2', '--cudart', simt + '/libtutti-simt.so']
    else:
        words = [os.path.join(folder, run.program)] + words
    if run.processes:
        host = ['sh', '-c', HOSTS[run.hosts], 'host'] if run.hosts else []
        words = [build + '/bin/tutti', 'launch', '-n', str(run.processes)] + host + words
    return ['nice'] + words


def environment_of(run, folder, traces, number, order):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(('TUTTI_', 'NCCL_', 'SIMT_', 'LD_'))}
    simt = folder + '/simt'
    env.update(LD_LIBRARY_PATH=simt, TUTTI_BACKEND='cuda',
               TUTTI_EMU='mode=threads', TUTTI_TRACE=traces + '/', TUTTI_WATCHDOG_SECONDS='2',
               NCCL_SOCKET_IFNAME='lo', NCCL_DEBUG='WARN', NCCL_MAX_CTAS='1', SIMT_PLANTED=str(number))
    if run.program != 'bench': # it loads the runtime itself
        env['LD_PRELOAD'] = simt + '/libtutti-simt.so'
    if order > 0:
        env['SIMT_SEED'] = str(order)
    env.update(word.replace('@', folder).split('=', 1) for word in run.env.split())
    return env


def rows_are_right(output):
    """Of `tutti bench`: every row was checked and is right."""
    rows = [line.split() for line in output.splitlines() if re.match(r' *\d', line)]
    return bool(rows) and all(row[at] in ('0', 'N/A') for row in rows for at in (8, 12))


def kind_of(run, status, output, found):
    """passed, wrong, hang, race, steps, error, crash; and what the output says."""
    if found:
        return 'hang', found
    if status is None:
        return 'silence', 'no end after %d s' % RUN_SECONDS
    wrong = re.search(r'wrong: .*|\w+ of \d+ bytes, .*wrong elements.*', output)
    if wrong:
        return 'wrong', wrong.group(0)
    if 'simt: steps: ' in output:
        return 'steps', re.search(r'simt: steps: .*', output).group(0)
    if 'simt: race' in output:
        return 'race', ' '.join(re.findall(r'simt: race.*|simt:   (?:first|then).*', output))
    if status < 0 or status > 127 or 'simt: ' in output:
        told = re.search(r'simt: .*', output)
        return ('error', told.group(0)) if told else ('crash', 'exit status %d: %s' % (status, output[-300:]))
    if status != 0:
        told = re.search(r'(failed: |is wrong|error).*', output)
        return 'error', told.group(0) if told else output[-300:]
    if run.program == 'bench' and not rows_are_right(output):
        return 'wrong', ' '.join(output.splitlines()[-1:])
    if run.program == 'mismatch' and 'do not agree on operation' not in output:
        return 'error', 'no rank says whose sizes differ'
    return 'passed', output


def ends(process):
    try:
        process.wait(HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def run_program(run, build, folder, number, name, order=0):
    """(kind, what it says, whether the fault was reached, seconds)"""
    traces = os.path.join(folder, 'runs', name)
    os.makedirs(traces, exist_ok=True)
    begin = time.monotonic()
    with subprocess.Popen(command_of(run, build, folder), stdin=subprocess.DEVNULL,
                          env=environment_of(run, folder, traces, number, order), start_new_session=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        timer = threading.Timer(RUN_SECONDS, process.kill)
        timer.start()
        lines, found = [], None
        for line in process.stdout:
            lines.append(line)
            # Without a fault a busy machine may cause it.
            if number and NO_PROGRESS.search(line) and not ends(process):
                found = NO_PROGRESS.search(line).group(0).decode(errors='replace').strip()
                break
        late = not timer.is_alive()
        timer.cancel()
        if found or late:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    output = b''.join(lines).decode(errors='replace')
    kind, told = kind_of(run, None if late else status, output, found)
    shutil.rmtree(traces, ignore_errors=True)
    return kind, told, 'planted: reached' in output, time.monotonic() - begin


def without_steps(run):
    return run._replace(env=' '.join(word for word in run.env.split() if not word.startswith('SIMT_STEPS=')))


def try_fault(number, fault, build, folder):
    """(ok, the line to print, the row of the table)"""
    if fault.shows == 'steps':
        kind, told, reached, _ = run_program(without_steps(fault.run), build, folder, number, fault.name)
        if kind != 'passed' or not reached:
            return False, '%s: without a comparison with the schedule: %s, %s: %s' % (
                fault.name, kind, 'reached' if reached else 'not reached', one_line(told, 600)), ''
    for order in range(1 if fault.shows in UNCAUGHT else ORDERS):
        kind, told, reached, seconds = run_program(fault.run, build, folder, number, fault.name, order)
        if kind != 'passed':
            break
    row = '%-44s %-34s %-6s %5.1f s  ' % (fault.name, fault.file[len('lib/'):], kind, seconds)
    if fault.shows in UNCAUGHT:
        good = kind == 'passed' and reached
        found = '%s, %s: %s' % (kind, 'reached' if reached else 'not reached', one_line(told, 600))
        line = '%s: %s: %s' % (fault.name, fault.shows, fault.says if good else found)
        return good, line, row.replace(' passed ', ' %-6s ' % fault.shows) + fault.says
    good = kind in fault.shows.split('|') and re.search(fault.says, told) is not None
    seen = kind if reached else kind + ' (not reached)'
    if good:
        return True, '%s: caught by %s (%s)' % (fault.name, kind, one_line(told)), row + one_line(told)
    return False, '%s: expected %s with "%s", found %s: %s' % (fault.name, fault.shows, fault.says, seen,
                                                               one_line(told, 600)), row


def try_scenario(index, run, build, folder):
    kind, told, _, seconds = run_program(run, build, folder, 0, 'sound%d' % index)
    text = 'no fault planted: %s %s, %s, %.1f s' % (run.program, run.arguments, run.env, seconds)
    return kind == 'passed', text + ('' if kind == 'passed' else ': %s: %s' % (kind, one_line(told, 600))), ''


def chosen(options):
    """The numbers of the faults to be tried."""
    numbers = range(1, len(FAULTS) + 1)
    if options.names:
        return [number for number in numbers if FAULTS[number - 1].name in options.names]
    if options.part and not options.all:
        first, of = (int(text) for text in options.part.split('/'))
        return [number for number in numbers if number % of == first % of]
    return list(numbers)


def report(jobs, table):
    failed = 0
    for job in concurrent.futures.as_completed(jobs) if table is None else jobs:
        good, line, row = job.result()
        print('%sok - %s' % ('' if good else 'not ', line), flush=True)
        failed += not good
        if table is not None and row:
            table.append(row)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--all', action='store_true', help='all faults, whatever --part says')
    parser.add_argument('--part', help='N/M: every M-th fault')
    parser.add_argument('--table', help='a file for the table of results')
    parser.add_argument('names', nargs='*', metavar='NAME', help='faults of planted_kernels.py')
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    folder = os.path.join(build, 'mutants_kernels')
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    table = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        begin = time.monotonic()
        library_build(pool, build, folder)
        programs_build(pool, build, folder)
        faults = [(number, FAULTS[number - 1]) for number in chosen(options)]
        print('# built in %.0f s; %d of %d faults%s' % (time.monotonic() - begin, len(faults), len(FAULTS),
              ', part ' + options.part if options.part else ''), flush=True)
        runs = dict.fromkeys(fault.run for _, fault in faults)
        failed = report([pool.submit(try_scenario, index, run, build, folder)
                         for index, run in enumerate(runs)], [])
        failed += report([pool.submit(try_fault, number, fault, build, folder)
                          for number, fault in faults], table)
    if options.table:
        with open(options.table, 'w', encoding='utf-8') as file:
            file.write('\n'.join(table) + '\n')
    shutil.rmtree(folder + '/runs', ignore_errors=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
