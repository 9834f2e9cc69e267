#!/usr/bin/env python3
"""Runs every test of the tree and closes with one line: N passed, N failed, N skipped.

    python3 tests/run_tests.py [--quick] [--build DIR] [NAME...]

Counts come from the tests themselves: from each CMocka program's closing lines, and from the ok / not ok /
skip lines of tests/*.sh. --quick leaves out what needs another build (the sanitizers) and the check of each
header alone. With NAMEs, only programs and scripts of those names run. The exit status is 0 when nothing
failed."""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Programs at a time: each has threads of its own, and waits for something now and then.
WORKERS = max(1, (os.cpu_count() or 2) // 2 + 1)
PROGRAM_SECONDS = 900  # a program that takes longer hangs: it is ended and counts as failed
SANITIZERS = (('address,undefined', 'build-asan'), ('thread', 'build-tsan'))


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skips = 0, [], []

    def add(self, passed, failed, skips):
        self.passed += passed
        self.failed += failed
        self.skips += skips

    def one(self, good, name, text=''):
        """Counts one check that the runner itself made, and prints it."""
        self.add(int(good), [] if good else [name], [])
        print('%-8s %s' % ('ok' if good else 'FAILED', name), flush=True)
        if not good and text:
            print_indented(text)

    def skip(self, name, reason):
        self.skips.append('%s: %s' % (name, reason))
        print('%-8s %s: %s' % ('skipped', name, reason), flush=True)

    def close(self):
        if self.skips:
            print('\nskipped:\n' + '\n'.join('  ' + line for line in self.skips))
        if self.failed:
            print('\nfailed:\n' + '\n'.join('  ' + line for line in self.failed))
        print('%d passed, %d failed, %d skipped' % (self.passed, len(self.failed), len(self.skips)))
        return 1 if self.failed else 0


def print_indented(text):
    lines = text.rstrip().split('\n')
    if len(lines) > 60:
        lines = lines[:20] + ['... %d lines left out ...' % (len(lines) - 60)] + lines[-40:]
    print('\n'.join('    ' + line for line in lines), flush=True)


def environment(build):
    """The caller's environment without settings of the library, and with a home and a TMPDIR inside the
    build."""
    ours = ('NCCL_', 'TUTTI_', 'CMOCKA_')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    folder = os.path.join(build, 'tmp')
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    kept.update(HOME=folder, TMPDIR=folder, BUILD=build, LC_ALL='C', PKG_CONFIG_PATH=build + '/lib/pkgconfig')
    return kept


def run(command, env=None, cwd=ROOT, seconds=PROGRAM_SECONDS):
    """Exit status (None when it ran out of time) and both outputs together."""
    try:
        done = subprocess.run(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds)
        return done.returncode, done.stdout.decode(errors='replace')
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b'').decode(errors='replace') + '\nno end after %d s\n' % seconds


def status_text(status):
    if status is None:
        return 'ran out of time'
    return 'exit status %d' % status if status >= 0 else 'ended by signal %d' % -status


def parse_cmocka(name, status, output):
    """Counts of one program. A program may run several groups; each closes with its own lines."""
    passed = sum(int(n) for n in re.findall(r'^\[  PASSED  \] (\d+) test', output, re.M))
    failed = ['%s: %s' % (name, test) for test in
              re.findall(r'^\[  FAILED  \] (?!\d+ test)(?:\S+: )?(\S+)$', output, re.M)]
    failed = list(dict.fromkeys(failed))
    failed_count = sum(int(n) for n in re.findall(r'^\[  FAILED  \] (\d+) test', output, re.M))
    failed += ['%s: a test' % name] * (failed_count - len(failed))
    skips, reason = [], 'no reason given'
    for line in output.split('\n'):
        if line.startswith('skip: '):
            reason = line[len('skip: '):]
        match = re.match(r'\[  SKIPPED \] (?!\d+ test)(\S+)$', line)
        if match and not any(skip.startswith('%s: %s: ' % (name, match.group(1))) for skip in skips):
            skips.append('%s: %s: %s' % (name, match.group(1), reason))
            reason = 'no reason given'
    ran = sum(int(n) for n in re.findall(r'^\[==========\] (\d+) test\(s\) run', output, re.M))
    if status != 0 and not failed:
        failed.append('%s: %s' % (name, status_text(status)))
    elif ran == 0:
        failed.append('%s: ran no test' % name)
    return passed, failed, skips


