#!/usr/bin/env python3
"""What `tutti sim` says beside what NCCL took on four H200 over NVLink: microseconds by collective and size, and
the geometric mean of the ratios, each at least 1. Costs were fitted to all_reduce alone. BUILD names another
build."""
import json
import math
import os
import subprocess

TUTTI = os.environ.get('BUILD', os.path.join(os.path.dirname(__file__), '..', 'build')) + '/bin/tutti'
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
# NCCL 2.28, nccl-tests, out of place, plain buffers, float.
TIMES_US = {
    'all_reduce': {8: 8.6, 512: 10.3, 32 * KI: 11.7, 128 * KI: 12.0, 256 * KI: 12.9, 512 * KI: 15.5, 2 * MI: 30.5,
                   8 * MI: 61.7, 16 * MI: 101, 32 * MI: 173, 128 * MI: 612, 512 * MI: 2306, GI: 4528,
                   2 * GI: 8969},
    'all_gather': {KI: 7.9}, 'reduce_scatter': {KI: 8.6}, 'broadcast': {KI: 8.0}, 'reduce': {},
    'alltoall': {KI: 7.5}, 'sendrecv': {KI: 7.0}}
# The same in GB/s of bus bandwidth, of 4 and 64 MiB and 1 GiB; with the factor to it.
BUS_GBPS = {
    'all_gather': (0.75, 84.5, 268, 328), 'reduce_scatter': (0.75, 88.5, 259, 326), 'broadcast': (1, 149, 322, 360),
    'reduce': (1, 163, 332, 365), 'alltoall': (0.75, 126, 269, 336), 'sendrecv': (1, 100, 158, 360)}


def simulated(collective, size):
    """Its row of JSON."""
    command = [TUTTI, 'sim', collective, '-b', str(size), '-e', str(size), '--gpus', '4', '--machine', 'dgx-h200',
               '--json']
    return json.loads(subprocess.check_output(command))[0]


def mean(ratios):
    """The geometric mean's distance from 1, in per cent."""
    return 100 * (math.exp(sum(map(math.log, ratios)) / len(ratios)) - 1)


def compare(collective, times):
    """Prints a line a size; the ratios."""
    ratios = []
    for size, measured_us in times.items():
        row = simulated(collective, size)
        ratio = row['time_us'] / measured_us
        ratios.append(max(ratio, 1 / ratio))
        print('%-14s %10d  measured %8.1f us  simulated %8.1f us  %+6.1f %%  %s %s' % (
            collective, size, measured_us, row['time_us'], 100 * (ratio - 1), row['algo'], row['proto']))
    return ratios


def main():
    """All collectives, then their means."""
    found = {}
    for collective, times in TIMES_US.items():
        if collective in BUS_GBPS:
            factor, *speeds = BUS_GBPS[collective]
            times.update({size: size * factor / gbps / 1e3 for size, gbps in zip((4 * MI, 64 * MI, GI), speeds)})
        found[collective] = compare(collective, times)
    for collective, ratios in found.items():
        print('%-14s %5.1f %%' % (collective, mean(ratios)))
    print('%-14s %5.1f %%' % ('all', mean([ratio for ratios in found.values() for ratio in ratios])))


main()
