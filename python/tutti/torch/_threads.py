"""Threads as ranks of one process."""
import contextlib
import os
import threading

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from .. import _library
from . import _backend, _messages, _rendezvous, _watch
from ._store import Store


class _WorldOfThread:
    """What torch.distributed keeps of its process groups, for each thread."""

    def __init__(self):
        object.__setattr__(self, '_local', threading.local())

    def _own(self):
        local = object.__getattribute__(self, '_local')
        if not hasattr(local, 'world'):
            local.world = _World()
        return local.world

    def __getattr__(self, name):
        return getattr(self._own(), name)

    def __setattr__(self, name, value):
        setattr(self._own(), name, value)


class _World:
    pg_config_info = distributed_c10d._World.pg_config_info

    def __init__(self):
        self.default_pg, self.group_count, self.comms = None, 0, []
        for name in ('pg_map', 'pg_names', 'pg_group_ranks', 'pg_backend_config', 'tags_to_pg', 'pg_to_tag',
                     'pg_coalesce_state', 'pg_flight_recorder_hooks'):
            setattr(self, name, {})


class _Rank:
    def __init__(self, rank, size, store, function, arguments):
        self.rank, self.size, self.store = rank, size, store
        self.function, self.arguments = function, arguments
        self.result = None

    def run(self, failed):
        """The body of the rank's thread; adds (rank, exception) to the list if it fails."""
        _backend.rank_of_thread.device = self.rank
        _rendezvous.note_thread(self.rank, threading.get_ident())
        ended = 'has returned from its function'
        try:
            dist.init_process_group('tutti', rank=self.rank, world_size=self.size, store=self.store)
            self.store.line_up(self.rank, self.size)
            self.result = self.function(*self.arguments)
            if dist.is_initialized():  # else the function has ended it
                dist.destroy_process_group()
        except BaseException as error:  # for the caller, whatever it is
            failed.append((self.rank, error))
            ended = 'has failed: %s' % type(error).__name__
            for group in _backend.groups_of(threading.get_ident()):
                group.abort()  # the other ranks get an error instead of waiting for this one
        finally:
            _rendezvous.note_thread(self.rank, ended)
            _watch.rank_ended()


@contextlib.contextmanager
def _ranks_in_threads(count):
    """torch.distributed keeps a state for each thread, and its Flight Recorder, which cannot, is off."""
    before, recorder = distributed_c10d._world, os.environ.get('TORCH_FR_BUFFER_SIZE')
    os.environ['TORCH_FR_BUFFER_SIZE'] = '0'
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    distributed_c10d._world = _WorldOfThread()
    _watch.set_ranks(count)
    _library.nccl_library.tutti_emu_take_turns(1)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _library.nccl_library.tutti_emu_take_turns(0)
        _watch.set_ranks(None)
        _rendezvous.forget_threads()
        distributed_c10d._world = before
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        if recorder is None:
            del os.environ['TORCH_FR_BUFFER_SIZE']
        else:
            os.environ['TORCH_FR_BUFFER_SIZE'] = recorder


def run(function, world_size, *arguments, seed=None, events=None):
    """Calls function(*arguments) on `world_size` threads, which are the ranks of a job of their own.

    Each has its own default process group with the backend "tutti". Returns their results, by rank. If ranks
    raise, the exception of the one that failed first is raised when all have ended. The threads take turns:
    one goes on until it waits for the others, so random numbers and printed lines come in the same order
    in every run with the same `seed` (default: TUTTI_SEED), and the operations move in the same order.
    `events`: a file for the trace of every event, which is the same, byte for byte, for the same seed.
    """
    _backend.prepare(world_size)
    try:
        _library.restart(seed or 0, world_size if world_size > 8 else 0, events)
    except _library.NCCLError:  # the program has communicators of its own: they go on, and this is no new run
        if seed is not None or events is not None:
            raise
    store, failed = Store(), []
    ranks = [_Rank(rank, world_size, store, function, arguments) for rank in range(world_size)]
    _messages.begin_run(seed)
    with _ranks_in_threads(world_size):
        threads = [threading.Thread(target=each.run, args=[failed], name='rank %d' % each.rank)
                   for each in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    unreceived = _messages.end_run()
    if events is not None:
        _library.nccl('tutti_emu_trace_close')
    if failed:
        raise failed[0][1]
    if unreceived:
        raise dist.DistBackendError('the run has ended: ' + '; '.join(unreceived))
    return [each.result for each in ranks]
