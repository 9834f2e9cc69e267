#!/usr/bin/env python3
"""What `tutti sim` says beside what four H200 over NVLink took: microseconds by collective and size, and the
geometric mean of the ratios, each at least 1; of a call by itself, and of one of 20 behind each other, as they were measured:
a rank that is done begins the next one. Three comparisons: NCCL by the protocol that its published tuning model picks (a plan is
the library's own all the same); NCCL by what this library would pick; this library, as it was measured on GPUs, with --kernels. Costs
were fitted to NCCL's all_reduce alone, and those of the library's kernels to its own. BUILD names another build."""
import collections
import json
import math
import os
import re
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TUTTI = os.environ.get('BUILD', os.path.join(HERE, '..', 'build')) + '/bin/tutti'
MEASURED = os.path.join(HERE, 'results', 'exchanges-2026-11-22.txt')
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
RANKS = 4
ROW = 20  # calls behind each other
# NCCL 2.28, nccl-tests, one process, out of place, plain buffers, float.
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
# NCCL's model of a ring on one node: microseconds to begin and of a hop over NVLink, GB/s of 18 links.
BASE_US = {'LL': 6.6, 'LL128': 14, 'Simple': 8.4}
HOP_US = {'LL': 0.6, 'LL128': 1.9, 'Simple': 3.4}
CHAIN_HOP_US = {'LL': 0.6, 'LL128': 1.9, 'Simple': 4.0}
BUS = {'LL': 141, 'LL128': 0.92 * 360, 'Simple': 360}


def nccl_proto(collective, size):
    """The protocol whose time by that model is least; None for messages."""
    steps = {'all_reduce': 2 * RANKS - 2, 'all_gather': RANKS - 1, 'reduce_scatter': RANKS - 1,
             'broadcast': RANKS, 'reduce': RANKS}.get(collective)
    if steps is None:
        return None
    hops = CHAIN_HOP_US if collective in ('broadcast', 'reduce') else HOP_US
    return min(BUS, key=lambda proto: BASE_US[proto] + steps * hops[proto] +
               size * steps / (RANKS * BUS[proto] * 1e3))


def own_proto(_collective, _size):
    """Planning chooses."""
    return None


def kernels(_collective, _size):
    """Planning chooses, as of this library's kernels."""
    return '--kernels'


def flags(proto):
    """Of both kinds of run."""
    if proto == '--kernels':
        return [proto]
    return ['--algo', 'ring', '--proto', proto] if proto else []


def run(arguments):
    """What the simulator says, as JSON."""
    return json.loads(subprocess.check_output([TUTTI, 'sim'] + arguments + ['--machine', 'dgx-h200', '--json']))


def simulated(collective, size, proto):
    """The row of one call by itself."""
    return run([collective, '-b', str(size), '-e', str(size), '--gpus', str(RANKS)] + flags(proto))[0]


def in_a_row(collective, size, proto):
    """Microseconds of one call of many."""
    call = '%s %d float' % (collective, size)
    if collective == 'sendrecv':
        call = '\n'.join(['group'] + ['message %d from %d to %d' % (size, rank, (rank + 1) % RANKS)
                                      for rank in range(RANKS)] + ['end'])
    with tempfile.NamedTemporaryFile('w') as file:
        file.write('ranks %d\nrepeat %d\n%s\nend\n' % (RANKS, ROW, call))
        file.flush()
        return run(['--workload', file.name, '--gpus', str(RANKS)] + flags(proto))['time_us'] / ROW


def mean(ratios):
    """The geometric mean's distance from 1, in per cent."""
    return 100 * (math.exp(sum(max(math.log(ratio), -math.log(ratio)) for ratio in ratios) / len(ratios)) - 1)


def compare(collective, times, pick):
    """Prints a line a size; the ratios, of a call by itself and of one of many."""
    alone, rows = [], []
    for size, measured_us in times.items():
        proto = pick(collective, size)
        row = simulated(collective, size, proto)
        many_us = in_a_row(collective, size, proto)
        alone.append(row['time_us'] / measured_us)
        rows.append(many_us / measured_us)
        print('%-14s %10d  measured %8.1f us  simulated %8.1f us  %+6.1f %%  in a row %8.1f us  %+6.1f %%  %s %s' % (
            collective, size, measured_us, row['time_us'], 100 * (alone[-1] - 1), many_us, 100 * (rows[-1] - 1),
            row['algo'], row['proto']))
    return alone, rows


def table(title, measured, pick):
    """One comparison, then its means."""
    print('\n' + title)
    found = {collective: compare(collective, times, pick) for collective, times in measured.items()}
    everything = [[ratio for ratios in found.values() for ratio in ratios[which]] for which in (0, 1)]
    for collective, (alone, rows) in list(found.items()) + [('all', everything)]:
        print('%-14s %5.1f %%  in a row %5.1f %%' % (collective, mean(alone), mean(rows)))


def ours():
    """What this library took, by collective and size; out of place or in place, whichever was better."""
    times = collections.defaultdict(dict)
    with open(MEASURED) as lines:
        for name, entries in re.findall(r'^tutti-(\w+) wrong 0 +(.*)', lines.read(), re.M):
            for size, both in (entry.split(':') for entry in entries.split() if name != 'graph'):
                times[name][int(size)] = min(map(float, both.split('/')))
    return times


def main():
    """All comparisons."""
    for collective, (factor, *speeds) in BUS_GBPS.items():
        TIMES_US[collective].update(
            {size: size * factor / gbps / 1e3 for size, gbps in zip((4 * MI, 64 * MI, GI), speeds)})
    table('NCCL, with the protocols of its published model', TIMES_US, nccl_proto)
    table('NCCL, with the protocols that planning chooses here', TIMES_US, own_proto)
    table('tutti on GPUs, with the plans and costs of its kernels', ours(), kernels)


main()
