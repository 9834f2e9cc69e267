#!/usr/bin/env python3
"""Fits the costs of sim/simulate/cluster_costs.c to NCCL's all_reduce on four H200 over NVLink, protocol by protocol:
goes along one figure at a time, by steps that halve, as long as the sum of the squared logarithms of simulated by
measured gets less; with --kernels those of this library's kernels to its own all_reduce there (one process, a thread a GPU), both
protocols and direct collectives at once, as planning chooses. What a post takes was measured apart (one-way flags: 0.6 us relaxed, of which 0.1 us are the
slice's own here, 1.25 us released) and does not leave that by far. Prints each figure, and each time beside what was measured. BUILD names another build."""
import json
import math
import os
import re
import subprocess
import sys

TUTTI = os.environ.get('BUILD', os.path.join(os.path.dirname(__file__), '..', 'build')) + '/bin/tutti'
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
NAMES = ('launch_us', 'slice_us', 'move_us', 'nvlink_post_us', 'lane_gbps')
ALL = 32
# Microseconds by size and channels. LL up to 2 MiB and LL128 of 4 and 8 MiB: as NCCL's published model picks them.
TIMES_US = {
    'LL': [(8, ALL, 8.65), (32, ALL, 8.9), (128, ALL, 9.74), (512, ALL, 10.1), (2 * KI, ALL, 9.97),
           (8 * KI, ALL, 10.47), (32 * KI, ALL, 11.5), (128 * KI, ALL, 11.9), (256 * KI, ALL, 12.9),
           (512 * KI, ALL, 15.4), (2 * MI, ALL, 30.5)],
    'LL128': [(4 * MI, ALL, 41), (8 * MI, ALL, 61.7)],
    'Simple': [(16 * MI, ALL, 101), (32 * MI, ALL, 173), (128 * MI, ALL, 612), (512 * MI, ALL, 2306),
               (GI, ALL, 4528), (2 * GI, ALL, 8969)]}
# Bus bandwidth in GB/s of 16 and 128 MiB and 1 GiB with at most so many channels.
for channels, speeds in ((4, (89, 98, 98)), (8, (152, 188, 189)), (16, (226, 297, 320))):
    TIMES_US['Simple'] += [(size, channels, 1.5 * size / gbps / 1e3)
                           for size, gbps in zip((16 * MI, 128 * MI, GI), speeds)]
POST_US = {'LL': 0.5, 'LL128': 0.5, 'Simple': 1.25}
BEGIN = {'LL': (6, 0.05, 0.05, 0.5, 5), 'LL128': (6, 1, 1, 0.5, 13), 'Simple': (12, 0.8, 0.5, 1.25, 30)}


OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'results', 'exchanges-2026-11-22.txt')
# A lane's speed in LL does not show in direct collectives, which cut a call into a few KiB a lane: taken for a link's. What is
# stored straight into outputs takes a receiver nothing.
OWN_BEGIN = {'launch_us.LL': 6, 'launch_us.Simple': 6, 'slice_us.LL': 0.05, 'slice_us.Simple': 0.5, 'move_us.LL': 0.05,
             'move_us.Simple': 0.4, 'nvlink_post_us.LL': 0.5, 'nvlink_post_us.Simple': 1, 'lane_gbps.LL': 400,
             'lane_gbps.Simple': 29, 'link_share': 0.95, 'zero_copy': 1}
OWN_FIXED = ('lane_gbps.LL', 'zero_copy')


def simulated(proto, size, channels_most, costs):
    """Microseconds; without a protocol of this library's kernels, as planning chooses."""
    option = (['--algo', 'ring', '--proto', proto] if proto else ['--kernels'])
    command = [TUTTI, 'sim', 'all_reduce', '-b', str(size), '-e', str(size), '-g', '4', '--machine', 'dgx-h200',
               '--json', '--channels', str(channels_most)] + option
    for name, value in costs.items():
        command += ['--cost', '%s=%.6g' % (name, value)]
    return json.loads(subprocess.check_output(command))[0]['time_us']


def off(proto, costs):
    """What the search makes small."""
    apart = [math.log(simulated(proto, size, most, costs) / us) for size, most, us in TIMES_US[proto]]
    posts = [math.log(costs['nvlink_post_us.' + each] / POST_US[each]) / 0.3
             for each in POST_US if 'nvlink_post_us.' + each in costs]
    return sum(value * value for value in apart + posts)


def fit(proto, costs):
    """The search."""
    best, step = off(proto, costs), 0.25
    while step > 0.01:
        moved = False
        for name in costs:
            if not proto and name in OWN_FIXED:
                continue
            for option in (step, -step):
                tried = dict(costs, **{name: costs[name] * math.exp(option)})
                value = off(proto, tried)
                if value < best * (1 - 1e-6):
                    best, costs, moved = value, tried, True
                    break
        step = step if moved else step / 2
    return costs


def told(proto, costs):
    """Each time."""
    for size, most, us in TIMES_US[proto]:
        time_us = simulated(proto, size, most, costs)
        print('  %-6s %10d  %2d channels  measured %8.1f us  simulated %8.1f us  %+5.1f %%' % (
            proto or '', size, most, us, time_us, 100 * (time_us / us - 1)))


def own():
    """This library's kernels; of each size out of place and in place the better one."""
    with open(OWN) as lines:
        rows = re.search(r'^tutti-all_reduce wrong 0 +(.*)', lines.read(), re.M)[1]
    TIMES_US[None] = [(int(size), ALL, min(map(float, times.split('/'))))
                      for size, times in (entry.split(':') for entry in rows.split())]
    costs = fit(None, OWN_BEGIN)
    print(' '.join('%s=%.3g' % row for row in costs.items()))
    told(None, costs)


def main():
    """Simple first: the others take its share of links."""
    if sys.argv[1:] == ['--kernels']:
        own()
        return
    share = {'link_share': 1.03}
    for proto in ('Simple', 'LL128', 'LL'):
        costs = dict(zip([name + '.' + proto for name in NAMES], BEGIN[proto]))
        costs = fit(proto, dict(costs, **share) if proto == 'Simple' else costs)
        share = {'link_share': costs.get('link_share', share['link_share'])}
        print(' '.join('%s=%.3g' % row for row in costs.items()))
        told(proto, dict(costs, **share))


main()
