#!/usr/bin/env python3
"""kernel_code.py: the machine code of the GPU's kernels in figures, to compare two states of the sources.

    bench/kernel_code.py [--arch sm_90] [--nvdisasm PATH] SOURCES [SOURCES]

SOURCES is a checkout of this repository. Compiles each of lib/kernels/kernel_*.cu with nvcc, and prints a row
a kernel: registers a thread, bytes of stack, bytes of spilled registers (stores and loads), instructions in
all, and instructions from the wait for the previous kernel (griddepcontrol.wait) to the last store, in the
order of the code. With two checkouts the second one's figures follow, and the change of the last column in
percent. Needs nvcc, and nvdisasm of the same toolkit. Takes about a minute for a checkout."""
import argparse
import os
import re
import subprocess
import sys
import tempfile


def compile_kernel(checkout, source, arch, folder):
    """Compiles to a cubin; returns its path and what ptxas said."""
    out = os.path.join(folder, os.path.basename(source) + '.cubin')
    command = ['nvcc', '-cubin', '-arch=' + arch, '-O3', '-std=c++17', '-Xptxas', '-v', '-I',
               os.path.join(checkout, 'lib'), '-I', os.path.join(checkout, 'lib', 'kernels'), '-o', out, source]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    if done.returncode != 0:
        sys.exit(f'{source}: nvcc failed:\n{done.stdout}')
    return out, done.stdout


def resources(said):
    """Function name -> (registers, stack, spill stores, spill loads), from ptxas."""
    found = {}
    name = None
    for line in said.splitlines():
        entry = re.search(r"Compiling entry function '(\w+)'", line)
        name = entry.group(1) if entry else name
        stack = re.search(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', line)
        if stack and name:
            found[name] = [0] + [int(number) for number in stack.groups()]
        used = re.search(r'Used (\d+) registers', line)
        if used and name in found:
            found[name][0] = int(used.group(1))
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
    """Instructions from the first wait for the previous kernel to the last store."""
    waits = [i for i, name in enumerate(names) if name.startswith('ACQBULK')]
    stores = [i for i, name in enumerate(names) if re.match(r'ST(G|\.|$)', name)]
    return stores[-1] - waits[0] if waits and stores else len(names)


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
                rows[name] = used + [len(code.get(name, [])), awaited(code.get(name, []))]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arch', default='sm_90')
    parser.add_argument('--nvdisasm', default='nvdisasm')
    parser.add_argument('sources', nargs='+')
    arguments = parser.parse_args()
    tables = [measure(path, arguments.arch, arguments.nvdisasm) for path in arguments.sources[:2]]
    print(f'{arguments.arch}: registers, stack, spill stores, spill loads, instructions, after the wait')
    for name in sorted(set().union(*tables)):
        cells = ['  '.join(f'{number:6d}' for number in table.get(name, [0] * 6)) for table in tables]
        change = ''
        if len(tables) == 2 and all(name in table for table in tables):
            change = f'  {100 * (tables[1][name][5] / max(1, tables[0][name][5]) - 1):+6.1f} %'
        print(f'{name:34s} {" | ".join(cells)}{change}')


if __name__ == '__main__':
    main()
