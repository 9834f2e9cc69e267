"""Messages between two ranks, which match by source and tag.

Threads as ranks (Links): each source, destination and tag has a communicator of two ranks of its own, made
when the first of them calls, so messages of different ones do not wait for each other. Processes as ranks
(Shared): messages with tag 0 go over one communicator of the group, all since the last wait as one NCCL
group. In a group that was made for pipelines, those of neighbours go over communicators of two ranks too:
they are made with the group, because no rank may wait for another one when it calls a message. Messages with
another tag go by the job's store. It also says what was sent, for receives of any source.
"""
import collections
import contextlib
import ctypes
import math
import os
import random
import sys

import torch
import torch.distributed as dist

from .. import _library, core, cuda
from . import _early, _rendezvous, _types, _watch

_nccl = _library.nccl
_calls = _library.nccl_library
ANY = -1
PIPELINES = 'torch.distributed.pipelining'  # groups that are made after its import are for pipelines
_run_seed = None  # of run()
_boards = {}  # of run(): the group's key -> _Board


def begin_run(run_seed):
    """run() begins: its seed."""
    global _run_seed
    _run_seed = run_seed
    _boards.clear()


def _seed():
    """Of the choices between sources."""
    return _run_seed or int(os.environ.get('TUTTI_SEED') or 1)


@contextlib.contextmanager
def nccl_group():
    """The calls of the block are one group of NCCL."""
    _nccl('ncclGroupStart')
    try:
        yield
    finally:
        _nccl('ncclGroupEnd')


class _InOrder:
    """Receives of one tag match in the order of their calls: one of any source holds back later ones."""

    def __init__(self, group):
        self.group, self._held, self._still = group, {}, ctypes.c_uint32(0)
        name = group.options.group_name
        self._random = random.Random('%d %d %s' % (_seed(), group.ranks[group._rank], name))

    def receive(self, work):
        """A receive was called."""
        held = self._held.setdefault(work.tag, collections.deque())
        if held or work.peer == ANY:
            held.append(work)
        else:
            self._start(work)

    def _release(self, work, source):
        """The first that is held back has a source now; it goes, with those up to the next of any source."""
        held = self._held[work.tag]
        assert held[0] is work
        work.peer = work.source = source
        self._start(held.popleft())
        while held and held[0].peer != ANY:
            self._start(held.popleft())

    def settle(self, work, timeout):
        """Waits until the receive has a source. False: it has ended with an error."""
        while not work.ended and work in self._held.get(work.tag, ()):
            first = self._held[work.tag][0]
            sources = self._wait_for_sources(first, timeout)
            if not sources:
                self._held[work.tag].remove(first)
                first.end(self.group.fail(first.call, '', said=self.describe(first)))
            else:
                self._release(first, self._random.choice(sources))
        return not work.ended

    def _poll(self):
        """Lets the others go on for a number of events that the seed draws."""
        _calls.tutti_emu_poll(ctypes.byref(self._still), 0)

    def look(self, work):
        """As settle(), but for a program that polls: True if the receive has its source."""
        while work in self._held.get(work.tag, ()):
            first = self._held[work.tag][0]
            sources = self._sources(first.tag)
            if not sources:
                self._poll()
                return False
            self._release(first, self._random.choice(sources))
        return True

    def _launch(self, work, end):
        """Calls a message over one end of a communicator of two ranks."""
        peer = int(work.peer > self.group._rank)
        try:
            if end.comm.ptr is None:
                raise _library.NCCLError(work.name, 0, 'the group has ended')
            with nccl_group() if len(work.tensors) > 1 else contextlib.nullcontext():
                for each in work.tensors:
                    _nccl(work.name, *_types.moved(each), peer, end.comm.ptr, end.stream.handle)
        except _library.NCCLError as error:
            work.end(self.group.fail(work.call, error, end.comm))
            return
        work.queue, work.comm, work.event = end.open, end.comm, self.group.record(end.stream)
        end.open.append(work)

    def drop(self):
        """The group ends: what is held back never receives."""
        for held in self._held.values():
            while held:
                held.popleft().end()

    def describe(self, work):
        """What a message that has not come, or was not received, is."""
        rank = self.group.ranks[self.group._rank]
        if work.name == 'ncclSend':
            return ('nothing receives the message with tag %d that rank %d sends to rank %d at %s'
                    % (work.tag, rank, self.group.ranks[work.peer], work.place))
        source = 'any rank' if work.peer == ANY else 'rank %d' % self.group.ranks[work.peer]
        return ('nothing sends what rank %d receives from %s with tag %d at %s'
                % (rank, source, work.tag, work.place))


