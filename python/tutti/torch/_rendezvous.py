"""Making a group: each rank says that it has come, and from which line; an error names those that did not."""
import contextlib
import json
import sys

import torch.distributed as dist

from . import _watch
from ._work import caller, place_of

_open = set()  # rendezvous that this process waits for
_threads = {}  # of run(): rank in the job -> thread's id, or the words for a rank whose function has ended


def note_thread(rank, what):
    """A rank of run() has this thread's id, or has ended."""
    _threads[rank] = what


def forget_threads():
    """run() has ended."""
    _threads.clear()


def on_threads():
    """True if the ranks are the threads of run()."""
    return bool(_threads)


def _where(rank):
    """Where a rank of run() is now; '' for a rank that is another process."""
    what = _threads.get(rank)
    if what is None or isinstance(what, str):
        return what or ''
    frame = sys._current_frames().get(what)
    return 'is at %s' % place_of(frame) if frame is not None else ''


def listed(ranks):
    """"rank 1", "ranks 1, 2"."""
    return 'rank%s %s' % ('' if len(ranks) == 1 else 's', ', '.join(str(each) for each in ranks))


class Rendezvous:
    """One step that all ranks of a group take together: `call` is its name for messages."""

    def __init__(self, store, key, rank, ranks, call):
        """`ranks`: those of the job, in the order of the group's."""
        self.store, self.key, self.rank, self.ranks, self.call = store, key, rank, list(ranks), call

    def _keys(self):
        return ['%s/%d' % (self.key, each) for each in range(len(self.ranks))]

    def come(self, timeout, note=None):
        """Waits for all ranks; a pair for each: the note it brought, and its line. DistBackendError: some
        rank has not come."""
        keys = self._keys()
        self.store.set(keys[self.rank], json.dumps([note, caller()]))
        _open.add(self)
        try:
            self.store.wait(keys, timeout)
        except RuntimeError as error:  # among them DistStoreError and DistNetworkError
            raise dist.DistBackendError(self._missing(timeout, error)) from None
        finally:
            _open.discard(self)
        return [tuple(json.loads(self.store.get(each))) for each in keys]

    def came(self):
        """The ranks that have come, with their lines, and the ranks that have not."""
        came, missing = [], []
        for rank, key in zip(self.ranks, self._keys()):
            if self.store.check([key]):
                came.append('rank %d at %s' % (rank, json.loads(self.store.get(key))[1]))
            else:
                missing.append(rank)
        return came, missing

    def _missing(self, timeout, error):
        came, missing = [], []
        with contextlib.suppress(RuntimeError):  # the process with the store may have ended
            came, missing = self.came()
        if not missing:
            return '%s: %s' % (self.call, error)
        if _threads:
            late = 'and nothing is left that could bring %s' % ('it' if len(missing) == 1 else 'them')
            where = ['rank %d %s' % (rank, _where(rank)) for rank in missing if _where(rank)]
        else:
            late = 'within %g s' % timeout.total_seconds()
            where = [said for said in [_watch.verdict()] if said and not said.startswith('nothing is wrong')]
        return ('%s: %s did not call it, %s; called by %s%s'
                % (self.call, listed(missing), late, ', '.join(came), ''.join('; ' + each for each in where)))


def waiting():
    """A sentence for each group that ranks of run() are making while another rank's call has failed."""
    if not _threads:
        return ''
    said = set()
    for each in tuple(_open):
        came, missing = each.came()
        said.add('; %s waits for %s, called by %s' % (each.call, listed(missing), ', '.join(came)))
    return ''.join(sorted(said))


def check_split(call, notes, ranks):
    """All ranks of the parent have to pass the same groups; `notes` are the lists that they passed."""
    for rank, (own, place) in enumerate(notes):
        if own is None or rank not in own:
            continue
        for other in own:
            its, its_place = notes[other]
            if its != own:
                passed = 'no group' if its is None or other not in its else 'the group %s' % its
                raise dist.DistBackendError(
                    '%s: rank %d passed the group %s at %s, rank %d %s at %s: all ranks have to pass the '
                    'same groups' % (call, ranks[rank], own, place, ranks[other], passed, its_place))
