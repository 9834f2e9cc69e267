"""Time-outs: a thread that ends the communicator of a wait that takes longer than its group allows."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

from .. import _library

_condition = threading.Condition()
_waits = {}  # thread's id -> (deadline, seconds, group)
_shortest = None
_thread = None
_told = 0
_ranks = None  # of run(): threads that are ranks and have not ended


def set_ranks(count):
    """So many threads are ranks now, and no other one calls; None: any thread of the program may."""
    global _ranks
    _ranks = count
    tell_callers()


def rank_ended():
    """The calling thread is a rank, and calls no more."""
    with _condition:
        set_ranks(_ranks - 1)


def tell_callers():
    """Tells the emulator how many threads may call, so that it sees at once that nothing can move."""
    global _told
    count = _ranks if _ranks is not None else threading.active_count() - (_thread is not None)
    if count != _told:
        _told = count
        _library.nccl_library.tutti_emu_callers(max(count, 1))


def note_timeout(seconds):
    """A group has this time-out: the thread looks often enough for it."""
    global _shortest, _thread
    with _condition:
        _shortest = seconds if _shortest is None else min(_shortest, seconds)
        if _thread is None:
            _thread = threading.Thread(target=_run, daemon=True, name='tutti time-outs')
            _thread.start()
        _condition.notify()


def begin(deadline, seconds, group):
    """This thread waits until the deadline at most; a key for end()."""
    key = threading.get_ident()
    if seconds < _shortest:
        note_timeout(seconds)
    _waits[key] = (deadline, seconds, group)
    return key


def end(key):
    """The wait has ended."""
    del _waits[key]


def _command():
    beside = pathlib.Path(sys.executable).parent / 'tutti'
    built = _library.folder().parent / 'bin' / 'tutti'
    return next((str(each) for each in (built, beside) if each.exists()), shutil.which('tutti'))


def _ask(*arguments):
    asked = subprocess.run([_command(), *arguments], capture_output=True, text=True, timeout=60, check=False)
    return json.loads(asked.stdout)


def verdict():
    """What `tutti explain` says of the job's records, or ''."""
    try:
        rows = _ask('trace', 'list', '--json')
        job = next(row['job'] for row in rows if row['process'] == os.getpid())
        return _ask('explain', '--json', *(row['file'] for row in rows if row['job'] == job))['sentence']
    except (subprocess.SubprocessError, ValueError, KeyError, OSError, TypeError, StopIteration):
        return ''


def _expire(seconds, group):
    said = verdict()
    group.time_out('no result within the timeout of %g s%s' % (seconds, ': ' + said if said else ''))


def _run():
    while True:
        with _condition:
            _condition.wait(max(0.05, _shortest / 10))
        now = time.monotonic()
        for deadline, seconds, group in list(_waits.values()):
            if now >= deadline and group.timed_out is None:
                _expire(seconds, group)
