#!/usr/bin/env python3
"""Plants one bug at a time into copies of the shared headers and proves that its scenario catches it.

    python3 tests/mutants/run.py [--build DIR] [--part N/M] [NAME...]

First the unchanged library must pass every scenario, so that a later failure is due to the bug. Then each
mutant of planted.py is compiled (only the sources that include the changed header and use the changed
function), linked with the rest and run. Prints one `ok - ` or `not ok - ` line each; the exit status is 0 if
all are ok. --part runs every M-th mutant, from the N-th on. Everything is built in DIR/mutants; the folder of
a mutant that was not caught is kept."""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys

from planted import MUTANTS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CC = os.environ.get('CC', 'gcc')
FLAGS = ['-std=c11', '-D_GNU_SOURCE', '-O0', '-ffp-contract=off', '-MMD'] # many small builds, short runs
# ThreadSanitizer sees a memcpy only if it stays a call.
TSAN_FLAGS = ['-fsanitize=thread', '-g', '-fno-builtin-memcpy']
INCLUDES = ['lib', 'lib/backends/emu', 'lib/backends/emu/cudart/include', 'tests']
LIBRARIES = ['-pthread', '-ldl', '-lm', '-lexpat', '-lnettle']
RUN_SECONDS = 300   # a mutant that runs longer is not caught; long, because the machine may be busy
RACE_TURNS = 4

# The emulator, plans and the layers below them: no API, no CUDA runtime.
SOURCES = ['lib/base/*.c', 'lib/trace/*.c', 'lib/kernels/*.c', 'lib/core/plan/*.c', 'lib/core/plugins/*.c',
           'lib/core/custom/*.c',
           'lib/core/topology/graph.c', 'lib/core/topology/links.c',
           'lib/backends/*.c', 'lib/backends/emu/*.c', 'lib/backends/emu/cudart/*.c', 'tests/ranks.c',
           'tests/mutant_run.c']


def sources():
    found = [os.path.relpath(path, ROOT) for pattern in SOURCES for path in glob.glob(ROOT + '/' + pattern)]
    return [path for path in sorted(found) if not os.path.basename(path).startswith('cudart')]