class _End:
    """One rank's end of a link, with a stream of its own."""

    def __init__(self, comm):
        self.comm, self.stream, self.open = comm, cuda.Stream(), collections.deque()


# ---- threads as ranks

class _Link:
    """Messages of one source to one destination with one tag."""

    def __init__(self, board, source, destination, tag):
        self.ends = dict.fromkeys(sorted([source, destination]))  # rank -> its communicator
        self.sent, self.wanted, self.taken = [], [], 0  # the lines that called; how many were taken
        devices = [board.ranks[each] for each in self.ends]
        name = 'from rank %d to rank %d, tag %d' % (board.ranks[source], board.ranks[destination], tag)
        unique_id, options = core.get_unique_id(), core.NCCLConfig(comm_name=name)._structure()
        raw = _library.UniqueIdBytes.from_buffer_copy(bytes(unique_id))
        handles = [ctypes.c_void_p(), ctypes.c_void_p()]
        before = cuda.current_device()
        with nccl_group():
            for end, device in enumerate(devices):
                cuda.set_device(device)
                _nccl('ncclCommInitRankConfig', ctypes.byref(handles[end]), 2, raw, end,
                      ctypes.byref(options))
        cuda.set_device(before)
        for rank, handle in zip(self.ends, handles):
            self.ends[rank] = core.Communicator(handle.value)


class _Board:
    """What the ranks of a group have sent and wait for; they are threads that take turns."""

    def __init__(self, ranks):
        self.ranks, self.links, self.changes = ranks, {}, ctypes.c_uint32(0)
        self.aborted, self.waiting = False, 0  # ranks that wait for changes

    def link(self, source, destination, tag):
        """The link, which the first of its two ranks makes."""
        key = source, destination, tag
        if key not in self.links:
            self.links[key] = _Link(self, *key)
        return self.links[key]

    def changed(self):
        """Something was sent, or a group has ended: those that wait look again."""
        self.changes.value = (self.changes.value + 1) & 0xffffffff
        if self.waiting > 0:
            _calls.tutti_emu_wake()

    def wait(self):
        """Waits for the next change. False: nothing is left that could bring one."""
        self.waiting += 1
        try:
            return _calls.tutti_emu_wait(ctypes.byref(self.changes), self.changes.value) == 0
        finally:
            self.waiting -= 1

    def unmatched(self):
        """A sentence for each first message of a link that only one of its ranks has called."""
        said = []
        for (source, destination, tag), link in sorted(self.links.items()):
            between = 'rank %d' % self.ranks[source], 'rank %d' % self.ranks[destination], tag
            if len(link.sent) > len(link.wanted):
                said.append('%s sends %s a message with tag %d at %s, which nothing receives'
                            % (*between, link.sent[len(link.wanted)]))
            elif len(link.wanted) > len(link.sent):
                said.append('%s sends %s no message with tag %d, for which %s waits at %s'
                            % (*between, between[1], link.wanted[len(link.sent)]))
        return said


