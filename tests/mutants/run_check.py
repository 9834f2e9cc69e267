#!/usr/bin/env python3
"""Plants one bug at a time into copies of lib/protocol and proves that the checker (sim/check) finds it.

    python3 tests/mutants/run_check.py [--build DIR] [--all] [NAME...]

The bugs are those of planted.py in lib/protocol, which the emulator must catch too, and some that only the
checker can find, because no peer behaves so that it matters (EXTRA). UNSEEN names those that the checker
cannot find, and why. Tries a few, or all, or those of these names. Each is compiled into the files that bind
the device seam, linked with the build's objects and run over all plans of 2 to 4 ranks. Prints one `ok - ` or
`not ok - ` line each; the exit status is 0 if no line is `not ok`. DIR must have a build."""
import argparse
import concurrent.futures
import glob
import os
import shutil
import subprocess
import sys

from planted import FIFO, LL_H, MUTANTS, SIMPLE, Mutant
from run import CC, ROOT, call, one_line, planted_text

BOUND = ['executor', 'counters', 'slots', 'moves', 'lines']
FLAGS = ['-std=c11', '-O1', '-D_GNU_SOURCE']
INCLUDES = ['sim/check/seam', 'lib', 'sim', 'lib/backends/emu', 'lib/backends/emu/cudart/include']
LIBRARIES = ['-pthread', '-ldl', '-lm', '-lexpat', '-lnettle']
RUN_SECONDS = 120
QUICK = ('sender_ignores_a_full_fifo', 'slice_posted_before_it_is_finished', 'slices_share_a_slot',
         'input_is_shown_after_others_are_taken', 'receiver_waits_for_one_step_of_a_slice')

# name, file, find, replace, rule, words of the sentence, no scenario
EXTRA = [
    Mutant('receiver_waits_for_one_step_of_a_slice', SIMPLE,
           '!link_has_data(link, steps)) return false;', '!link_has_data(link, 1)) return false;',
           'slot', 'without having waited for it', None),
    Mutant('sender_waits_for_one_slot_of_a_slice', SIMPLE,
           'if (!link_has_slots(&lane->send[i], steps)) return false;',
           'if (!link_has_slots(&lane->send[i], 1)) return false;',
           'slot', 'are known to be free', None),
    Mutant('ll_sender_waits_for_half_of_its_receivers', LL_H,
           'if (!link_has_slots(&lane->send[i], 1)) return false;',
           'if (i % 2 == 0 && !link_has_slots(&lane->send[i], 1)) return false;',
           'slot', 'are known to be free', None),
    Mutant('slots_are_counted_once_more_by_their_sender', FIFO,
           'if (link_knows_slots(link, steps)) return true; link->cached = prim_load_head',
           'if (link_knows_slots(link, steps - 1)) return true; link->cached = prim_load_head',
           'slot', 'are known to be free', None),
]

LINES = 'the flags of lines are those of whole steps here, and none wraps around'
UNSEEN = {
    'receiver_frees_a_slot_before_it_reads': 'uses the emulator\'s struct prim',
    'll_begins_on_the_announcement': 'with PRIM_COHERENT only',
    'flags_run_ahead_of_ll_lines': LINES, 'flags_run_ahead_of_ll128_lines': LINES,
    'first_flag_is_that_of_fresh_memory': LINES, 'wrapped_ll_flags_are_not_cleaned': LINES,
    'wrapped_ll128_flags_are_not_cleaned': LINES, 'cleaning_skips_slots': LINES,
    'll_flags_are_not_cleaned_before_step_2_31': LINES, 'll128_flags_are_not_cleaned_before_step_2_31': LINES,
    'cleaning_once_a_period': LINES,
    'rounded_head_not_published': 'the sender has slots left until the first post says the same',
}


def bugs():
    shared = [bug for bug in MUTANTS if bug.file.startswith('lib/protocol/') and bug.name not in UNSEEN]
    # The rules of the two differ; what is planted is the same.
    return [bug._replace(shows='', says='') for bug in shared] + EXTRA


def compile_bound(folder, first_includes):
    return compile_sources(folder, ['sim/check/' + name for name in BOUND], first_includes + INCLUDES)


def compile_sources(folder, sources, includes):
    objects = []
    for source in sources:
        objects.append('%s/%s.o' % (folder, os.path.basename(source)))
        call([CC] + FLAGS + ['-I' + place for place in includes] + ['-c', source + '.c', '-o', objects[-1]])
    return objects


def plant(bug, folder):
    """The source with the bug, in a folder that comes before the tree's."""
    copy = os.path.join(folder, bug.file)
    os.makedirs(os.path.dirname(copy))
    with open(os.path.join(ROOT, bug.file), encoding='utf-8') as file:
        text = planted_text(file.read(), bug)
    with open(copy, 'w', encoding='utf-8') as file:
        file.write(text)


def run_bounded(command):
    """The command's exit status and all that it says; 2 if it does not end."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_SECONDS,
                              cwd=ROOT)
    except subprocess.TimeoutExpired:
        return 2, 'no end after %d s' % RUN_SECONDS
    return done.returncode, done.stdout.decode(errors='replace')


class Base:
    """The command's objects in an archive, from which the linker takes what the driver needs."""

    def __init__(self, build, folder):
        os.makedirs(folder)
        self.archive, self.library = folder + '/sim.a', build + '/obj/libtutti_inside.a'
        sources = glob.glob(ROOT + '/sim/*.c') + glob.glob(ROOT + '/sim/*/*.c')
        objects = [build + '/obj/' + os.path.relpath(source, ROOT)[:-2] + '.os' for source in sources]
        call(['ar', 'rcs', self.archive] + objects)
        self.driver = folder + '/check_run.o'
        call([CC] + FLAGS + ['-I' + place for place in INCLUDES] +
             ['-c', 'tests/mutants/check_run.c', '-o', self.driver])

    def run(self, folder, objects):
        program = folder + '/check_run'
        call([CC, '-o', program, self.driver] + objects + [self.archive, self.library] + LIBRARIES)
        return run_bounded([program])


def try_bug(bug, base, folder):
    try:
        plant(bug, folder)
        status, output = base.run(folder, compile_bound(folder, [folder + '/lib']))
    except RuntimeError as error:
        return False, '%s: %s' % (bug.name, error)
    if status == 1 and output.startswith(bug.shows) and bug.says in output:
        shutil.rmtree(folder)
        return True, 'planted %s: found (%s)' % (bug.name, one_line(output))
    return False, 'planted %s: not found, or for another reason: %s' % (bug.name, one_line(output, 600))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--all', action='store_true')
    parser.add_argument('names', nargs='*', metavar='NAME')
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    top = build + '/mutants_check'
    shutil.rmtree(top, ignore_errors=True)
    wanted = options.names or ([] if options.all else QUICK)
    chosen = [bug for bug in bugs() if not wanted or bug.name in wanted]
    base = Base(build, top)
    os.makedirs(top + '/sound')
    status, output = base.run(top + '/sound', compile_bound(top + '/sound', []))
    failed = int(status != 0)
    print('%sok - no bug planted: %s' % ('not ' if failed else '', one_line(output)), flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for job in [pool.submit(try_bug, bug, base, os.path.join(top, bug.name)) for bug in chosen]:
            good, line = job.result()
            print('%sok - %s' % ('' if good else 'not ', line), flush=True)
            failed += not good
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