def call(command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError('%s\n%s' % (' '.join(command), done.stdout.decode(errors='replace')))


def compile_one(source, folder, extra, first_includes=()):
    """Compiles a source into a folder; returns the object and the files that it includes."""
    target = os.path.join(folder, source.replace('/', '_')[:-2])
    includes = ['-I' + place for place in list(first_includes) + INCLUDES]
    call([CC] + FLAGS + extra + includes + ['-c', source, '-o', target + '.o'])
    with open(target + '.d') as file:
        depends = file.read().replace('\\\n', ' ').split()[1:]
    return target + '.o', {os.path.normpath(os.path.join(ROOT, path)) for path in depends}


def functions_in(target):
    """Names of an object's functions: without optimisation they include the inline functions that it uses."""
    done = subprocess.run(['nm', target], stdout=subprocess.PIPE, check=True)
    return set(re.findall(r' [tTwW] (\w+)$', done.stdout.decode(), re.M))


class Base:
    """The unchanged library, compiled with some extra flags: an object and its headers for each source."""

    def __init__(self, pool, folder, extra):
        self.extra, self.folder = extra, folder
        os.makedirs(folder)
        jobs = {source: pool.submit(compile_one, source, folder, extra) for source in sources()}
        built = {source: job.result() for source, job in jobs.items()}
        self.objects = {source: target for source, (target, _) in built.items()}
        self.headers = {source: headers for source, (_, headers) in built.items()}
        self.functions = {source: functions_in(target) for source, target in self.objects.items()}

    def link(self, program, changed):
        objects = [changed.get(source, target) for source, target in self.objects.items()]
        call([CC] + self.extra + objects + ['-o', program] + LIBRARIES)
        return program


def planted_at(text, mutant):
    """The place of the bug; blanks and line ends in `find` match any run of them."""
    pattern = r'\s+'.join(re.escape(word) for word in mutant.find.split())
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise RuntimeError('what is to be replaced occurs %d times in %s, not once' %
                           (len(found), mutant.file))
    return found[0].span()


def planted_text(text, mutant):
    """The header with the bug."""
    begin, end = planted_at(text, mutant)
    return text[:begin] + mutant.replace + text[end:]


def function_around(text, begin, end):
    """The inline function whose body has this part, or None."""
    for match in re.finditer(r'^(?:PRIM_FN|static inline)\b[^;{}()]*?(\w+)\([^{};]*\{', text[:begin], re.M):
        depth, at = 1, match.end()
        while depth > 0 and at < len(text):
            depth += {'{': 1, '}': -1}.get(text[at], 0)
            at += 1
        if match.end() <= begin and end <= at:
            return match.group(1)
    return None


def build_mutant(mutant, base, folder):
    copy = os.path.join(folder, mutant.file)
    os.makedirs(os.path.dirname(copy))
    with open(os.path.join(ROOT, mutant.file), encoding='utf-8') as file:
        text = file.read()
    function = function_around(text, *planted_at(text, mutant))
    with open(copy, 'w', encoding='utf-8') as file:
        file.write(planted_text(text, mutant))
    first_includes = [folder + '/lib', folder + '/lib/backends/emu']
    changed = {}
    for source, headers in base.headers.items():
        uses = function is None or function in base.functions[source]
        if uses and os.path.join(ROOT, mutant.file) in headers:
            changed[source], includes = compile_one(source, folder, base.extra, first_includes)
            if copy not in includes:
                raise RuntimeError('%s does not see the changed header' % source)
    if not changed:
        raise RuntimeError('nothing uses %s' % function)
    return base.link(folder + '/mutant_run', changed)


def run_program(program, run):
    """The first word of the output, and all of it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(('TUTTI_', 'NCCL_'))}
    env['NCCL_DEBUG'] = 'NONE'  # the driver prints the last error itself
    env.update(TUTTI_EMU=run.emu, TUTTI_FIRST_STEP=run.first, TUTTI_STALL_SECONDS='2', TUTTI_TRACE='off',
               TSAN_OPTIONS='halt_on_error=1:exitcode=66')
    arguments = [1, run.seeds, run.ranks, run.calls, run.functions, run.protocols, run.counts, run.type_bytes]
    try:
        done = subprocess.run([program] + [str(argument) for argument in arguments], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_SECONDS)
    except subprocess.TimeoutExpired:
        return 'hang', 'no end after %d s' % RUN_SECONDS
    output = done.stdout.decode(errors='replace').strip()
    if 'ThreadSanitizer' in output:
        return 'tsan', output[output.index('WARNING'):] if 'WARNING' in output else output
    if done.returncode not in (0, 1):
        return 'crash', 'exit status %d\n%s' % (done.returncode, output)
    return output.split(' ')[0] if output else 'nothing', output


def one_line(text, columns=150):
    text = re.sub(r'\s+', ' ', re.sub(r'reproduce: .*', '', text))
    return text if len(text) <= columns else text[:columns] + '...'


def try_mutant(mutant, bases, folder):
    """(caught, the line to print)."""
    try:
        program = build_mutant(mutant, bases[mutant.shows == 'tsan'], folder)
    except RuntimeError as error:
        return False, 'mutant %s: %s' % (mutant.name, error)
    kind, output = run_program(program, mutant.run)
    for _ in range(RACE_TURNS):  # a race shows only if two threads happen to overlap
        if mutant.shows != 'tsan' or kind != 'passed':
            break
        kind, output = run_program(program, mutant.run)
    if kind == mutant.shows and mutant.says in output:
        shutil.rmtree(folder)
        seed = re.search(r'seed (\d+)', output)
        where = ' at seed ' + seed.group(1) if seed and kind != 'tsan' else ''
        return True, 'mutant %s: caught by %s%s (%s)' % (mutant.name, kind, where, one_line(output))
    return False, 'mutant %s: expected %s with "%s", found %s: %s' % (
        mutant.name, mutant.shows, mutant.says, kind, one_line(output, 600))


def try_scenario(run, program):
    kind, output = run_program(program, run)
    text = '%s %s counts %s, %s, from step %s, %d seeds' % (run.functions, run.protocols, run.counts[:12],
                                                            run.emu, run.first, run.seeds)
    good = kind == 'passed'
    return good, 'no bug planted: %s%s' % (text, '' if good else ': ' + one_line(output, 600))


def report(jobs):
    failed = 0
    for job in jobs:
        good, line = job.result()
        print('%sok - %s' % ('' if good else 'not ', line), flush=True)
        failed += not good
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--part', default='0/1', help='N/M: every M-th mutant')
    parser.add_argument('names', nargs='*', metavar='NAME', help='mutants of planted.py')
    options = parser.parse_args()
    part, parts = (int(text) for text in options.part.split('/'))
    top = os.path.join(os.path.abspath(options.build), 'mutants')
    shutil.rmtree(top, ignore_errors=True)
    mutants = [mutant for number, mutant in enumerate(MUTANTS)
               if (mutant.name in options.names if options.names else number % parts == part)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        bases = {tsan: Base(pool, top + ('/base_tsan' if tsan else '/base'), TSAN_FLAGS if tsan else [])
                 for tsan in sorted({mutant.shows == 'tsan' for mutant in mutants})}
        programs = {tsan: base.link(base.folder + '/mutant_run', {}) for tsan, base in bases.items()}
        runs = dict.fromkeys((mutant.run, mutant.shows == 'tsan') for mutant in mutants)
        failed = report([pool.submit(try_scenario, run, programs[tsan]) for run, tsan in runs])
        failed += report([pool.submit(try_mutant, mutant, bases, os.path.join(top, mutant.name))
                          for mutant in mutants])
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
