#!/usr/bin/env python3
"""Runs every command that a document shows, and compares its output with the output shown.

    python3 tests/test_docs.py [--update] [--build DIR] [DOCUMENT...]

Documents are all README.md of the tree and docs/*.md. Commands are in fenced blocks:

    ```console       a line `$ COMMAND` is a command, the lines after it are its output
    ```sh            each line is a command; `# ...` after it is a comment
    ```, ```c, ...   no commands: a line that looks like a command in a block without a language is an error

A comment before a block sets options: <!-- docs: WORD, WORD -->, with the words

    skip: REASON     the block is not run, and a `skip` line says why (to the end of the comment)
    exit=N/M/...     the exit statuses of its commands, instead of 0; the last applies to the rest
    lines=N          the document shows the first N lines of each output, and `...`
    varies           the output differs from run to run: the document shows one run, which is not compared
    until=TEXT       the first command is repeated until its output has TEXT (_ is a blank), for a minute

The blocks of a document run in order in one scratch folder with links to the tree's folders. A command that
ends with `&` runs until the end of the document. Exported variables are kept. /dev/shm in a command is a
folder in the scratch folder. Process ids and the host's name in outputs are replaced, so that outputs are the
same everywhere.

Also tested: links lead to files; docs/reference.md has each declaration of lib/tutti.h and each call of the
emulated CUDA runtime; docs/troubleshooting.md quotes messages that a source has; bench/README.md has the
tables of bench/means.py. --update rewrites outputs and generated parts. The exit status is 0 if
nothing failed."""
import argparse
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS = 240  # a command that takes longer hangs
WORD_LIKE_COMMAND = re.compile(r'(\$ |\./run\b|tutti (?!0)|cc |nvcc |mpirun |srun |torchrun |scons\b|'
                               r'sudo |python3 |bench/\w+\.sh|docker |[A-Z]+_[A-Z_]+=\S* )')
KINDS = ('', 'console', 'sh', 'text', 'c', 'python', 'yaml')


class Block:
    """A fenced block: its place in the document's lines (first: the fence), its kind and its options."""

    def __init__(self, path, lines, first, last, words):
        self.path, self.first, self.last = path, first, last
        self.kind, self.body = lines[first][3:].strip(), lines[first + 1:last]
        skip = re.search(r'skip: *(.*)', words, re.S)
        self.skip = skip[1].strip() if skip else None
        words = re.split(r', *', words[:skip.start()] if skip else words)
        values = dict(word.strip().split('=', 1) if '=' in word else (word.strip(), '') for word in words)
        self.codes = [int(code) for code in values.get('exit', '0').split('/')]
        self.shown = int(values.get('lines', 0))
        self.varies, self.until = 'varies' in values, values.get('until', '').replace('_', ' ')

    def steps(self):
        """Each line with a command, the command, and the output after it, None if the block has none."""
        if self.kind == 'sh':
            lines = [line for line in self.body if line.strip() and not line.startswith('#')]
            return [('', re.sub(r'\s+# .*', '', line), None) for line in lines]
        steps = []
        for line in self.body:
            if line.startswith('$ '):
                steps.append((line, re.sub(r'\s{2,}# .*', '', line[2:]), []))
            elif steps:
                steps[-1][2].append(line)
        return steps


def blocks_of(path, lines):
    blocks, at = [], 0
    while at < len(lines):
        if lines[at].startswith('```'):
            last = at + 1
            while last < len(lines) and not lines[last].startswith('```'):
                last += 1
            before = '\n'.join(lines[max(0, at - 4):at])
            said = re.search(r'<!-- docs: ((?:(?!-->).)*) -->\s*$', before, re.S)
            blocks.append(Block(path, lines, at, last, said[1] if said else ''))
            at = last
        at += 1
    return blocks


