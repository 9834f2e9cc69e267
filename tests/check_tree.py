#!/usr/bin/env python3
"""The tidy check: prints file:line of each violation of the source rules, and the rule.

    python3 tests/check_tree.py [--self-test | --words] [ROOT]

Rules: which folder may include which (ARROWS), which calls only lib/base and lib/backends may make (CALLS),
functions of at most 70 lines, lines of at most 110 columns, no tabs, no blanks at a line's end; each
setting of params.def is read by some source, each name of params_accepted.def by none; no word of
tests/words.tsv, which has the field's word for each. --words prints that table with the number of uses left.
--self-test checks that each rule can fail. The exit status is 0 if there is no violation."""
import os
import re
import sys

COLUMNS, FUNCTION_LINES = 110, 70

# folder of the includer; folders or files that it may include; system headers that it may include, or * for
# any. `public` is nccl.h, nccl_device.h and tutti.h. A file may always include what stands in its own folder.
# First match wins.
PURE = 'assert.h stdbool.h stddef.h stdint.h'  # assert.h for static_assert; assert() is in CALLS
LIBC = ' ctype.h errno.h inttypes.h limits.h math.h stdarg.h stdatomic.h stdio.h stdlib.h string.h strings.h'
CUDA = ' cuda_fp16.h cuda_bf16.h cuda_fp8.h cuda_runtime.h'
BELOW_CORE = (' lib/backends/backend.h lib/backends/explainer.h lib/backends/net.h lib/base/ lib/trace/ '
              'lib/explain/ lib/schedule/ lib/kernels/kernels.h public')
ARROWS = (
    ('lib/schedule/', '', PURE),
    ('lib/protocol/', 'lib/schedule/ prim_impl.h', PURE),
    ('lib/kernels/', 'lib/schedule/ lib/protocol/ prim_impl.h public',
     PURE + CUDA + ' float.h limits.h math.h string.h immintrin.h'),
    ('lib/base/', 'public', '*'),
    ('lib/trace/', 'lib/base/ lib/schedule/ public', '*'),
    ('lib/explain/', 'lib/base/ lib/trace/ lib/schedule/ public', '*'),
    ('lib/backends/backend.h', 'lib/base/ lib/schedule/ public', PURE),
    ('lib/backends/net.h', 'lib/base/ public', PURE),
    ('lib/backends/explainer.', 'lib/backends/explainer.h public', PURE),
    ('lib/backends/fault.', 'lib/backends/fault.h lib/base/hash.h', PURE),
    ('lib/backends/net_abi.h', 'public', PURE),
    # of the emulator: what all of its devices share, the CUDA runtime over it, then the backend over both
    ('lib/backends/emu/world', 'lib/backends/emu/world.h lib/backends/emu/world_impl.h lib/base/', '*'),
    ('lib/backends/emu/arena', 'lib/backends/emu/arena.h lib/base/', '*'),
    ('lib/backends/emu/cudart/', 'lib/backends/emu/world.h lib/backends/emu/world_impl.h '
     'lib/backends/emu/arena.h lib/base/', '*'),
    ('lib/backends/',
     'lib/backends/backend.h lib/backends/net.h lib/backends/net_abi.h lib/backends/net_ll.h '
     'lib/backends/first_step.h lib/backends/fault.h lib/backends/explainer.h lib/base/ '
     'lib/trace/ lib/kernels/ lib/protocol/ lib/schedule/ public', '*'),
    # folders of lib/core, from the lowest layer to the highest; a folder may include those above it in this
    # list that it names
    ('lib/core/topology/', BELOW_CORE, PURE + LIBC + ' expat.h'),
    ('lib/core/custom/', BELOW_CORE, PURE + LIBC),
    ('lib/core/plugins/', BELOW_CORE, PURE + LIBC),
    ('lib/core/plan/', 'lib/core/topology/ lib/core/custom/ lib/core/plugins/' + BELOW_CORE, PURE + LIBC),
    ('lib/core/settings/', 'lib/core/plan/ lib/core/plugins/' + BELOW_CORE, PURE + LIBC),
    ('lib/core/proxy/', 'lib/core/topology/ lib/core/plan/' + BELOW_CORE, PURE + LIBC),
    ('lib/core/bootstrap/', BELOW_CORE, PURE + LIBC),
    ('lib/core/comm/', 'lib/core/api.h lib/core/topology/ lib/core/custom/ lib/core/plugins/ lib/core/plan/ '
     'lib/core/settings/' + BELOW_CORE, PURE + LIBC),
    ('lib/core/remote/', 'lib/core/topology/ lib/core/plan/ lib/core/settings/ lib/core/proxy/ '
     'lib/core/bootstrap/ lib/core/comm/' + BELOW_CORE, PURE + LIBC),
    ('lib/core/stall/', 'lib/core/plan/ lib/core/proxy/ lib/core/bootstrap/ lib/core/comm/ lib/core/remote/' +
     BELOW_CORE, PURE + LIBC),
    ('lib/core/rendezvous/', 'lib/core/topology/ lib/core/plan/ lib/core/settings/ lib/core/bootstrap/ '
     'lib/core/comm/ lib/core/remote/ lib/core/stall/stall.h' + BELOW_CORE, PURE + LIBC),
    ('lib/core/', 'lib/core/' + BELOW_CORE, PURE + LIBC),
    ('lib/audit/', '', '*'),
    ('lib/', 'public', PURE + CUDA + ' cuda/atomic limits.h'),
    # the checker binds the device seam: with symbols in place of data
    ('sim/check/',
     'lib/core/plan/ lib/core/topology/ lib/core/custom/ lib/core/settings/ lib/backends/backend.h sim/ '
     'lib/base/ lib/schedule/ lib/protocol/ prim_impl.h public', '*'),
    # lanes without data: what runs them keeps times or counts
    ('sim/steps/',
     'lib/core/plan/ sim/steps/ lib/base/ lib/schedule/ lib/protocol/ prim_impl.h public', '*'),
    ('sim/',
     'lib/core/plan/ lib/core/topology/ lib/core/custom/ lib/core/settings/ lib/core/stall/survey.h '
     'lib/backends/backend.h lib/backends/net.h lib/backends/emu/ sim/ lib/trace/ lib/explain/ lib/base/ '
     'lib/schedule/ lib/kernels/kernels.h lib/kernels/launch_limits.h public', '*'),
    ('examples/', 'public', '*'),
    ('tests/simt/', 'tests/ lib/ sim/ public', '*'),
    ('tests/', 'lib/ sim/ tests/simt/kernels.h public', '*'),
)

