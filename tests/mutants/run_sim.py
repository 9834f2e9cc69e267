#!/usr/bin/env python3
"""Plants one bug at a time into copies of lib/protocol and proves that the simulator, whose lanes that code
runs, cannot go on and says which lane waits for what.

    python3 tests/mutants/run_sim.py [--build DIR] [NAME...]

Tries all bugs, or those of these names. Each is compiled into the files that bind the device seam, linked
with the build's objects, and simulates one call. Prints one `ok - ` or `not ok - ` line each; the exit status
is 0 if no line is `not ok`. DIR must have a build."""
import argparse
import collections
import glob
import os
import shutil
import sys

from planted import LANE, LL_H, SIMPLE
from run import CC, ROOT, call, one_line
from run_check import LIBRARIES, compile_sources, plant, run_bounded

BOUND = ['sim/steps/executor', 'sim/steps/slices', 'sim/simulate/engine', 'sim/simulate/engine_stuck']
INCLUDES = ['sim/steps/seam', 'lib', 'sim', 'lib/backends/emu', 'lib/backends/emu/cudart/include']
RING = 'all_reduce -b 64M -e 64M -g 4 --algo ring --proto '

# says: of the sentence with which the simulation of the call ends
Bug = collections.namedtuple('Bug', 'name file find replace call says')
BUGS = [
    Bug('slice_is_not_announced', SIMPLE,
        'prim_store_tail(prim, &lane->send[i].receiver->tail, lane->send[i].posted);', ';',
        RING + 'Simple', 'waits for data from rank'),
    Bug('slice_frees_no_slot', SIMPLE,
        'prim_store_head(prim, &lane->recv[i].sender->head, lane->recv[i].posted);', ';',
        RING + 'Simple', 'waits for a free slot of rank'),
    Bug('lines_free_no_slot', LL_H,
        'prim_store_head(prim, &link->sender->head, link->posted);', ';',
        RING + 'LL', 'waits for a free slot of rank'),
    Bug('input_is_not_shown', LANE,
        'prim_tagged_store(prim, &link->receiver->source, link_tag(link), address);', '(void)address;',
        'reduce_scatter -b 1M -e 1M -g 4 --kernels --algo direct --proto Simple',
        'waits for the address of the input of rank'),
    Bug('list_tells_no_progress', LANE,
        'prim_store_tail(prim, &lane->progress[lane->work->role], lane->progress_begin + step_count);', ';',
        '--plan examples/schedules/msccl_all_reduce4.xml -b 64K -e 64K', 'waits for a step of rank'),
]


def simulate(folder, objects, rest, words):
    program = folder + '/tutti'
    call([CC, '-o', program] + objects + rest + LIBRARIES + ['-ljansson', '-lzstd'])
    return run_bounded([program, 'sim'] + words.split())


def try_bug(bug, folder, rest):
    try:
        plant(bug, folder)
        objects = compile_sources(folder, BOUND, [folder + '/lib'] + INCLUDES)
        status, output = simulate(folder, objects, rest, bug.call)
    except RuntimeError as error:
        return False, '%s: %s' % (bug.name, error)
    said = [line for line in output.split('\n') if bug.says in line]
    if status == 1 and said:
        return True, 'planted %s: found (%s)' % (bug.name, one_line(said[0]))
    return False, 'planted %s: not found, or for another reason: %s' % (bug.name, one_line(output, 600))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('names', nargs='*', metavar='NAME')
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    top = build + '/mutants_sim'
    shutil.rmtree(top, ignore_errors=True)
    sources = [os.path.relpath(source, ROOT)[:-2]
               for source in glob.glob(ROOT + '/sim/*.c') + glob.glob(ROOT + '/sim/*/*.c')]
    rest = [build + '/obj/' + source + '.os' for source in sources if source not in BOUND]
    rest.append(build + '/obj/libtutti_inside.a')
    os.makedirs(top + '/sound')
    objects = compile_sources(top + '/sound', BOUND, INCLUDES)
    failed = 0
    for bug in BUGS:
        if options.names and bug.name not in options.names:
            continue
        status, output = simulate(top + '/sound', objects, rest, bug.call)
        good, line = try_bug(bug, os.path.join(top, bug.name), rest)
        if status != 0:
            good, line = False, '%s without its bug: %s' % (bug.name, one_line(output, 600))
        print('%sok - %s' % ('' if good else 'not ', line), flush=True)
        failed += not good
    shutil.rmtree(top)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
