#!/usr/bin/env python3
"""Runs every test of the tree and closes with one line: N passed, N failed, N skipped.

    python3 tests/run_tests.py [--quick] [--build DIR] [--jobs N] [--fuzz-seconds S] [NAME...]

Counts come from the tests themselves: from each CMocka program's closing lines, and from the ok / not ok /
skip lines of tests/*.sh. --quick leaves out the sanitizer builds and the check that each header compiles on
its own. With NAMEs, only programs and scripts of those names run. The exit status is 0 if nothing failed.

Quick programs run first, then the longest ones. One job runs per core, and beside these some jobs that
mostly wait; the output of a job is printed when it has ended. A test that takes more than some seconds, or
waits more than it computes, says so in a one-line comment:

    runner: 40 s, tsan 100 s, waits

With clang, each fuzz target (tests/fuzz) also runs 60,000 mutants of its corpus, the same ones every time, or
as many as its own comment says (`runner: 5000 mutants`). `test_fuzz --fuzz-seconds 60` runs new ones for a
minute each.

Long enumerations run a part, another one each day: part.inc for scripts, part.h for programs. The line of
such a test says which, as `part 3/16`; TEST_PART=3/16 repeats it, TEST_PART=all runs all.

A process that a test leaves behind is killed and makes the test fail."""
import argparse
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORES = os.cpu_count() or 2
WAITERS = 2  # jobs that mostly wait, beside those that compute
LINES_KEPT = 100  # of a failed test's other output, at its begin and at its end
MUTANTS = 60000  # of each fuzz target, unless its comment says how many
PROGRAM_SECONDS = 900  # a test that takes longer, or eight times its stated time, is killed
SANITIZERS = (('thread', 'build-tsan', 900), ('address,undefined', 'build-asan', 700))  # the longest first


class Report:
    """The results of one job: counts, and the lines to print."""

    def __init__(self):
        self.passed, self.failed, self.skips, self.lines = 0, [], [], []

    def add(self, passed, failed, skips):
        self.passed += passed
        self.failed += failed
        self.skips += skips

    def one(self, good, name, text=''):
        """Counts one check of the runner itself."""
        self.add(int(good), [] if good else [name], [])
        self.lines.append('%-8s %s' % ('ok' if good else 'FAILED', name))
        if not good and text:
            self.indented(text)

    def skip(self, name, reason):
        self.skips.append('%s: %s' % (name, reason))
        self.lines.append('%-8s %s: %s' % ('skipped', name, reason))

    def indented(self, text):
        lines = text.rstrip().split('\n')
        if len(lines) > 2 * LINES_KEPT:
            left_out = '... %d lines left out ...' % (len(lines) - 2 * LINES_KEPT)
            lines = lines[:LINES_KEPT] + [left_out] + lines[-LINES_KEPT:]
        self.lines += ['    ' + line for line in lines]

    def close(self):
        if self.skips:
            print('\nskipped:\n' + '\n'.join('  ' + line for line in self.skips))
        if self.failed:
            print('\nfailed:\n' + '\n'.join('  ' + line for line in self.failed))
        print('%d passed, %d failed, %d skipped' % (self.passed, len(self.failed), len(self.skips)))
        return 1 if self.failed else 0


class Job:
    """Something to run: work(report) runs it, and may return more jobs."""

    def __init__(self, work, seconds=0, waits=False, first=False):
        self.work, self.waits = work, waits
        self.order = (not first, -seconds)