# folders; folders excepted; calls that are forbidden there; where they belong
MEMORY = 'malloc calloc realloc free strdup strndup aligned_alloc posix_memalign'
WORLD = ('getenv setenv clock_gettime gettimeofday time clock nanosleep usleep sleep rand srand random '
         'srandom rand_r getrandom pthread_\\w+ thrd_\\w+ mtx_\\w+ mmap munmap fork abort exit')
FILES = 'fopen fread fwrite fclose fgets fprintf fputs'
PRINT = 'printf puts putchar vprintf perror'
CALLS = (
    ('lib/', 'lib/base/', MEMORY, 'memory goes through lib/base/os.h'),
    ('lib/', 'lib/base/', 'os_realloc', 'arrays grow through lib/base/array.h'),
    ('sim/', '', 'os_realloc', 'arrays grow through lib/base/array.h'),
    ('lib/', 'lib/base/ lib/backends/', WORLD, 'clock, threads and environment come from lib/base/os.h'),
    ('lib/', 'lib/base/ lib/backends/ lib/trace/', FILES, 'files: lib/base, the backends, lib/trace'),
    ('lib/', '', PRINT, 'the library prints through lib/base/log.h'),
    ('sim/', '', MEMORY, 'memory goes through lib/base/os.h'),
    ('sim/', '', 'getenv clock_gettime clock usleep nanosleep sleep rand srand random pthread_\\w+ fork',
     'clock, threads and environment come from lib/base/os.h'),
    ('lib/schedule/', '', 'assert', 'shared with the GPU: static_assert only'),
    ('lib/protocol/', '', 'assert', 'shared with the GPU: static_assert only'),
)

SOURCE_FOLDERS = ('lib', 'sim', 'tests', 'examples', 'python')
C_SUFFIXES = ('.c', '.h', '.cu', '.cuh', '.def')
TEXT_SUFFIXES = C_SUFFIXES + ('.py', '.sh', '.map')
TEXT_NAMES = ('SConscript', 'SConstruct', 'run')
PUBLIC = ('lib/nccl.h', 'lib/nccl_device.h', 'lib/tutti.h')


def source_files(root):
    found = [name for name in TEXT_NAMES if os.path.isfile(os.path.join(root, name))]
    for top in SOURCE_FOLDERS:
        for folder, folders, names in os.walk(os.path.join(root, top)):
            folders[:] = sorted(name for name in folders if name not in ('golden', '__pycache__'))
            found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names)
                      if name.endswith(TEXT_SUFFIXES) or name in TEXT_NAMES]
    return found


