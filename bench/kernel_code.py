#!/usr/bin/env python3
"""kernel_code.py: the machine code of the GPU's kernels in figures, to compare two states of the sources.

    bench/kernel_code.py [--arch sm_90] [--nvdisasm PATH] [--renamed OLD=NEW ...] SOURCES [SOURCES]

SOURCES is a checkout of this repository. Compiles each of lib/kernels/kernel_*.cu with nvcc and the build's
flags, and prints a row a kernel: registers a thread, bytes of stack, bytes of spilled registers (stores and
loads), instructions in all, and instructions from the first wait for the previous kernel
(griddepcontrol.wait) to the last store to global memory, in the order of the code; then the same wait by wait,
because the warps of a block have different parts and each part has its wait. These are instructions in the
code, not those that a thread executes. With two checkouts the second one's figures follow, and the change of
the instructions after the wait in percent. --renamed compares kernel OLD of the first checkout with NEW of the
second, for example exchange_ll=direct_ll; it may be given several times, and one OLD may have several NEW
(then also OLD=OLD if NEW has it still). Needs nvcc, and nvdisasm of the same toolkit. Takes several minutes
for a checkout."""
import argparse
import os
import re
import subprocess
import sys
import tempfile


def compile_kernel(checkout, source, arch, folder):
    """Compiles to a cubin, with the flags of lib/kernels/SConscript; returns its path and what ptxas said.
    Older checkouts have prim_impl.h in lib/backends/cuda."""
    out = os.path.join(folder, os.path.basename(source) + '.cubin')
    command = ['nvcc', '-cubin', '-arch=' + arch, '-O3', '-std=c++17', '--fmad=false', '-Xptxas', '-v', '-o', out]
    for path in ('lib', 'lib/kernels', 'lib/backends/cuda'):
        command += ['-I', os.path.join(checkout, path)]
    command.append(source)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        sys.exit(f'{source}: nvcc failed:\n{done.stdout}')
    return out, done.stdout


def resources(said):
    """Kernel name -> (registers, stack, spill stores, spill loads), from ptxas. The functions that a kernel
    calls follow it, with figures of their own: their stacks and spills are added, because a call needs both."""
    found = {}
    kernel = None
    for line in said.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        if entry:
            kernel = entry.group(1)
            found[kernel] = [0, 0, 0, 0]
        stack = re.search(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', line)
        if stack and kernel:
            found[kernel][1:] = [sum(pair) for pair in zip(found[kernel][1:], map(int, stack.groups()))]
        used = re.search(r'Used (\d+) registers', line)
        if used and kernel:
            found[kernel][0] = int(used.group(1))
    return found


def instructions(nvdisasm, cubin):
    """Function name -> list of its instructions' names, in order."""
    text = subprocess.run([nvdisasm, '-c', cubin], stdout=subprocess.PIPE, universal_newlines=True,
                          check=True).stdout
    functions = {}
    name = None
    for line in text.splitlines():
        begin = re.match(r'\.text\.(\w+):', line.strip())
        name = begin.group(1) if begin else name
        code = re.match(r'\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)', line)
        if code and name:
            functions.setdefault(name, []).append(code.group(1))
    return functions


def awaited(names):
    """Instructions from each wait for the previous kernel to the next wait; from the last one, to the last store
    to global memory, by a thread or by a copy engine. Waits after that store do not count.
    Empty if the kernel does not wait."""
    stores = [i for i, name in enumerate(names) if re.match(r'ST(G|\.|$)|UBLKCP\.G\.S', name)]
    last = stores[-1] if stores else 0
    ends = [i for i, name in enumerate(names) if name.startswith('ACQBULK') and i < last] + [last]
    return [end - begin for begin, end in zip(ends, ends[1:])]


def measure(checkout, arch, nvdisasm):
    rows = {}
    kernels = os.path.join(checkout, 'lib', 'kernels')
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(os.listdir(kernels)):
            if not re.match(r'kernel_\w+\.cu$', source):
                continue
            cubin, said = compile_kernel(checkout, os.path.join(kernels, source), arch, folder)
            code = instructions(nvdisasm, cubin)
            for name, used in resources(said).items():
                parts = awaited(code.get(name, []))
                rows[name] = used + [len(code.get(name, [])), sum(parts), '+'.join(map(str, parts))]
    return rows


def pairs(tables, renamed):
    """Rows of two tables: (old name, new name); None where a table has no such kernel."""
    old_of = {'tutti_kernel_' + new: 'tutti_kernel_' + old for old, new in renamed}
    used = set(old_of.values())
    rows = [(old_of.get(name, name if name in tables[0] and name not in used else None), name)
            for name in sorted(tables[1])]
    matched = {old for old, _ in rows}
    return rows + [(name, None) for name in sorted(tables[0]) if name not in matched]


def printed(figures):
    if not figures:
        return f'{"-":>46s}  {"":22s}'
    return '  '.join(f'{number:6d}' for number in figures[:6]) + f'  {figures[6]:22s}'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='sm_90')
    parser.add_argument('--nvdisasm', default='nvdisasm')
    parser.add_argument('--renamed', action='append', default=[], type=lambda text: text.split('=', 1))
    parser.add_argument('sources', nargs='+')
    arguments = parser.parse_args()
    tables = [measure(path, arguments.arch, arguments.nvdisasm) for path in arguments.sources[:2]]
    print(f'{arguments.arch}: registers, stack, spill stores, spill loads, instructions, after the wait, wait by wait')
    if len(tables) == 1:
        for name in sorted(tables[0]):
            print(f'{name:34s} {printed(tables[0][name])}')
        return
    for old, new in pairs(tables, arguments.renamed):
        before, after = tables[0].get(old), tables[1].get(new)
        change = f'  {100 * (after[5] / max(1, before[5]) - 1):+6.1f} %' if before and after else ''
        name = new or old
        was = f'  (was {old})' if old and new and old != new else ''
        print(f'{name:34s} {printed(before)} | {printed(after)}{change}{was}')


if __name__ == '__main__':
    main()