class Pool:
    """Runs jobs in their order on threads. Some threads take computing jobs first and then waiting jobs; the
    others take only waiting jobs."""

    def __init__(self, workers):
        self.total, self.changed = Report(), threading.Condition()
        self.pending, self.busy = [], 0
        self.kinds = [False] * workers + [True] * WAITERS

    def run(self, jobs):
        self.add(jobs)
        threads = [threading.Thread(target=self.serve, args=(waits,), daemon=True) for waits in self.kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.total

    def add(self, jobs):
        self.pending = sorted(self.pending + list(jobs), key=lambda job: job.order)

    def serve(self, waits):
        while True:
            with self.changed:
                job = self.take(waits)
                while job is None and (self.busy or self.pending):
                    self.changed.wait()
                    job = self.take(waits)
                if job is None:
                    return
                self.busy += 1
            self.do(job)

    def take(self, waits):
        fit = [job for job in self.pending if job.waits == waits] or ([] if waits else self.pending)
        job = fit[0] if fit else None
        if job is not None:
            self.pending.remove(job)
        return job

    def do(self, job):
        report, more = Report(), []
        try:
            more = job.work(report) or []
        except Exception as error:  # an error of the runner must not look like a passed test
            report.one(False, 'the runner: %r' % error)
        with self.changed:
            print('\n'.join(report.lines), flush=True)
            self.total.add(report.passed, report.failed, report.skips)
            self.add(more)
            self.busy -= 1
            self.changed.notify_all()


def day():
    """The day of the last commit, or today."""
    seconds = subprocess.run(['sh', '-c', 'git -C "$1" log -1 --format=%ct', 'sh', ROOT], check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return int(seconds or time.time()) // 86400


def environment(build, name='tmp'):
    """The caller's environment without the library's settings, with HOME and TMPDIR inside the build."""
    ours = ('NCCL_', 'TUTTI_', 'CMOCKA_')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    folder = os.path.join(build, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    kept.setdefault('TEST_DAY', str(day()))
    kept.update(HOME=folder, TMPDIR=folder, BUILD=build, LC_ALL='C', PKG_CONFIG_PATH=build + '/lib/pkgconfig',
                TUTTI_TRACE=folder + '/')
    return kept


def session_of(process):
    """The session that a process belongs to, or None when it has ended."""
    try:
        with open('/proc/%s/stat' % process, encoding='utf-8', errors='replace') as file:
            state, _, _, session = file.read().rsplit(')', 1)[1].split()[:4]
        return None if state == 'Z' else int(session)
    except OSError:
        return None


def members_of(session):
    return [name for name in os.listdir('/proc') if name.isdigit() and session_of(name) == session]


def process_text(process):
    """The process's id, state and command line, as far as they can still be read."""
    try:
        with open('/proc/%s/cmdline' % process, encoding='utf-8', errors='replace') as file:
            command = file.read().replace('\0', ' ').strip()
        with open('/proc/%s/stat' % process, encoding='utf-8', errors='replace') as file:
            name, rest = file.read().split('(', 1)[1].rsplit(')', 1)
        return '%s (%s) %s' % (process, rest.split()[0], command or name)
    except (OSError, IndexError):
        return process


def end_session(session):
    """Kills all processes of a session and returns their descriptions."""
    members = members_of(session)
    told = [process_text(member) for member in members]
    for member in members:
        try:
            os.kill(int(member), signal.SIGKILL)
        except ProcessLookupError:
            pass
    return told


def left_of(session, seconds=10):
    """Kills the processes that outlive the first process of their session, and returns their descriptions."""
    late = time.monotonic() + seconds
    while members_of(session):
        if time.monotonic() > late:
            return end_session(session)
        time.sleep(0.05)
    return []


class Running:
    """The sessions of running tests, which are killed if the runner is ended."""
    lock, sessions, over = threading.Lock(), set(), False

    @classmethod
    def start(cls, command, **how):
        with cls.lock:
            if cls.over:
                raise RuntimeError('the runner ends')
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                       start_new_session=True, **how)
            cls.sessions.add(process.pid)
        return process

    @classmethod
    def remove(cls, session):
        with cls.lock:
            cls.sessions.remove(session)

    @classmethod
    def end(cls):
        with cls.lock:
            cls.over = True
            for session in cls.sessions:
                end_session(session)


class Done:
    """How a command ended: exit status (None when it ran out of time), both outputs together, times."""

    def __init__(self, status, output, wall=0.0, cpu=0.0):
        self.status, self.output = status, output
        self.times = '%.1f s, %.1f s of CPU' % (wall, cpu)


def run(command, env=None, cwd=ROOT, seconds=PROGRAM_SECONDS):
    begin, late = time.monotonic(), threading.Event()
    with tempfile.TemporaryFile() as file:
        process = Running.start(command, env=env, cwd=cwd, stdout=file)
        timer = threading.Timer(seconds, lambda: (late.set(), end_session(process.pid)))
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)  # wait() does not return the times
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        left = left_of(process.pid)
        Running.remove(process.pid)
        file.seek(0)
        output = file.read().decode(errors='replace')
    status = process.returncode
    if late.is_set():
        status, output = None, output + '\nno end after %d s\n' % seconds
    elif left:
        status, output = status or 1, output + '\nleft behind: %s\n' % ', '.join(left)
    return Done(status, output, time.monotonic() - begin, usage.ru_utime + usage.ru_stime)


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


def hints_of(source, kind):
    """The test's `runner:` comment for this kind of build: seconds, and whether it mostly waits."""
    with open(source, encoding='utf-8') as file:
        line = re.search(r'^(?:/\*|#) runner: (.*)', file.read(), re.M)
    hints = line.group(1) if line else ''
    seconds = dict(re.findall(r'(?:(\w+) )?\b(\d+) s\b', hints))
    return int(seconds.get(kind, seconds.get('', 0))), 'waits' in hints


def limit_of(seconds):
    return max(PROGRAM_SECONDS, 8 * seconds)


def program_job(path, env, kind=''):
    seconds, waits = hints_of('%s/tests/%s.c' % (ROOT, os.path.basename(path)), kind)
    name = (kind + ' ' if kind else '') + os.path.basename(path)
    return Job(lambda report: tell_program(report, name, run([path], env, seconds=limit_of(seconds))),
               seconds, waits, first=not kind and not seconds)


def counts_text(passed, failed, output):
    part = re.search(r'^# (part \d+/\d+):', output, re.M)
    return ('%d passed' % passed + (', %d failed' % len(failed) if failed else '') +
            (', ' + part.group(1) if part else ''))


def tell_program(report, name, done):
    passed, failed, skips = parse_cmocka(name, done.status, done.output)
    report.add(passed, failed, skips)
    count = counts_text(passed, failed, done.output) + (', %d skipped' % len(skips) if skips else '')
    report.lines.append('%-8s %s: %s (%s)' % ('FAILED' if failed else 'ok', name, count, done.times))
    report.lines += ['         skipped ' + skip for skip in skips]
    if failed:
        report.indented(re.sub(r'^\[ (RUN|      OK).*\n', '', done.output, flags=re.M))


def script_job(path, env):
    seconds, waits = hints_of(path, '')
    return Job(lambda report: tell_script(report, os.path.basename(path),
                                          run(['bash', path], env, seconds=limit_of(seconds))),
               seconds, waits)


def tell_script(report, name, done):
    passed = len(re.findall(r'^ok\b', done.output, re.M))
    failed = ['%s: %s' % (name, what) for what in re.findall(r'^not ok\b[ 0-9-]*(.*)$', done.output, re.M)]
    skips = ['%s: %s' % (name, reason) for reason in re.findall(r'^skip\b[: ]*(.*)$', done.output, re.M)]
    if done.status != 0 and not failed:
        failed.append('%s: %s' % (name, status_text(done.status)))
    if done.status == 0 and not passed and not failed and not skips:
        failed.append('%s: ran no test' % name)
    report.add(passed, failed, skips)
    report.lines.append('%-8s %s: %s (%s)' % ('FAILED' if failed else 'ok', name,
                                              counts_text(passed, failed, done.output),
                                              done.times))
    report.lines += ['         skipped ' + skip for skip in skips]
    if failed:
        checks, rest = failed_checks(done.output)
        report.lines += ['    ' + line for line in checks]
        if rest.strip():
            report.indented(rest)


def failed_checks(output):
    """The output of a script's failed checks, which is printed whole: the lines `not ok` with the indented
    lines below them; and the rest of its output, without the checks that passed."""
    block = re.compile(r'^not ok\b.*\n?(?:^    .*\n?)*', re.M)
    checks = [line for text in block.findall(output) for line in text.rstrip('\n').split('\n')]
    return checks, re.sub(r'^ok\b.*\n', '', block.sub('', output), flags=re.M)


def check_tidy(report):
    done = run([sys.executable, 'tests/check_tree.py', '--self-test'])
    report.one(done.status == 0, 'tidy: every rule can fail', done.output)
    done = run([sys.executable, 'tests/check_tree.py'])
    report.one(done.status == 0, 'tidy: include arrows, lengths, banned calls', done.output)


def check_headers(report, build):
    """Each header compiles on its own, as C11 and as C++17. nccl.h includes CUDA's header, so it is on the
    path."""
    include = os.path.join(build, 'include')
    compilers = (('gcc', 'c', '-std=c11'), ('g++', 'c++', '-std=c++17'))
    for header in sorted(glob.glob(include + '/*.h') + glob.glob(include + '/*/*.h')):
        for compiler, language, standard in compilers:
            name = 'header alone: %s, %s' % (os.path.relpath(header, include), standard[5:])
            if not shutil.which(compiler):
                report.skip(name, compiler + ' is not installed')
                continue
            done = run([compiler, '-x', language, standard, '-Wall', '-Wextra', '-Werror', '-fsyntax-only',
                        '-I' + include, '-I' + include + '/tutti-emu', '-include', header, os.devnull])
            report.one(done.status == 0, name, done.output)


def symbols_defined(library):
    output = run(['nm', '-D', '--defined-only', library]).output
    return {line.split()[-1] for line in output.split('\n') if line}


def check_library(report, path, allowed, soname):
    """A library exports only its own names, and needs only libc and the other libraries."""
    name = os.path.basename(path)
    if not os.path.exists(path):
        report.one(False, 'symbols of ' + name, 'not built: ' + path)
        return set()
    symbols = symbols_defined(path)
    not_allowed = sorted(symbol for symbol in symbols if not re.match(allowed, symbol))
    report.one(bool(symbols) and not not_allowed, 'symbols of ' + name,
              'not allowed by %s: %s' % (allowed, ' '.join(not_allowed)))
    dynamic = run(['readelf', '-dW', path]).output
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic)
    usual = r'(libc|libm|libdl|libpthread|ld-linux.*|libnccl)\.so'
    strange = [other for other in needed if not re.match(usual, other)]
    report.one('[%s]' % soname in dynamic and not strange, 'SONAME and needs of ' + name, dynamic)
    return symbols