def run_program(tally, lock, path, env, label):
    name = label + os.path.basename(path)
    begin = time.monotonic()
    status, output = run([path], env)
    with lock:
        tell_program(tally, name, status, output, time.monotonic() - begin)


def tell_program(tally, name, status, output, seconds):
    passed, failed, skips = parse_cmocka(name, status, output)
    tally.add(passed, failed, skips)
    count = '%d passed' % passed + (', %d failed' % len(failed) if failed else '') + (
        ', %d skipped' % len(skips) if skips else '')
    print('%-8s %s: %s (%.1f s)' % ('FAILED' if failed else 'ok', name, count, seconds), flush=True)
    for skip in skips:
        print('         skipped ' + skip)
    if failed:
        print_indented(re.sub(r'^\[ (RUN|      OK).*\n', '', output, flags=re.M))


def run_programs(tally, paths, env, label=''):
    """Several at a time; each says how it went when it is through."""
    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        for done in [pool.submit(run_program, tally, lock, path, env, label) for path in paths]:
            done.result()


def run_script(tally, path, env):
    name = os.path.basename(path)
    begin = time.monotonic()
    status, output = run(['bash', path], env)
    passed = len(re.findall(r'^ok\b', output, re.M))
    failed = ['%s: %s' % (name, what) for what in re.findall(r'^not ok\b[ 0-9-]*(.*)$', output, re.M)]
    skips = ['%s: %s' % (name, reason) for reason in re.findall(r'^skip\b[: ]*(.*)$', output, re.M)]
    if status != 0 and not failed:
        failed.append('%s: %s' % (name, status_text(status)))
    if status == 0 and not passed and not failed and not skips:
        failed.append('%s: ran no test' % name)
    tally.add(passed, failed, skips)
    print('%-8s %s: %d passed%s (%.1f s)' % ('FAILED' if failed else 'ok', name, passed, ''.join(
        '\n         skipped ' + skip for skip in skips), time.monotonic() - begin), flush=True)
    if failed:
        print_indented(output)


def check_tidy(tally):
    status, output = run([sys.executable, 'tests/check_tree.py', '--self-test'])
    tally.one(status == 0, 'tidy: every rule can fail', output)
    status, output = run([sys.executable, 'tests/check_tree.py'])
    tally.one(status == 0, 'tidy: include arrows, lengths, banned calls', output)


def check_headers(tally, build):
    """Each header compiles alone, as C11 and as C++17. nccl.h asks for CUDA's header, so that one is on the
    path."""
    include = os.path.join(build, 'include')
    compilers = (('gcc', 'c', '-std=c11'), ('g++', 'c++', '-std=c++17'))
    for header in sorted(glob.glob(include + '/*.h') + glob.glob(include + '/*/*.h')):
        for compiler, language, standard in compilers:
            name = 'header alone: %s, %s' % (os.path.relpath(header, include), standard[5:])
            if not shutil.which(compiler):
                tally.skip(name, compiler + ' is not installed')
                continue
            status, output = run([compiler, '-x', language, standard, '-Wall', '-Wextra', '-Werror',
                                  '-fsyntax-only', '-I' + include, '-I' + include + '/tutti-emu',
                                  '-include', header, os.devnull])
            tally.one(status == 0, name, output)


def symbols_defined(library):
    _, output = run(['nm', '-D', '--defined-only', library])
    return {line.split()[-1] for line in output.split('\n') if line}