class Links(_InOrder):
    """The messages of a group whose ranks are threads."""

    def __init__(self, group, key):
        super().__init__(group)
        self._board = _boards.setdefault(key, _Board(group.ranks))
        self._ends = {}
        self._in_block = []

    def _end(self, link, key):
        if key not in self._ends:
            self._ends[key] = _End(link.ends[self.group._rank])
        return self._ends[key]

    def send(self, work):
        """A send was called."""
        self._start(work)

    def _start(self, work):
        if self.group.in_block():
            self._in_block.append(work)
        else:
            self._call(work)

    def _call(self, work):
        sends = work.name == 'ncclSend'
        key = (self.group._rank, work.peer, work.tag) if sends else (work.peer, self.group._rank, work.tag)
        link = self._board.link(*key)
        if sends:
            link.sent.append(work.place)
            self._board.changed()
        else:
            link.wanted.append(work.place)
            link.taken += 1
        self._launch(work, self._end(link, key))

    def flush(self):
        """Everything has been called."""

    def end_block(self):
        """A coalescing block has ended, in which no communicator can be made: calls its messages."""
        block, self._in_block = self._in_block, []
        for work in block:
            self._call(work)

    def _sources(self, tag):
        links = {source: self._board.links.get((source, self.group._rank, tag))
                 for source in range(self.group._size)}
        return [source for source, link in links.items() if link is not None and len(link.sent) > link.taken]

    def _wait_for_sources(self, work, timeout):
        _watch.tell_callers()
        with self.group.watched(timeout):
            while self.group.is_open():
                if self._sources(work.tag):
                    self._poll()  # others may send meanwhile, so that the choice is one between several
                    return self._sources(work.tag)
                if not self._board.wait():
                    return []
        return []

    def describe(self, work):
        """The message, and those of the group that have no counterpart either."""
        return '; '.join([super().describe(work)] +
                         [each for each in self._board.unmatched() if work.place not in each])

    def _own_comms(self):
        return [comm for link in self._board.links.values() for rank, comm in link.ends.items()
                if rank == self.group._rank]

    def is_open(self):
        """True while a communicator or a stream has not ended."""
        return any(each.stream.handle is not None for each in self._ends.values())

    def destroy(self):
        """Waits for the messages, and ends the communicators."""
        self.drop()
        for comm in self._own_comms():
            try:
                comm.destroy()
            except _library.NCCLError as error:
                self.abort()
                raise self.group.fail('destroy_process_group', error, comm,
                                      '; '.join(self._board.unmatched())) from None
        for end in self._ends.values():
            while end.open:
                end.open.popleft().end()

    def abort(self):
        """Ends the communicators at once."""
        self._board.aborted = True
        for comm in self._own_comms():
            with contextlib.suppress(_library.NCCLError):
                comm.abort()
        self._board.changed()

    def close(self):
        """Destroys the streams."""
        for end in self._ends.values():
            with contextlib.suppress(_library.CUDAError):  # that of the operations before
                end.stream.close()


def end_run():
    """run() has ended: so do the ends of links whose rank never called. What was sent and not received."""
    left = [each for board in _boards.values() if not board.aborted for each in board.unmatched()]
    for board in _boards.values():
        for link in board.links.values():
            for comm in link.ends.values():
                with contextlib.suppress(_library.NCCLError):
                    comm.abort()
    _boards.clear()
    return left


# ---- processes as ranks

_KEPT = 64  # events that a key of the store keeps, of the last messages


def _events_so_far():
    """The number of the emulator's events, which all processes of a host count together."""
    stats = _library.EmulatorStats(size=ctypes.sizeof(_library.EmulatorStats))
    _nccl('tutti_emu_stats', ctypes.byref(stats))
    return stats.events


class _Sent:
    """What a rank has sent to another one with one tag, as a value of the store: how many messages, and when
    the last.

    Only messages that were sent before the last event count as sent: then all processes waited, so every
    process sees the same ones, however fast it runs. Where nothing can move, all have been sent before it.
    """

    def __init__(self, text=b'0'):
        count, *self.events = [int(each) for each in text.split()]
        self.count = count

    def add(self, event):
        """One more; the store's value."""
        self.count += 1
        self.events = (self.events + [event])[-_KEPT:]
        return ' '.join(str(each) for each in [self.count] + self.events).encode()

    def has(self, number, now):
        """True if the message of this number was sent before so many events had been."""
        first = self.count - len(self.events)
        return number < self.count and (number < first or self.events[number - first] < now)