def check_symbols(report, build):
    symbols = check_library(report, build + '/lib/libnccl.so.2', r'(p?nccl[A-Z]|tutti_)', 'libnccl.so.2')
    # NCCL too exports this symbol without a pnccl counterpart.
    alone = sorted(name for name in symbols if name.startswith('nccl') and 'p' + name not in symbols
                   and name != 'ncclResetDebugInitInternal')
    report.one(bool(symbols) and not alone, 'every nccl* has its pnccl*',
               'without a twin: ' + ' '.join(alone))
    check_library(report, build + '/lib/libtutti-cudart.so', r'(__)?cuda', 'libtutti-cudart.so')


def check_device(report, build):
    """scons has compiled the kernels if it found nvcc; a kernel that does not compile fails the build."""
    sources = glob.glob(ROOT + '/lib/kernels/*.cu')
    objects = [path for path in glob.glob(build + '/obj/lib/kernels/*.cu.o')
               if os.path.exists('%s/lib/kernels/%s' % (ROOT, os.path.basename(path)[:-len('.o')]))]
    if not sources:
        report.skip('device code', 'there is no lib/kernels/*.cu yet')
    elif not objects and not any(shutil.which('nvcc', path=path) for path in (None, '/usr/local/cuda/bin')):
        report.skip('device code', 'nvcc is not installed')
    else:
        report.one(len(objects) == len(sources), 'device code compiles with nvcc (%d files)' % len(sources))