def blank(match):
    return re.sub(r'[^\n]', ' ', match.group(0))


def without_comments(text):
    """The text with comments and string contents blanked, at the same lines and columns."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, blank, text, flags=re.S)


def includes_of(text):
    for number, line in enumerate(text.split('\n'), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1) == '<', match.group(2)


def resolve(root, path, name):
    """The file that an include of `name` in `path` finds; the name itself if the file is not in the tree."""
    for folder in (os.path.dirname(path), 'lib', 'sim', 'tests'):
        candidate = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return name


def check_arrow(root, path, angled, name):
    """The rule that this include breaks, or None."""
    folder, allowed, system = next(row for row in ARROWS if path.startswith(row[0]))
    target = resolve(root, path, name)
    if target in PUBLIC:
        return None if 'public' in allowed.split() else folder + ' includes no public header'
    if not os.path.isfile(os.path.join(root, target)) and name != 'prim_impl.h':
        good = system == '*' or name in system.split()
        return None if good else '%s may include of the system: %s' % (folder, system)
    own = os.path.dirname(path) + '/'
    if target.startswith(own) and folder != 'lib/':
        return None
    if any(target.startswith(place) for place in allowed.split() if place != 'public'):
        return None
    return '%s may include its own folder, %s' % (folder, allowed or 'nothing else of the tree')


def check_includes(root, path, text):
    for number, angled, name in includes_of(text):
        rule = check_arrow(root, path, angled, name)
        if rule:
            yield number, 'includes %s: %s' % (name, rule)


def check_calls(path, code):
    for folder, left_out, calls, rule in CALLS:
        if not path.startswith(folder) or any(path.startswith(place) for place in left_out.split()):
            continue
        pattern = r'(?<![\w.>])(%s)\s*\(' % '|'.join(calls.split())
        for number, line in enumerate(code.split('\n'), 1):
            match = re.search(pattern, line)
            if match and not line.lstrip().startswith('#'):
                yield number, 'calls %s: %s' % (match.group(1), rule)


# What schedule/ and protocol/ alone compute, by the names that such arithmetic uses: a rank's shard and a
# link's block, the slot of a step, the counters between operations, the flag of a line and when it wraps.
SEAM = (('shards', r'\bshards?\b|\w*shard_\w*'),
        ('the offset of a link in a step', r'(?:->|\.)(?:stride|end_offset)\b'),
        ('the slot of a step', r'%\s*\(?\s*(?:FIFO_SLOTS_MAX|[\w.>-]*\bslots)\b'),
        ('saved counters', r'(?:->|\.)(?:recv_step|send_step|recv_line|send_line)\b'),
        ('flags of lines', r'<<\s*\(?[\w.>-]*flag_bits\b|(?:->|\.)line\s*(?:>>|/|%)'))


def check_seam(path, code):
    """Kernels move data; where and when, they ask schedule/ and protocol/."""
    if not path.startswith('lib/kernels/') or path.endswith('.c'):
        return
    for number, line in enumerate(code.split('\n'), 1):
        for what, pattern in SEAM:
            if re.search(pattern, line):
                yield number, 'a kernel computes %s: call lib/schedule or lib/protocol for it' % what


def functions_of(code):
    """First and last line of every body at the top level that follows a parameter list."""
    code = re.sub(r'^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', blank, code, flags=re.M)
    code = re.sub(r'\bextern\s*\{', blank, code)
    depth, head, first = 0, '', 0
    for number, line in enumerate(code.split('\n'), 1):
        for letter in line:
            if letter == '{':
                depth += 1
                first = number if depth == 1 else first
            elif letter == '}':
                depth = max(depth - 1, 0)
                if depth == 0 and '(' in head and '=' not in head:
                    yield first - head.strip().count('\n'), number
                head = '' if depth == 0 else head
            elif depth == 0:
                head = '' if letter == ';' else head + letter
        head += '\n' if depth == 0 else ''


def check_lengths(path, text, code):
    for number, line in enumerate(text.split('\n'), 1):
        if len(line) > COLUMNS:
            yield number, '%d columns: at most %d' % (len(line), COLUMNS)
        if '\t' in line or line != line.rstrip():
            yield number, 'a tab, or a blank at the end'
    if path.endswith(C_SUFFIXES):
        for first, last in functions_of(code):
            if last - first + 1 > FUNCTION_LINES:
                yield first, 'a function of %d lines: at most %d' % (last - first + 1, FUNCTION_LINES)


def words_of(root):
    """Rows of tests/words.tsv: the pattern, as compiled and as written, and the word to use."""
    with open(os.path.join(root, 'tests', 'words.tsv'), encoding='utf-8') as file:
        rows = [line.rstrip('\n').split('\t') for line in file if line.strip() and not line.startswith('#')]
    return [(re.compile(pattern), pattern, word) for pattern, word in rows]


def worded_files(root):
    """Sources, scripts and documents; not the measurements in results/, which quote old output."""
    found = [path for path in source_files(root) if path not in ('lib/nccl.h', 'tests/check_tree.py')]
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders
                            if not name.startswith(('.', 'build')) and name != 'results')
        found += [os.path.relpath(os.path.join(folder, name), root) for name in sorted(names)
                  if name.endswith('.md') and name != 'tried.md']
    return found


def word_uses(root, words):
    """(path, line, index of the word's row) of each use of an old word."""
    for path in worded_files(root):
        with open(os.path.join(root, path), encoding='utf-8') as file:
            text = file.read()
        for index, (pattern, _, _) in enumerate(words):
            if not pattern.search(text):
                continue
            for number, line in enumerate(text.split('\n'), 1):
                if pattern.search(line):
                    yield path, number, index


def print_words(root):
    words = words_of(root)
    left = [0] * len(words)
    for _, _, index in word_uses(root, words):
        left[index] += 1
    for count, (_, pattern, word) in zip(left, words):
        print('%d\t%s\t%s' % (count, pattern, word))
    return 1 if any(left) else 0


def check_file(root, path, text):
    code = without_comments(text) if path.endswith(C_SUFFIXES) else text
    faults = list(check_lengths(path, text, code))
    if path.endswith(C_SUFFIXES):
        faults += check_includes(root, path, text)
        faults += check_calls(path, code)
        faults += check_seam(path, code)
    return sorted(faults)


PARAMS, ACCEPTED = 'lib/base/params.def', 'lib/base/params_accepted.def'


def check_params(texts):
    """texts: the tree's texts by path. A setting is read by its number (PARAM_X), or by its name if the code
    reads the environment itself. A setting that no code reads would silently have no effect."""
    code = {path: text for path, text in texts.items() if path.startswith(('lib/', 'sim/'))
            and path.endswith(C_SUFFIXES) and not path.endswith('.def')}
    read = {word for text in code.values() for word in re.findall(r'\bPARAM_\w+', text)}
    read |= {word for path, text in code.items() if path.startswith('lib/')
             for word in re.findall(r'"((?:NCCL|TUTTI)_\w+)"', text)}
    read |= {word for path, text in texts.items() if path.startswith('python/tutti/')
             for word in re.findall(r"'((?:NCCL|TUTTI)_\w+)'", text)}
    for match in re.finditer(r'^PARAM(?:_STR)?\((\w+),\s*"(\w+)"', texts.get(PARAMS, ''), re.M):
        if 'PARAM_' + match.group(1) not in read and match.group(2) not in read:
            yield PARAMS, match, match.group(2) + ': nothing reads it; its place is ' + ACCEPTED
    for match in re.finditer(r'^ACCEPTED\("(\w+)"', texts.get(ACCEPTED, ''), re.M):
        name = match.group(1)
        if name in read or re.search(r'"%s"' % name, texts.get(PARAMS, '')):
            yield ACCEPTED, match, name + ': something reads it; its place is ' + PARAMS


def params_faults(texts):
    return [(path, match.string.count('\n', 0, match.start()) + 1, fault)
            for path, match, fault in check_params(texts)]


# Text that breaks one rule, and the message that must be printed; empty: no message may be printed.
PLANTED = (
    ('lib/schedule/x.h', '#include <string.h>\n', 'lib/schedule/ may include of the system'),
    ('lib/schedule/x.h', '#include "base/os.h"\n', 'nothing else of the tree'),
    ('lib/protocol/x.h', '#include <cuda_runtime.h>\n', 'may include of the system'),
    ('lib/core/x.c', '#include "backends/emu/world.h"\n', 'lib/core/ may include'),
    ('lib/core/plan/plan.c', '#include "core/comm/comm.h"\n', 'lib/core/plan/ may include'),
    ('lib/core/settings/settings.c', '#include "core/comm/comm.h"\n', 'lib/core/settings/ may include'),
    ('lib/kernels/block.h', '#include "backends/cuda/device.h"\n', 'lib/kernels/ may include'),
    ('lib/backends/emu/cudart/x.c', '#include "backends/emu/block.h"\n', 'lib/backends/emu/cudart/ may'),
    ('lib/kernels/x.h', 'x = shard_begin(r);\n', 'a kernel computes shards'),
    ('lib/kernels/x.h', 'x = step->stride * k;\n', 'a kernel computes the offset'),
    ('lib/kernels/x.cu', 'x = step % FIFO_SLOTS_MAX;\n', 'a kernel computes the slot'),
    ('lib/kernels/x.h', 'x = link->receiver->recv_step + 1;\n', 'a kernel computes saved counters'),
    ('lib/kernels/x.h', 'x = (1u << limits->flag_bits) - 1;\n', 'a kernel computes flags'),
    ('lib/kernels/x.h', 'x = it->link.line / slots;\n', 'a kernel computes flags'),
    ('lib/kernels/x.h', 'static_assert(offsetof(struct fifo_sender, send_line) == 8);\n', ''),
    ('lib/core/x.c', '#include <pthread.h>\n', 'may include of the system'),
    ('lib/core/x.c', 'void f(void) { free(p); }\n', 'calls free'),
    ('lib/core/x.c', 'void f(void) { t = time(0); }\n', 'calls time'),
    ('sim/x.c', 'void f(void) { p = os_realloc(p, 2); }\n', 'calls os_realloc'),
    ('lib/backends/emu/x.c', 'void f(void) { p = malloc(1); }\n', 'calls malloc'),
    ('lib/backends/emu/x.c', 'void f(void) { printf(p); }\n', 'calls printf'),
    ('lib/core/x.c', 'void f(void) {\n' + '  g();\n' * 69 + '}\n', 'a function of 71 lines'),
    ('sim/x.c', '/' * 111 + '\n', '111 columns'),
    ('sim/x.c', '\tint x;\n', 'a tab'),
    ('lib/core/x.c', '/* free(p) */ void f(void) { os_free(p); table.free(p); log("free(p)"); }\n', ''),
    ('lib/core/x.c', 'int table[] = {\n' + '  1,\n' * 90 + '};\n', ''),
    ('lib/base/x.c', '#include <time.h>\nvoid f(void) { free(p); time(0); }\n', ''),
)


def self_test(root):
    wrong = 0
    for path, text, answer in PLANTED:
        said = '; '.join(fault for _, fault in check_file(root, path, text))
        if (answer not in said) or (not answer and said):
            print('self-test: %r in %s: expected "%s", said "%s"' % (text[:60], path, answer, said))
            wrong += 1
    for text, refused in (('struct seat *seat;', True), ('a greeting', True), ('lines_carry(1)', True),
                          ('so far, again', False), ('a third-party library', False)):
        if any(pattern.search(text) for pattern, _, _ in words_of(root)) != refused:
            print('self-test: %r: expected %s' % (text, 'a refusal' if refused else 'nothing'))
            wrong += 1
    for code, answer in (('int f(void) { return param_int(PARAM_A); }', ''),
                         ('int f(void) { return os_env("NCCL_A"); }', ''),
                         ('int f(void) { return param_int(PARAM_AB); }', 'NCCL_A: nothing reads it'),
                         ('int f(void) { g(PARAM_A, "NCCL_B"); }', 'NCCL_B: something reads it')):
        said = '; '.join(fault for _, _, fault in params_faults(
            {PARAMS: 'PARAM(A, "NCCL_A", INT, 0, 0, 1,\n      "x")\n', ACCEPTED: 'ACCEPTED("NCCL_B", "y")\n',
             'lib/core/x.c': code}))
        if (answer not in said) or (not answer and said):
            print('self-test: %r: expected "%s", said "%s"' % (code, answer, said))
            wrong += 1
    return wrong


def main(arguments):
    testing = '--self-test' in arguments
    places = [argument for argument in arguments if not argument.startswith('-')]
    root = places[0] if places else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if testing:
        return 1 if self_test(root) else 0
    if '--words' in arguments:
        return print_words(root)
    texts, faults = {}, []
    for path in source_files(root):
        with open(os.path.join(root, path), encoding='utf-8') as file:
            texts[path] = file.read()
        faults += [(path, number, fault) for number, fault in check_file(root, path, texts[path])]
    faults += params_faults(texts)
    words = words_of(root)
    faults += [(path, number, 'an old word: write %s' % words[index][2])
               for path, number, index in word_uses(root, words)]
    for path, number, fault in faults:
        print('%s:%d: %s' % (path, number, fault))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