def _neighbours(size):
    """(source, destination) of a ring's links, in lists: within one, no rank has two."""
    rows = [[], [], []]
    for rank in range(size if size > 2 else size - 1):
        rows[2 if rank == size - 1 and size % 2 else rank % 2].append((rank, (rank + 1) % size))
    return [[pair[::way] for pair in row] for row in rows if row for way in (1, -1)]


def _link_neighbours(group, comm):
    """The ends of this rank's links, by source and destination. All ranks of the group call it."""
    made = []
    with nccl_group():
        for row in _neighbours(group._size):
            number, own = next(((i, pair) for i, pair in enumerate(row) if group._rank in pair), (-1, None))
            named = 'from rank %d to rank %d' % tuple(group.ranks[each] for each in own) if own else ''
            options = core.NCCLConfig(comm_name=named)._structure()
            handle = ctypes.c_void_p()
            made.append((own, handle, options))
            _nccl('ncclCommSplit', comm.ptr, number, group._rank, ctypes.byref(handle), ctypes.byref(options))
    return {own: _End(core.Communicator(handle.value)) for own, handle, _ in made if own is not None}


class Shared(_InOrder):
    """The messages of a group whose ranks are processes."""

    def __init__(self, group, comm, for_pipelines):
        super().__init__(group)
        self._comm, self._stream, self._open = comm, cuda.Stream(), collections.deque()
        self._ends = _link_neighbours(group, comm) if for_pipelines else {}
        self._queue, self._sent = [], {}
        self._taken = collections.Counter()  # (source, tag) -> receives

    def _key(self, source, destination, tag):
        return 'tutti/message/%d/%d/%d' % (source, destination, tag)

    def send(self, work):
        """A send was called."""
        if work.tag == 0:
            self._enqueue(work)
            return
        data = b''.join(bytes(each.reshape(-1).view(torch.uint8).numpy()) for each in work.tensors)
        self._announce(work, data)
        work.end()

    def _announce(self, work, data=None):
        """Says in the store that a message was sent, whose data is `data` if it goes by the store."""
        key = self._key(self.group._rank, work.peer, work.tag)
        sent = self._sent.setdefault(key, _Sent())
        if data is not None:
            self.group.store.set('%s/%d' % (key, sent.count), data)
        self.group.store.set(key, sent.add(_events_so_far()))

    def describe(self, work):
        """The message, and the cure if it may wait for others that it was called with."""
        late = not self._ends and self.group._size > 1 and PIPELINES in sys.modules
        return super().describe(work) + (
            '; this group was made before %s was imported, so messages wait for those that were called with '
            'them: import it before the group is made' % PIPELINES if late and work.tag == 0 else '')

    def _end(self, work):
        """The end of the link that a message goes over; None: it goes over the group's communicator."""
        between = self.group._rank, work.peer
        return self._ends.get(between if work.name == 'ncclSend' else between[::-1])

    def _enqueue(self, work):
        if self._end(work) is None or self.group.in_block():
            self._queue.append(work)
            self.group.note_queued()
        else:
            self._call(work)

    def _call(self, work):
        self._launch(work, self._end(work))
        if work.name == 'ncclSend' and not work.ended:
            self._announce(work)

    def _start(self, work):
        key = work.peer, work.tag
        if work.tag == 0:
            self._enqueue(work)
        else:
            work.stored = '%s/%d' % (self._key(work.peer, self.group._rank, work.tag), self._taken[key])
        self._taken[key] += 1

    def flush(self):
        """Calls the messages that wait, as one group."""
        queue, self._queue = self._queue, []
        if not queue:
            return
        self.group.use_device()
        for work in queue:
            if self._end(work) is not None:
                self._call(work)
        queue = [work for work in queue if self._end(work) is None]
        if queue:
            self._flush_shared(queue)

    def _flush_shared(self, queue):
        try:
            with nccl_group():
                for work in queue:
                    for each in work.tensors:
                        _nccl(work.name, *_types.moved(each), work.peer, self._comm.ptr, self._stream.handle)
        except _library.NCCLError as error:
            for work in queue:
                work.end(self.group.fail(work.call, error, self._comm))
            return
        event = self.group.record(self._stream)
        for work in queue:
            work.event, work.queue, work.comm = event, self._open, self._comm
            self._open.append(work)
            if work.name == 'ncclSend':
                self._announce(work)

    def end_block(self):
        """A coalescing block ends: its messages are one group."""
        self.flush()

    def _sources(self, tag):
        now = _events_so_far()
        found = self._sources_before(tag, now)
        if not found:
            self._poll()
            if _events_so_far() == now:  # no other process waits for an event, and there may never be one
                found = self._sources_before(tag, math.inf)
        return found

    def _sources_before(self, tag, now):
        found = []
        for source in range(self.group._size):
            key = self._key(source, self.group._rank, tag)
            if source == self.group._rank or not self.group.store.check([key]):
                continue
            if _Sent(self.group.store.get(key)).has(self._taken[source, tag], now):
                found.append(source)
        return found

    def _wait_for_sources(self, work, timeout):
        with self.group.watched(timeout):
            while self.group.is_open() and self.group.timed_out is None:
                sources = self._sources(work.tag)
                if sources:
                    return sources
                self._poll()
        return []

    def finish(self, work, timeout):
        """Receives a message that goes by the store."""
        store, limit = self.group.store, self.group.limit(timeout)
        try:
            store.wait([work.stored], limit)
            data = store.get(work.stored)
            store.delete_key(work.stored)
        except RuntimeError:  # among them DistStoreError and DistNetworkError
            said = 'no result within %g s: %s' % (limit.total_seconds(), self.describe(work))
            work.end(self.group.fail(work.call, '', said=said))
        else:
            with _early.pause():
                error = self._take(work, data)
            work.end(error)

    def look_at_stored(self, work):
        """As finish(), if the message is there; does not wait."""
        if self.group.store.check([work.stored]):
            self.finish(work, None)
        else:
            self._poll()

    def _take(self, work, data):
        wanted = sum(each.numel() * each.element_size() for each in work.tensors)
        if len(data) != wanted:
            return dist.DistBackendError(
                'recv: the message with tag %d from rank %d has %d bytes, and the tensor %d at %s'
                % (work.tag, self.group.ranks[work.peer], len(data), wanted, work.place))
        for each in work.tensors:
            size = each.numel() * each.element_size()
            if size > 0:
                part = torch.frombuffer(bytearray(data[:size]), dtype=torch.uint8)
                each.reshape(-1).view(torch.uint8).copy_(part)
            data = data[size:]
        return None

    def is_open(self):
        """True while the communicator or the stream has not ended."""
        return self._comm.ptr is not None or self._stream.handle is not None

    def destroy(self):
        """Waits for the messages, and ends the communicators."""
        self.drop()
        for comm in [each.comm for each in self._ends.values()] + [self._comm]:
            comm.destroy()
        for works in [each.open for each in self._ends.values()] + [self._open]:
            while works:
                works.popleft().end()

    def abort(self):
        """Ends the communicators at once."""
        for comm in [each.comm for each in self._ends.values()] + [self._comm]:
            with contextlib.suppress(_library.NCCLError):
                comm.abort()

    def close(self):
        """Destroys the streams."""
        for stream in [each.stream for each in self._ends.values()] + [self._stream]:
            with contextlib.suppress(_library.CUDAError):  # that of the operations before
                stream.close()