def sanitizer_job(sanitizer, folder, seconds, names):
    """Builds with a sanitizer, and returns the jobs for its programs."""
    build = os.path.join(ROOT, folder)
    kind = folder[len('build-'):]

    def work(report):
        done = run(['scons', '-Q', '-s', '-j%d' % ((CORES + 1) // 2), 'SAN=' + sanitizer, 'tests'],
                   seconds=limit_of(seconds))
        if done.status != 0:
            report.one(False, 'build with -fsanitize=' + sanitizer, done.output)
            return []
        report.lines.append('built    with -fsanitize=%s (%s)' % (sanitizer, done.times))
        env = environment(build)
        env.update(TSAN_OPTIONS='halt_on_error=1:second_deadlock_stack=1', UBSAN_OPTIONS='print_stacktrace=1')
        return [program_job(path, env, kind) for path in chosen(programs_built(build), names)]

    return Job(work, seconds)


def has_fuzzer():
    """Whether clang is there and links libFuzzer."""
    with tempfile.TemporaryDirectory() as folder:
        source = folder + '/target.c'
        with open(source, 'w', encoding='utf-8') as file:
            file.write('int LLVMFuzzerTestOneInput(const char *data, unsigned long size) {\n'
                       '  (void)data;\n  return size > 0 ? 0 : -1;\n}\n')
        command = ['clang', '-fsanitize=fuzzer,address,undefined', source, '-o', folder + '/target']
        return bool(shutil.which('clang')) and run(command).status == 0


def fuzz_job(build, seconds):
    """Builds the fuzz targets with clang's libFuzzer, and returns a job for each."""
    env = environment(build, 'tmp-fuzz')

    def work(report):
        if not has_fuzzer():
            report.skip('mutants of the fuzz targets', 'clang and libclang-rt-dev are not installed')
            return []
        done = run(['scons', '-Q', '-s', '-j%d' % ((CORES + 1) // 2), 'fuzz'])
        if done.status != 0:
            report.one(False, 'build of the fuzz targets', done.output)
            return []
        report.lines.append('built    the fuzz targets (%s)' % done.times)
        return [Job(lambda report, source=source: run_mutants(report, build, source, env, seconds),
                    seconds or 5) for source in sorted(glob.glob(ROOT + '/tests/fuzz/fuzz_*.c'))]

    return Job(work, 120)


def run_mutants(report, build, source, env, seconds):
    """One fuzz target, from its corpus. New inputs stay in the build folder."""
    target = os.path.basename(source)[:-len('.c')]
    name = target[len('fuzz_'):]
    found = '%s/fuzz/found/%s' % (build, name)
    os.makedirs(found, exist_ok=True)
    with open(source, encoding='utf-8') as file:
        mutants = re.search(r'^/\* runner: (\d+) mutants', file.read(), re.M)
    if seconds:
        amount = ['-max_total_time=%d' % seconds, found]
    else:
        shutil.rmtree(found)
        os.makedirs(found)
        amount = ['-seed=1', '-runs=%d' % (int(mutants.group(1)) if mutants else MUTANTS), found]
    done = run(['%s/fuzz/%s' % (build, target), '-timeout=60', '-rss_limit_mb=4096',
                '-artifact_prefix=%s/fuzz/%s-' % (build, name)] + amount +
               ['%s/tests/fuzz/corpus/%s' % (ROOT, name)], env, seconds=PROGRAM_SECONDS + 2 * seconds)
    count = re.search(r'^Done (\d+) runs', done.output, re.M)
    report.one(done.status == 0 and count is not None,
               'fuzz target %s: %s mutants (%s)' % (name, count.group(1) if count else 'too few', done.times),
               re.sub(r'^#\d+\t.*\n', '', done.output, flags=re.M))


def programs_built(build):
    """Programs whose source exists: an old build directory may hold others."""
    sources = {os.path.basename(path)[:-2] for path in glob.glob(ROOT + '/tests/test_*.c')}
    return sorted(path for path in glob.glob(build + '/tests/test_*') if os.path.basename(path) in sources)


def chosen(paths, names):
    return [path for path in paths if not names or os.path.basename(path).split('.')[0] in names]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--quick', action='store_true', help='no sanitizer builds, no header checks')
    parser.add_argument('--fuzz-seconds', type=int, default=0, metavar='S',
                        help='new mutants of each fuzz target for S seconds')
    parser.add_argument('--build', default='build', help='the build folder')
    parser.add_argument('--jobs', type=int, default=max(2, CORES), help='at a time: as many as cores')
    parser.add_argument('names', nargs='*', metavar='NAME', help='test_base, for example')
    options = parser.parse_args()
    build = os.path.abspath(os.path.join(ROOT, options.build))
    unknown = [name for name in options.names if not glob.glob(ROOT + '/tests/' + glob.escape(name) + '.*')]
    if unknown:
        parser.error('no test is called %s: names are those of tests/test_*, without endings' % unknown[0])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    begin = time.monotonic()
    try:
        total = Pool(options.jobs).run(jobs_of(build, options))
    finally:
        Running.end()
    print('\n%.0f s' % (time.monotonic() - begin))
    return total.close()


def jobs_of(build, options):
    env = environment(build)
    jobs = [program_job(path, env) for path in chosen(programs_built(build), options.names)]
    jobs += [script_job(path, env) for path in chosen(sorted(glob.glob(ROOT + '/tests/*.sh')), options.names)]
    if not options.names:
        checks = [check_tidy, lambda report: check_symbols(report, build),
                  lambda report: check_device(report, build)]
        if not options.quick:
            checks.append(lambda report: check_headers(report, build))
        jobs += [Job(check) for check in checks]
    if not options.quick and (not options.names or 'test_fuzz' in options.names):
        jobs.append(fuzz_job(build, options.fuzz_seconds))
    if not options.quick:
        jobs += [sanitizer_job(*sanitizer, options.names) for sanitizer in SANITIZERS]
    return jobs


if __name__ == '__main__':
    sys.exit(main())
