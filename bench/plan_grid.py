#!/usr/bin/env python3
"""Is the planner's choice between hosts the simulator's best?

    python3 bench/plan_grid.py [--tutti FILE] [--nodes 2,4,16,128] [--factor N] [--gpus N] [COLLECTIVE...]

For each collective, number of nodes and size (1 KiB to 1 GiB): the option that `tutti sim` plans, its time,
and the least time over all options that networks carry, each forced by --algo and --proto. LL is simulated up
to 1 MiB: it is far from the best beyond, and its slices are many. The exit code is 1 if a choice takes over
10 % longer than the best."""
import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

COLLECTIVES = ('all_reduce', 'all_gather', 'reduce_scatter', 'broadcast', 'reduce')
MOST = 1.10


def simulate(options, collective, nodes, algo=None, proto=None):
    """Rows by size; none if the option cannot carry the collective."""
    command = [options.tutti, 'sim', collective, '-b', '1K', '-e', '1M' if proto == 'LL' else '1G', '-f',
               str(options.factor), '--nodes', str(nodes), '--gpus', str(options.gpus), '--json']
    if algo:
        command += ['--algo', algo, '--proto', proto]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return {row['size']: row for row in json.loads(done.stdout)} if done.returncode == 0 else {}


def compare(options, collective, nodes):
    """(ratio, line) for each size."""
    algos = ('ring', 'tree') if collective == 'all_reduce' else ('ring',)
    forced = {(algo, proto): simulate(options, collective, nodes, algo, proto)
              for algo in algos for proto in ('LL', 'Simple')}
    rows = []
    for size, chosen in sorted(simulate(options, collective, nodes).items()):
        times = {option: by_size[size]['time_us'] for option, by_size in forced.items() if size in by_size}
        if chosen['time_us'] == 0 or not times:
            continue  # less than an element a rank
        best = min(times, key=times.get)
        ratio = chosen['time_us'] / times[best]
        rows.append((ratio, '%-14s %5d %11d  %-4s %-6s %10.2f  %-4s %-6s %10.2f  %5.2f%s' % (
            collective, nodes, size, chosen['algo'], chosen['proto'], chosen['time_us'],
            best[0].capitalize(), best[1], times[best], ratio, '  slower' if ratio > MOST else '')))
    return rows


def main():
    parser = argparse.ArgumentParser(description='the planner against the simulator, between hosts')
    parser.add_argument('collectives', nargs='*', default=COLLECTIVES)
    parser.add_argument('--tutti', default='build/bin/tutti')
    parser.add_argument('--nodes', default='2,4,16,128')
    parser.add_argument('--gpus', type=int, default=8)
    parser.add_argument('--factor', type=int, default=4)
    options = parser.parse_args()
    for name in ('NCCL_ALGO', 'NCCL_PROTO', 'TUTTI_TUNE_FILE', 'TUTTI_EMU'):
        os.environ.pop(name, None)
    cases = [(collective, int(nodes)) for nodes in options.nodes.split(',') for collective in options.collectives]
    print('%-14s %5s %11s  %-11s %10s  %-11s %10s  %5s' % ('collective', 'nodes', 'bytes', 'planned', 'us',
                                                          'best', 'us', 'ratio'))
    ratios = []
    with ThreadPoolExecutor(2) as pool:
        for rows in pool.map(lambda case: compare(options, *case), cases):
            for ratio, line in rows:
                print(line, flush=True)
                ratios.append(ratio)
    slower = sum(ratio > MOST for ratio in ratios)
    print('%d rows; %d are over 10 %% slower than the best; the worst is %.2f times the best' % (
        len(ratios), slower, max(ratios, default=0)))
    return 1 if slower or not ratios else 0


if __name__ == '__main__':
    sys.exit(main())