class Same:
    """An output in the form that is compared: processes and communicators numbered in the order of their
    first use, one name for the host, no dates."""

    def __init__(self):
        self.pids, self.comms = {}, {}

    def pid(self, found):
        return found[1] + self.pids.setdefault(found[2], str(4001 + len(self.pids)))

    def comm(self, found):
        return found[1] + self.comms.setdefault(found[2], '%016x' % (len(self.comms) + 1))

    def text(self, text, scratch):
        text = text.replace(scratch + '/shm', '/dev/shm').replace(scratch + '/', '').replace(ROOT + '/', '')
        text = re.sub(r'^\[\d{4}-[^]]*\] \S+:\d+:\d+ \[-?\d+\] \S+:\d+ NCCL', 'NCCL', text, flags=re.M)
        text = re.sub(r"(comm ')([0-9a-f]{8,16})(?=')", self.comm, text)
        text = re.sub(r'\b(process(?:es)? |pid |\(pid )(\d+)', self.pid, text)
        text = re.sub(r'(tutti\.[\w-]+\.|Pid +)(\d+)', self.pid, text)
        text = re.sub(r'\b%s\b' % re.escape(socket.gethostname()), 'node', text)
        text = re.sub(r', for \d+ s when the files were taken', '', text)  # on a busy machine
        return [line.rstrip() for line in text.rstrip('\n').split('\n')] if text.strip() else []


