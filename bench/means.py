#!/usr/bin/env python3
"""Prints the speeds on GPUs that bench/README.md names, from the raw outputs in bench/results/.

    python3 bench/means.py            the tables
    python3 bench/means.py --check    exit status 1 where bench/README.md does not hold them as they are here

A speed is NCCL's time over this library's, at one size, of out-of-place results: above 1 this library is faster.
Where a file holds several turns, the time of a size is the median over turns. The first size of every run is left
out, on both sides and for every operation: it pays for what the first calls set up, and the turns differ there by
a factor of several. `median` and `mean` (geometric) are over the sizes that are left, `worst` is the least of them."""
import math
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, 'results')
ORDER = ('graph', 'all_reduce', 'all_gather', 'reduce_scatter', 'alltoall', 'sendrecv', 'broadcast', 'reduce')
NAMES = {'graph': 'all_reduce in CUDA graphs'}


def lines_of(name):
    with open(os.path.join(RESULTS, name)) as file:
        return file.read().split('\n')


def add(runs, library, operation, sizes):
    """Notes one run: its times by size, without its first size."""
    times = runs.setdefault((library, operation), {})
    for size, time in sizes[1:]:
        times.setdefault(size, []).append(time)


def runs_threads(name, until):
    """Lines as `NCCL-all_reduce wrong 0  1024:55.82/35.72 ...`, up to the line that begins with `until`."""
    runs = {}
    for line in lines_of(name):
        if line.startswith(until):
            break
        found = re.match(r'(NCCL|tutti)-(\w+) wrong 0 +(.*)', line)
        if found:
            sizes = [word.split(':') for word in found[3].split()]
            add(runs, found[1], found[2], [(int(size), float(times.split('/')[0])) for size, times in sizes])
    return runs


def runs_tables(name):
    """nccl-tests' tables, each behind `$ [nccl|tutti] ... OPERATION_perf_mpi ...`."""
    runs, library, operation, rows = {}, None, None, []
    for line in lines_of(name) + ['$ end']:
        row = re.match(r' +(\d+) +\d+ +\w+ +\w+ +-?\d+ +([\d.]+) ', line)
        if row:
            rows.append((int(row[1]), float(row[2])))
        if line.startswith('$ '):
            if rows:
                add(runs, library, operation, rows)
            head = re.match(r'\$ \[(nccl|tutti)\] .*?(\w+)_perf', line)
            library, operation, rows = (head[1].replace('nccl', 'NCCL'), head[2], []) if head else (None, None, [])
    return runs


def size_text(size):
    for unit, name in ((1 << 30, 'GiB'), (1 << 20, 'MiB'), (1 << 10, 'KiB')):
        if size >= unit:
            return '%d %s' % (size // unit, name)
    return '%d B' % size


def row_of(runs, operation):
    theirs, ours = runs.get(('NCCL', operation)), runs.get(('tutti', operation))
    if not theirs or not ours:
        return None
    sizes = sorted(set(theirs) & set(ours))
    speeds = [statistics.median(theirs[size]) / statistics.median(ours[size]) for size in sizes]
    worst = min(range(len(speeds)), key=lambda i: speeds[i])
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    return '| %s | %s to %s | %.2f | %.2f | %.2f at %s |' % (
        NAMES.get(operation, operation), size_text(sizes[0]), size_text(sizes[-1]), statistics.median(speeds), mean,
        speeds[worst], size_text(sizes[worst]))


def table(runs):
    head = ['| operation | sizes | median | mean | worst |', '|---|---|---|---|---|']
    return head + [row for row in (row_of(runs, operation) for operation in ORDER) if row]


def main():
    tables = (('one process, a thread a GPU, 4 x H200', table(runs_threads('exchanges-2026-11-22.txt', '# 2 x'))),
              ('a process a GPU, 2 x H200', table(runs_tables('processes-2-gpu-2026-11-28.txt'))),
              ('a process a GPU, 4 x H200', table(runs_tables('processes-4-gpu-2026-11-28.txt'))))
    if sys.argv[1:] == ['--check']:
        with open(os.path.join(HERE, 'README.md')) as file:
            text = file.read()
        missing = [name for name, rows in tables if '\n'.join(rows) not in text]
        for name in missing:
            print('bench/README.md: the table of `%s` is not what bench/means.py prints' % name)
        return 1 if missing else 0
    for name, rows in tables:
        print('\n'.join(['', name, ''] + rows))
    return 0


if __name__ == '__main__':
    sys.exit(main())