def check_library(tally, path, allowed, soname):
    """A library exports its own names only, and asks for nothing but libc and each other."""
    name = os.path.basename(path)
    if not os.path.exists(path):
        tally.one(False, 'symbols of ' + name, 'not built: ' + path)
        return set()
    symbols = symbols_defined(path)
    stray = sorted(symbol for symbol in symbols if not re.match(allowed, symbol))
    tally.one(bool(symbols) and not stray, 'symbols of ' + name,
              'not allowed by %s: %s' % (allowed, ' '.join(stray)))
    _, dynamic = run(['readelf', '-dW', path])
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic)
    usual = r'(libc|libm|libdl|libpthread|ld-linux.*|libnccl)\.so'
    strange = [other for other in needed if not re.match(usual, other)]
    tally.one('[%s]' % soname in dynamic and not strange, 'SONAME and needs of ' + name, dynamic)
    return symbols


def check_symbols(tally, build):
    symbols = check_library(tally, build + '/lib/libnccl.so.2', r'(p?nccl[A-Z]|tutti_)', 'libnccl.so.2')
    # NCCL exports this one without a twin, too.
    alone = sorted(name for name in symbols if name.startswith('nccl') and 'p' + name not in symbols
                   and name != 'ncclResetDebugInitInternal')
    tally.one(bool(symbols) and not alone, 'every nccl* has its pnccl*', 'without a twin: ' + ' '.join(alone))
    check_library(tally, build + '/lib/libtutti-cudart.so', r'(__)?cuda', 'libtutti-cudart.so')


def check_device(tally, build):
    """scons has compiled the kernels where it could; a kernel that does not compile has already ended the
    build."""
    sources = glob.glob(ROOT + '/lib/kernels/*.cu')
    objects = [path for path in glob.glob(build + '/obj/lib/kernels/*.cu.o')
               if os.path.exists('%s/lib/kernels/%s' % (ROOT, os.path.basename(path)[:-len('.o')]))]
    if not sources:
        tally.skip('device code', 'there is no lib/kernels/*.cu yet')
    elif not objects and not any(shutil.which('nvcc', path=path) for path in (None, '/usr/local/cuda/bin')):
        tally.skip('device code', 'nvcc is not installed')
    else:
        tally.one(len(objects) == len(sources), 'device code compiles with nvcc (%d files)' % len(sources))


def run_sanitizers(tally, names):
    for sanitizer, folder in SANITIZERS:
        build = os.path.join(ROOT, folder)
        status, output = run(['scons', '-Q', '-s', 'SAN=' + sanitizer, 'tests'], seconds=1200)
        if status != 0:
            tally.one(False, 'build with -fsanitize=' + sanitizer, output)
            continue
        env = environment(build)
        env.update(TSAN_OPTIONS='halt_on_error=1:second_deadlock_stack=1', UBSAN_OPTIONS='print_stacktrace=1')
        run_programs(tally, chosen(programs_built(build), names), env, folder[len('build-'):] + ' ')


def programs_built(build):
    """Programs whose source is still there: an old build folder may hold others."""
    sources = {os.path.basename(path)[:-2] for path in glob.glob(ROOT + '/tests/test_*.c')}
    return sorted(path for path in glob.glob(build + '/tests/test_*') if os.path.basename(path) in sources)


def chosen(paths, names):
    return [path for path in paths if not names or os.path.basename(path).split('.')[0] in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='no sanitizer builds, no header checks')
    parser.add_argument('--build', default='build', help='the build folder')
    parser.add_argument('names', nargs='*', metavar='NAME', help='test_base, for example')
    options = parser.parse_args()
    build = os.path.abspath(os.path.join(ROOT, options.build))
    tally, env = Tally(), environment(build)
    run_programs(tally, chosen(programs_built(build), options.names), env)
    for path in chosen(sorted(glob.glob(ROOT + '/tests/*.sh')), options.names):
        run_script(tally, path, env)
    if not options.names:
        check_tidy(tally)
        check_symbols(tally, build)
        check_device(tally, build)
    if not options.names and not options.quick:
        check_headers(tally, build)
    if not options.quick:
        run_sanitizers(tally, options.names)
    return tally.close()


if __name__ == '__main__':
    sys.exit(main())