class Document:
    """A run of one document's blocks."""

    def __init__(self, path, build):
        self.path, self.build = path, build
        with open(os.path.join(ROOT, path)) as file:
            self.lines = file.read().split('\n')
        self.same, self.counts, self.behind, self.changes = Same(), [0, 0, 0], [], []

    def say(self, kind, line, text, detail=()):
        print('%s%s:%d: %s' % (('ok - ', 'not ok - ', 'skip: ')[kind], self.path, line + 1, text))
        for row in detail:
            print('    ' + row)
        sys.stdout.flush()
        self.counts[kind] += 1

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(('NCCL_', 'TUTTI_'))}
        shm = self.scratch + '/shm'
        return dict(kept, LC_ALL='C', PATH=self.build + '/bin:' + kept['PATH'], TUTTI_TRACE=shm + '/',
                    PKG_CONFIG_PATH=self.build + '/lib/pkgconfig', NCCL_SOCKET_IFNAME='lo', HOME=self.scratch,
                    LD_LIBRARY_PATH=self.build + '/lib', TMPDIR=self.scratch)

    def start(self, command):
        command = command.replace('/dev/shm', self.scratch + '/shm')
        with open(self.scratch + '/.output', 'ab' if command.endswith('&') else 'wb') as out:
            command = '. ./.env 2>/dev/null; %s\ncode=$?; export -p >.env; exit $code' % command.rstrip('& ')
            return subprocess.Popen(['bash', '-c', command], cwd=self.scratch, env=self.environment(),
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                    start_new_session=True)

    def once(self, command):
        """One run: its exit status and its output."""
        process = self.start(command)
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = 'none after %d s' % SECONDS
            process.wait()
        with open(self.scratch + '/.output', errors='replace') as file:
            return code, self.same.text(file.read(), self.scratch)

    def run_command(self, block, line, command, shown):
        if command.endswith('&'):
            self.behind.append(self.start(command))
            self.say(0, line, command)
            return None
        wanted = block.codes[0] if len(block.codes) == 1 else block.codes.pop(0)
        until, block.until = block.until, ''
        code, output = self.once(command)
        end = time.monotonic() + 60
        while until and until not in '\n'.join(output) and time.monotonic() < end:
            time.sleep(0.3)
            code, output = self.once(command)
        if block.shown and len(output) > block.shown:
            output = output[:block.shown] + ['...']
        good = code == wanted and (not until or until in '\n'.join(output))
        fits = block.varies or shown is None or self.updates or shown == output
        detail = [] if good and fits else ['exit status %s, expected %s; it says:' % (code, wanted)] + output
        if good and not fits:
            detail += ['the document shows (python3 tests/test_docs.py --update writes it anew):']
            detail += shown
        self.say(0 if good and fits else 1, line, command, detail)
        return output if shown is not None and good else None

    def run_block(self, block):
        if block.kind not in KINDS:
            self.say(1, block.first, '```%s: no kind of block; one of %s' % (block.kind, ', '.join(KINDS)))
        elif block.kind == 'yaml':
            self.say(2 if block.skip else 1, block.first, 'a file: ' + (block.skip or 'it has no `skip`'))
        elif block.kind not in ('console', 'sh'):
            for row, line in enumerate(block.body):
                if block.kind in ('', 'text') and not block.skip and WORD_LIKE_COMMAND.match(line):
                    self.say(1, block.first + 1 + row, 'a command in a block of text; ```sh runs it: ' + line)
        elif block.skip:
            for _, command, _ in block.steps():
                self.say(2, block.first, '%s: %s' % (command, block.skip))
        else:
            self.run_steps(block)

    def run_steps(self, block):
        body = []
        for row, command, shown in block.steps():
            output = self.run_command(block, block.first, command, shown)
            body += [row] + (shown if output is None else output) if row else []
        if block.kind == 'console' and self.updates and body != block.body:
            self.changes.append((block.first + 1, block.last, body))

    def run(self, updates):
        self.updates, self.scratch = updates, tempfile.mkdtemp(prefix='docs.')
        try:
            for name in os.listdir(ROOT):
                if not name.startswith('.') and name != 'build' and not name.startswith('build-'):
                    os.symlink(os.path.join(ROOT, name), os.path.join(self.scratch, name))
            os.symlink(self.build, self.scratch + '/build')
            os.mkdir(self.scratch + '/shm')
            for block in blocks_of(self.path, self.lines):
                self.run_block(block)
        finally:
            for process in self.behind:
                self.end(process)
            shutil.rmtree(self.scratch, ignore_errors=True)
        for first, last, body in reversed(self.changes):
            self.lines[first:last] = body
        if self.changes:
            write(os.path.join(ROOT, self.path), '\n'.join(self.lines))

    @staticmethod
    def end(process):
        """Ends a background command with all processes that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
                break
            except ProcessLookupError:
                process.wait()
                break
            except subprocess.TimeoutExpired:
                continue

    def check_links(self):
        folder = os.path.dirname(os.path.join(ROOT, self.path))
        for row, line in enumerate(self.lines):
            for target in re.findall(r'\]\(([^)#\s]+)[^)]*\)', line):
                if '://' not in target and not os.path.exists(os.path.join(folder, target)):
                    self.say(1, row, 'a link that leads nowhere: ' + target)
        self.say(0, 0, 'its links')


def write(path, text):
    with open(path, 'w') as file:
        file.write(text)


def read(*parts):
    with open(os.path.join(ROOT, *parts)) as file:
        return file.read()


# ---- the reference

def squeezed(text):
    return re.sub(r'\s*([(),;*{}\[\]])\s*', r'\1', re.sub(r'\s+', ' ', text)).strip()


def declarations():
    """Of lib/tutti.h: prototypes, and (type, member) pairs."""
    text = re.sub(r'/\*.*?\*/', '', read('lib', 'tutti.h'), flags=re.S)
    prototypes = re.findall(r'^((?:ncclResult_t|const char \*|\w+) ?\*?tutti_\w+\([^;]*\);)', text, re.M)
    members = []
    for body, name in re.findall(r'typedef struct \{(.*?)\} (\w+);', text, re.S):
        for declaration in re.sub(r'\[\w+\]', '', body).split(';'):
            names = re.findall(r'(\w+)\s*(?=,|$)', declaration.strip())
            members += [(name, member) for member in names]
    return prototypes, members


def cuda_calls():
    """Of the emulated runtime's C headers: prototypes by header."""
    headers = {}
    for name in ('cuda_runtime_api.h', 'cuda_profiler_api.h', 'cuda_fp16.h', 'cuda_bf16.h'):
        text = re.sub(r'/\*.*?\*/', '', read('lib/backends/emu/cudart/include', name), flags=re.S)
        text = re.sub(r'^\s*#.*(?:\\\n.*)*', '', text, flags=re.M)
        text = re.sub(r'\s*TUTTI_CUDART_DEFAULT\(\w+\)', '', text)
        found = re.findall(r'(?:^|[;}\n])\s*(?:static inline )?((?:cudaError_t|const char \*|float|__\w+) ?'
                           r'(?:cuda|__)\w+\([^;{]*\))\s*[;{]', text)
        headers[name] = sorted({re.sub(r'\s+', ' ', each) for each in found})
    return headers


def cuda_table():
    rows = []
    for header, prototypes in cuda_calls().items():
        rows += ['', '`%s`, %d declarations:' % (header, len(prototypes)), '', '```c']
        rows += [each + ';' for each in prototypes] + ['```']
    return '\n'.join(rows[1:])


def cuda_exports(build):
    """Errors if the runtime's library has other calls than its headers."""
    listed = subprocess.run(['nm', '-D', '--defined-only', build + '/lib/libtutti-cudart.so'], text=True,
                            stdout=subprocess.PIPE).stdout
    exported = {line.split()[-1].split('@')[0] for line in listed.splitlines()}
    declared = {re.search(r'(\w+)\(', each)[1] for name in ('cuda_runtime_api.h', 'cuda_profiler_api.h')
                for each in cuda_calls()[name]}
    return (['a header declares %s, which libtutti-cudart.so lacks' % name for name in declared - exported] +
            ['libtutti-cudart.so has %s, which no header declares' % name
             for name in exported - declared if name.startswith('cuda')])


GENERATED = re.compile(r'(<!-- generated: cuda calls -->\n).*?(\n<!-- end -->)', re.S)


def check_reference(updates, build):
    """Errors of docs/reference.md, as sentences."""
    path = os.path.join(ROOT, 'docs', 'reference.md')
    text = read('docs', 'reference.md')
    wanted = GENERATED.sub(lambda found: found[1] + cuda_table() + found[2], text)
    if updates and wanted != text:
        write(path, wanted)
        text = wanted
    faults = [] if wanted == text else ['its CUDA calls are not the headers\'; --update writes them anew']
    prototypes, members = declarations()
    shown = squeezed(text)
    faults += ['it lacks, of lib/tutti.h: ' + each for each in prototypes if squeezed(each) not in shown]
    faults += ['it lacks the member `%s` of %s' % (member, name) for name, member in members
               if not re.search(r'## `%s`(?:(?!\n## ).)*`%s`' % (name, member), text, re.S)]
    known = set(re.findall(r'\btutti_\w+', read('lib', 'tutti.h')))
    faults += ['lib/tutti.h has no ' + name for name in sorted(set(re.findall(r'\btutti_\w+', text)) - known)]
    return faults + cuda_exports(build)


OTHERS_SAY = ('ProcessGroupNCCL is only supported with GPUs',)


def check_messages():
    """Errors of docs/troubleshooting.md: messages, in the first column of its tables, that no source has."""
    said = []
    for path in glob.glob(ROOT + '/lib/**/*.[ch]', recursive=True) + glob.glob(ROOT + '/sim/**/*.c',
                                                                               recursive=True):
        said += re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*(?:PRI\w+\s*)?"', '', read(path)))
    said = '\n'.join(said + [read('run')])
    faults = []
    for row in re.findall(r'^\| (.*?) \|', read('docs', 'troubleshooting.md'), re.M):
        for message in re.findall(r'`([^`]* [^`]*)`', row):
            parts = [part.strip(' :') for part in message.split('...')] if message not in OTHERS_SAY else []
            faults += ['no source says `%s`, of: %s' % (part, row) for part in parts if part not in said]
    return faults


def check_rest(updates, build):
    faults = ['docs/reference.md: ' + fault for fault in check_reference(updates, build)]
    faults += ['docs/troubleshooting.md: ' + fault for fault in check_messages()]
    means = subprocess.run([sys.executable, os.path.join(ROOT, 'bench/means.py'), '--check'], text=True,
                           stdout=subprocess.PIPE)
    faults += means.stdout.splitlines()
    for line in faults:
        print('not ok - ' + line)
    if not faults:
        print('ok - docs/reference.md has what headers and library have')
        print('ok - docs/troubleshooting.md quotes messages of the sources')
        print('ok - bench/README.md has what bench/means.py prints')
    return not faults


# For developers; its diagrams are updated by hand.
APART = ('lib/README.md',)


def documents():
    command = ['git', '-C', ROOT, 'ls-files', '--cached', '--others', '--exclude-standard', '*.md']
    listed = subprocess.run(command, text=True, capture_output=True).stdout.split()
    found = listed or [os.path.relpath(path, ROOT) for path in glob.glob(ROOT + '/**/*.md', recursive=True)]
    return sorted(path for path in found if path not in APART and not path.startswith('build'))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--update', action='store_true')
    parser.add_argument('--build', default=os.environ.get('BUILD') or os.path.join(ROOT, 'build'))
    parser.add_argument('documents', nargs='*')
    asked = parser.parse_args()
    good = True
    for path in asked.documents or documents():
        document = Document(path, os.path.abspath(asked.build))
        document.run(asked.update)
        document.check_links()
        good = good and document.counts[1] == 0
    if not asked.documents:
        good = check_rest(asked.update, os.path.abspath(asked.build)) and good
    return 0 if good else 1


if __name__ == '__main__':
    sys.exit(main())
