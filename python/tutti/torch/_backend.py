"""The backend "tutti" of torch.distributed: a process group is a communicator of the emulator."""
import atexit
import collections
import contextlib
import datetime
import os
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist

from .. import _library, core, cuda
from . import _early, _events, _messages, _rendezvous, _types, _watch
from ._work import Work, caller, waits_at_once

_Base = getattr(dist, 'BackendBase', None) or torch._C._distributed_c10d.Backend
_nccl = _library.nccl
_SPLIT = 'split_group'
_TIMED_OUT = 'tutti timed out'  # in the group's store: what the first rank that waited too long says
rank_of_thread = threading.local()  # .device, and .queued: groups with messages that wait for their batch


def _queued():
    try:
        return rank_of_thread.queued
    except AttributeError:
        rank_of_thread.queued = set()
        return rank_of_thread.queued


def device_of(rank):
    """The emulated device of a process: its local rank, else its rank in the job."""
    local = os.environ.get('LOCAL_RANK') or os.environ.get('TUTTI_LOCAL_RANK')
    return int(local) if local is not None else rank


def prepare(count):
    """Settings for the emulator's first call: tensors are no memory of a device; a device for each rank."""
    os.environ.setdefault('NCCL_CHECK_POINTERS', '0')
    settings = os.environ.get('TUTTI_EMU', '')
    if count > 8 and 'devices=' not in settings:
        os.environ['TUTTI_EMU'] = ','.join(filter(None, [settings, 'devices=%d' % count]))


def flush_messages():
    """Calls the messages of this thread that wait for others to go with them."""
    queued = _queued()
    while queued:
        queued.pop().flush()


_groups = set()  # that have not ended; C++ has no reference to their Python part if another object wraps them


def groups_of(thread=None):
    """The groups that have not ended, of one thread or of all."""
    return [group for group in tuple(_groups) if group.is_open() and thread in (None, group.thread)]


@atexit.register
def _leave():
    """A program that ends without destroy_process_group() leaves its groups, as with other backends."""
    left = groups_of()
    if left:
        sys.stderr.write('tutti: the program ends without torch.distributed.destroy_process_group(): %d open '
                         'group%s\n' % (len(left), '' if len(left) == 1 else 's'))
    for group in left:
        group.abort()


class _Splittable(_Base):
    """What PyTorch asks of each backend of a group that it splits."""

    @property
    def supports_splitting(self):
        """True."""
        return True

    @property
    def options(self):
        """What the backend was made with: its time-out and its name."""
        return self._options

    def eager_connect_single_device(self, _):
        """Groups are connected when they are made."""


class ProcessGroup(_Splittable):
    """One rank's part in a process group.

    It has a communicator for collectives, and others for messages (_messages.py), so that both may overtake
    each other.
    """

    def __init__(self, store, rank, ranks, options, call, comm=None):
        """`ranks`: those of the job, in the group's order; `call` made the group; `comm`: a split's with its
        key, and whether it is for pipelines; without it the ranks join one."""
        size = len(ranks)
        super().__init__(rank, size)
        attempt = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')  # torchrun's store outlives its attempts
        self._store = dist.PrefixStore('attempt %s' % attempt, store)
        self._rank, self._size, self.timeout = rank, size, options._timeout
        self.ranks, self._options = list(ranks), options
        self.device = rank_of_thread.device
        self._splits = 0
        cuda.set_device(self.device)
        self._comm, key, self._for_pipelines = comm or self._join(call)
        if _rendezvous.on_threads():
            self._messages = _messages.Links(self, key)
        else:
            self._messages = _messages.Shared(self, self._comm.split(0, rank), self._for_pipelines)
        self._stream = cuda.Stream()
        self._key = key
        self._events = _events.Events()
        self._open = collections.deque()
        self._batch = None  # of a coalescing block: (work, what it writes if the program has to wait for it)
        self._barriers = self._collectives = 0
        self._token = torch.zeros(1, dtype=torch.uint8)
        self.timed_out = None
        self.thread = threading.get_ident()
        _watch.note_timeout(self.timeout.total_seconds())
        _groups.add(self)

    def _join(self, call):
        flush_messages()
        own = bytes(core.get_unique_id()).hex() if self._rank == 0 else ''
        step = _rendezvous.Rendezvous(self._store, 'tutti', self._rank, self.ranks, call)
        notes = [note for note, _ in step.come(self.timeout, [own, _messages.PIPELINES in sys.modules])]
        key = notes[0][0]
        comm = core.Communicator.init(self._size, self._rank, core.UniqueId(bytes.fromhex(key)))
        return comm, key, any(imported for _, imported in notes)

    def time_out(self, said):
        """A rank has waited too long: ends the communicators, and tells the others why."""
        self.timed_out = said
        with contextlib.suppress(RuntimeError):
            self._store.set(_TIMED_OUT, said)
        self.abort()

    def is_open(self):
        """False after shutdown() and abort()."""
        return (self._comm.ptr is not None or self._stream.handle is not None or self._messages.is_open())

    # ---- operations

    def use_device(self):
        """Calls and events of this thread are on the group's device from now on."""
        if rank_of_thread.device != self.device:
            cuda.set_device(self.device)
            rank_of_thread.device = self.device

    def fail(self, call, error, comm=None, said=''):
        """The exception for a call that failed: what is said, then the library's sentence."""
        if self.timed_out is not None:
            return dist.DistBackendError('%s: %s' % (call, self.timed_out))
        with contextlib.suppress(RuntimeError):  # the process with the store may have ended
            if self._store.check([_TIMED_OUT]):
                return dist.DistBackendError('%s: %s' % (call, self._store.get(_TIMED_OUT).decode()))
        comm = (comm or self._comm).ptr
        text = _library.nccl_library.ncclGetLastError(comm).decode(errors='replace').strip() if comm else ''
        parts = [each for each in (said, text or str(error)) if each]
        return dist.DistBackendError('%s: %s%s' % (call, '; '.join(parts), _rendezvous.waiting()))

    def _submit(self, call, tensors, body, outputs=(), finish=None, asynchronous=False, written=None):
        """Runs `body`, which calls NCCL on self._stream; `tensors` live until it has ended. The Work.

        `written`: those of the outputs that change on this rank, if not all.
        """
        if _queued():
            flush_messages()
        self.use_device()
        self._collectives += 1
        work = Work(self, call, list(outputs), tensors, finish)
        if asynchronous:
            work.place = caller()
        try:
            body()
        except _library.NCCLError as error:
            work.end(self.fail(call, error))
            raise work.error from None
        self._note(work, (outputs if written is None else written) if asynchronous else None)
        if self._batch is None:
            work.event, work.queue = self._events.record(self._stream), self._open
            self._open.append(work)
        return work

    def _note(self, work, written):
        """The work was called; `written`: None if the program cannot use its tensors before it has ended. The
        calls of a coalescing block are watched once it has ended, as each operator is slower then."""
        if self._batch is not None:
            self._batch.append((work, written))
        elif written is not None and not work.ended:
            self._watch_uses(work, written)

    @staticmethod
    def _watch_uses(work, written):
        """The program must not use the tensors before it has waited for the work."""
        if work.finish is not None:
            finish = work.finish

            def undisturbed():
                with _early.pause():
                    finish()
            work.finish = undisturbed
        work.on_end = _early.end
        _early.begin(work, written, work.tensors)

    def limit(self, timeout):
        """How long a wait may take: its own time-out, or the group's."""
        return timeout if timeout is not None and timeout.total_seconds() > 0 else self.timeout

    @contextlib.contextmanager
    def watched(self, timeout):
        limit = self.limit(timeout)
        key = _watch.begin(time.monotonic() + limit.total_seconds(), limit.total_seconds(), self)
        try:
            yield
        finally:
            _watch.end(key)

    def wait_for(self, work, timeout):
        """Waits for a Work of this group."""
        flush_messages()
        if work.name is not None and not self._settle(work, timeout):
            return
        if work.event is None:  # of a coalescing block that is open
            return
        _watch.tell_callers()
        try:
            with self.watched(timeout):
                _events.wait_for(work.event)
        except _library.CUDAError as error:
            said = '' if work.name is None else self._messages.describe(work)
            self._end_until(work, self.fail(work.call, error, work.comm, said))
            return
        self._end_until(work, None if self.timed_out is None else self.fail(work.call, ''))

    def _settle(self, work, timeout):
        """False: the message has ended without the emulator."""
        if not self._messages.settle(work, timeout):
            return False
        if work.stored is not None:
            self._messages.finish(work, timeout)
            return False
        flush_messages()
        return True

    def look_at(self, work):
        """Ends the Work if its stream has passed it; does not wait."""
        flush_messages()
        if work.name is not None and not self._messages.look(work):
            return
        flush_messages()
        if work.stored is not None:
            self._messages.look_at_stored(work)
        elif work.event is not None and _events.has_passed(work.event):
            self.wait_for(work, None)

    def record(self, stream):
        """An event behind everything that is on the stream now."""
        return self._events.record(stream)

    def in_block(self):
        """True between start_coalescing() and end_coalescing()."""
        return self._batch is not None

    def note_queued(self):
        """Messages of this group wait for a flush."""
        _queued().add(self)

    @property
    def store(self):
        """The group's store."""
        return self._store

    def _end_until(self, work, error):
        """The stream is behind this work, so behind those before it as well."""
        works = work.queue
        while works:
            first = works.popleft()
            if first.event is not work.event:
                self._events.reuse(first.event)
            first.end(error)
            if first is work:
                break
        while works and works[0].event is work.event:
            works.popleft().end(error)
        self._events.reuse(work.event)

    # ---- tensors

    @staticmethod
    def _dense(tensor, copies, written=False):
        """The tensor itself if its elements lie in one piece, else a copy, which `copies` brings back."""
        if tensor.is_sparse or tensor.device.type != 'cpu':
            raise TypeError('the backend tutti takes dense tensors of the CPU, not %s of %s'
                            % (tensor.layout, tensor.device))
        if tensor.is_contiguous():
            return tensor.detach() if tensor.requires_grad else tensor
        dense = tensor.detach().contiguous()
        if written:
            copies.append(lambda: tensor.detach().copy_(dense))
        return dense

    @staticmethod
    def _all(copies):
        def finish():
            for copy in copies:
                copy()
        return finish if copies else None

    def _reduce_call(self, name, send, receive, count, number, operator, op, *root):
        """One of NCCL's reductions; an operator of None is PREMUL_SUM, which lives for the call."""
        comm, made = self._comm, None
        if operator is None:
            factor = op.factor if hasattr(op, 'factor') else op.__getstate__()[1]
            dtype = next(each for each, its in _types.TYPES.items() if its == number)
            scalar = torch.as_tensor(factor, dtype=dtype).reshape(1).view(torch.uint8)
            made = comm.create_pre_mul_sum(bytes(scalar.tolist()), core.NcclDataType(number))
            operator = made.value
        _nccl(name, send, receive, count, number, operator, *root, comm.ptr, self._stream.handle)
        if made is not None:
            comm.destroy_op(made)

    # ---- collectives

    def allreduce(self, tensors, opts):
        """torch.distributed.all_reduce."""
        return self._allreduce('all_reduce', tensors, opts)

    def allreduce_coalesced(self, tensors, opts):
        """torch.distributed.all_reduce_coalesced."""
        return self._allreduce('all_reduce_coalesced', tensors, opts)

    def _allreduce(self, call, tensors, opts):
        op, copies = opts.reduceOp, []
        fold = _types.fold_of(op, tensors[0].dtype)
        dense = [self._dense(each, copies, True) for each in tensors]
        if fold is not None:
            return self._allreduce_bits(call, tensors, dense, fold, opts)
        views = [_types.reduced(call, each, op) for each in dense]

        def one(view, number, operator):
            pointer = view.data_ptr()
            self._reduce_call('ncclAllReduce', pointer, pointer, view.numel(), number, operator, op)

        def body():
            if len(views) == 1:
                one(*views[0])
                return
            with _messages.nccl_group():
                for each in views:
                    one(*each)
        return self._submit(call, dense, body, tensors, self._all(copies), opts.asyncOp)

    def _allreduce_bits(self, call, tensors, dense, fold, opts):
        parts = [torch.empty((self._size, each.numel()), dtype=each.dtype) for each in dense]

        def body():
            with _messages.nccl_group():
                for own, whole in zip(dense, parts):
                    self._allgather_call(own, whole)

        def finish():
            for tensor, whole in zip(tensors, parts):
                tensor.detach().copy_(fold(list(whole)).reshape(tensor.shape))
        return self._submit(call, dense + parts, body, tensors, finish, opts.asyncOp)

    def broadcast(self, tensors, opts):
        """torch.distributed.broadcast."""
        copies = []
        dense = [self._dense(each, copies, opts.rootRank != self._rank) for each in tensors]

        def body():
            for each in dense:
                pointer, count, number = _types.moved(each)
                _nccl('ncclBroadcast', pointer, pointer, count, number, opts.rootRank, self._comm.ptr,
                      self._stream.handle)
        written = tensors if opts.rootRank != self._rank else ()
        return self._submit('broadcast', dense, body, tensors, self._all(copies), opts.asyncOp, written)

    def reduce(self, tensors, opts):
        """torch.distributed.reduce; tensors of other ranks than the root keep their values."""
        op, copies, root = opts.reduceOp, [], opts.rootRank
        fold = _types.fold_of(op, tensors[0].dtype)
        dense = [self._dense(each, copies, root == self._rank) for each in tensors]
        if fold is not None:
            keep = tensors if root == self._rank else [each.clone() for each in tensors]
            return self._allreduce_bits('reduce', keep, dense, fold, opts)
        views = [_types.reduced('reduce', each, op) for each in dense]

        def body():
            for view, number, operator in views:
                pointer = view.data_ptr()
                self._reduce_call('ncclReduce', pointer, pointer if root == self._rank else None,
                                  view.numel(), number, operator, op, root)
        written = tensors if root == self._rank else ()
        return self._submit('reduce', dense, body, tensors, self._all(copies), opts.asyncOp, written)

    def _allgather_call(self, own, whole):
        pointer, count, number = _types.moved(own)
        _nccl('ncclAllGather', pointer, whole.data_ptr(), count, number, self._comm.ptr, self._stream.handle)

    def _check_whole(self, call, whole, part, names):
        if whole.numel() != part.numel() * self._size or whole.dtype != part.dtype:
            raise ValueError('%s: the %s has %d elements of %s, not the %d of %s of the %s times %d ranks'
                             % (call, names[0], whole.numel(), whole.dtype, part.numel(), part.dtype,
                                names[1], self._size))

    def all_gather_single(self, output, tensor, opts):
        """torch.distributed.all_gather_into_tensor."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, tensors, opts):
        """Several all_gather_into_tensor as one."""
        copies = []
        for whole, part in zip(outputs, tensors):
            self._check_whole('all_gather_into_tensor', whole, part, ('output', 'input'))
        wholes = [self._dense(each, copies, True) for each in outputs]
        owns = [self._dense(each, copies) for each in tensors]

        def body():
            with _messages.nccl_group():
                for own, whole in zip(owns, wholes):
                    self._allgather_call(own, whole)
        return self._submit('all_gather_into_tensor', owns + wholes, body, outputs, self._all(copies),
                            opts.asyncOp)

    def allgather(self, output_lists, tensors, opts):
        """torch.distributed.all_gather; outputs may have different sizes."""
        return self._allgather('all_gather', output_lists, tensors, opts)

    def allgather_coalesced(self, output_lists, tensors, opts):
        """torch.distributed.all_gather_coalesced: output_lists[rank][i]."""
        by_tensor = [list(each) for each in zip(*output_lists)] if len(output_lists) == self._size else []
        if len(tensors) != len(by_tensor):
            by_tensor = output_lists
        return self._allgather('all_gather_coalesced', by_tensor, tensors, opts)

    def _allgather(self, call, output_lists, tensors, opts):
        copies, tensors_used, calls = [], [], []
        for outputs, tensor in zip(output_lists, tensors):
            if len(outputs) != self._size:
                raise ValueError('%s: a list of %d outputs for %d ranks' % (call, len(outputs), self._size))
            own = self._dense(tensor, copies)
            tensors_used.append(own)
            if all(each.numel() == own.numel() and each.dtype == own.dtype for each in outputs):
                whole = torch.empty((self._size, own.numel()), dtype=own.dtype)
                tensors_used.append(whole)
                calls.append((lambda own=own, whole=whole: self._allgather_call(own, whole)))
                copies.append(lambda outputs=outputs, whole=whole: [
                    out.detach().copy_(part.reshape(out.shape)) for out, part in zip(outputs, whole)])
            else:
                parts = [self._dense(each, copies, True) for each in outputs]
                tensors_used += parts
                calls += [lambda r=r, own=own, part=part: self._broadcast_from(r, own, part)
                          for r, part in enumerate(parts)]

        def body():
            with _messages.nccl_group():
                for each in calls:
                    each()
        flat = [each for outputs in output_lists for each in outputs]
        return self._submit(call, tensors_used, body, flat, self._all(copies), opts.asyncOp)

    def _broadcast_from(self, root, own, part):
        pointer, count, number = _types.moved(part)
        source = own.data_ptr() if root == self._rank else pointer
        _nccl('ncclBroadcast', source, pointer, count, number, root, self._comm.ptr, self._stream.handle)

    def reduce_scatter_single(self, output, tensor, opts):
        """torch.distributed.reduce_scatter_tensor."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, tensors, opts):
        """Several reduce_scatter_tensor as one."""
        call, copies, op = 'reduce_scatter_tensor', [], opts.reduceOp
        for whole, part in zip(tensors, outputs):
            self._check_whole(call, whole, part, ('input', 'output'))
        parts = [self._dense(each, copies, True) for each in outputs]
        wholes = [self._dense(each, copies) for each in tensors]
        if _types.fold_of(op, wholes[0].dtype) is not None:
            return self._reduce_scatter_bits(call, outputs, wholes, opts)
        pairs = [(_types.reduced(call, whole, op), _types.reduced(call, part, op)[0])
                 for whole, part in zip(wholes, parts)]

        def body():
            with _messages.nccl_group():
                for (whole, number, operator), part in pairs:
                    self._reduce_call('ncclReduceScatter', whole.data_ptr(), part.data_ptr(), part.numel(),
                                      number, operator, op)
        return self._submit(call, wholes + parts, body, outputs, self._all(copies), opts.asyncOp)

    def _reduce_scatter_bits(self, call, outputs, wholes, opts):
        fold = _types.fold_of(opts.reduceOp, wholes[0].dtype)
        received = [torch.empty_like(each) for each in wholes]

        def body():
            with _messages.nccl_group():
                for whole, own in zip(wholes, received):
                    pointer, count, number = _types.moved(whole)
                    _nccl('ncclAlltoAll', pointer, own.data_ptr(), count // self._size, number,
                          self._comm.ptr, self._stream.handle)

        def finish():
            for output, own in zip(outputs, received):
                output.detach().copy_(fold(list(own.reshape(self._size, -1))).reshape(output.shape))
        return self._submit(call, wholes + received, body, outputs, finish, opts.asyncOp)

    def reduce_scatter(self, outputs, input_lists, opts):
        """torch.distributed.reduce_scatter; inputs may have different sizes."""
        call, op, (output,), (inputs,) = 'reduce_scatter', opts.reduceOp, outputs, input_lists
        if len(inputs) != self._size:
            raise ValueError('%s: a list of %d inputs for %d ranks' % (call, len(inputs), self._size))
        if all(each.numel() == output.numel() for each in inputs):
            whole = torch.cat([each.detach().reshape(-1) for each in inputs])
            return self.reduce_scatter_single_coalesced(outputs, [whole], opts)
        copies = []
        part = self._dense(output, copies, True)
        dense = [self._dense(each, copies) for each in inputs]
        views = [_types.reduced(call, each, op) for each in dense]

        def body():
            with _messages.nccl_group():
                for root, (view, number, operator) in enumerate(views):
                    self._reduce_call('ncclReduce', view.data_ptr(),
                                      part.data_ptr() if root == self._rank else None, view.numel(), number,
                                      operator, op, root)
        return self._submit(call, dense + [part], body, outputs, self._all(copies), opts.asyncOp)

    def _exchange(self, call, sends, receives, tensors, outputs, copies, opts):
        """Messages to and from all ranks: sends[i] and receives[i] are rank i's parts, or None."""
        def body():
            comm, stream = self._comm.ptr, self._stream.handle
            with _messages.nccl_group():
                for peer, part in enumerate(sends):
                    if part is not None and part.numel() > 0:
                        _nccl('ncclSend', *_types.moved(part), peer, comm, stream)
                for peer, part in enumerate(receives):
                    if part is not None and part.numel() > 0:
                        _nccl('ncclRecv', *_types.moved(part), peer, comm, stream)
        return self._submit(call, tensors, body, outputs, self._all(copies), opts.asyncOp)

    def alltoall(self, outputs, inputs, opts):
        """torch.distributed.all_to_all; parts may have different sizes."""
        copies = []
        receives = [self._dense(each, copies, True) for each in outputs]
        sends = [self._dense(each, copies) for each in inputs]
        return self._exchange('all_to_all', sends, receives, sends + receives, outputs, copies, opts)

    def all_to_all_single(self, output, tensor, output_splits, input_splits, opts):
        """torch.distributed.all_to_all_single."""
        call, copies = 'all_to_all_single', []
        whole_out, whole_in = self._dense(output, copies, True), self._dense(tensor, copies)
        if not output_splits and not input_splits:
            rows = whole_in.shape[0] if whole_in.dim() else 0
            if whole_out.numel() != whole_in.numel() or rows % self._size:
                raise ValueError('%s: input of %s and output of %s cannot be split evenly among %d ranks'
                                 % (call, tuple(tensor.shape), tuple(output.shape), self._size))

            def body():
                pointer, count, number = _types.moved(whole_in)
                _nccl('ncclAlltoAll', pointer, whole_out.data_ptr(), count // self._size, number,
                      self._comm.ptr, self._stream.handle)
            return self._submit(call, [whole_out, whole_in], body, [output], self._all(copies), opts.asyncOp)
        receives = self._split(call, whole_out, output_splits, 'output')
        sends = self._split(call, whole_in, input_splits, 'input')
        return self._exchange(call, sends, receives, [whole_out, whole_in], [output], copies, opts)

    def _split(self, call, whole, sizes, name):
        rows = whole.shape[0] if whole.dim() else 0
        if not sizes:
            if rows % self._size:
                raise ValueError('%s: %d rows of %s for %d ranks' % (call, rows, name, self._size))
            sizes = [rows // self._size] * self._size
        if len(sizes) != self._size or sum(sizes) != rows:
            raise ValueError('%s: %s splits %s for %d rows and %d ranks'
                             % (call, name, list(sizes), rows, self._size))
        return list(torch.split(whole, list(sizes)))

    def gather(self, output_lists, tensors, opts):
        """torch.distributed.gather."""
        copies, root = [], opts.rootRank
        own = self._dense(tensors[0], copies)
        sends = [own if peer == root else None for peer in range(self._size)]
        outputs = list(output_lists[0]) if root == self._rank else []
        if root == self._rank and len(outputs) != self._size:
            raise ValueError('gather: a list of %d outputs for %d ranks' % (len(outputs), self._size))
        receives = [self._dense(each, copies, True) for each in outputs]
        return self._exchange('gather', sends, receives, [own] + receives, outputs, copies, opts)

    def scatter(self, outputs, input_lists, opts):
        """torch.distributed.scatter."""
        copies, root = [], opts.rootRank
        part = self._dense(outputs[0], copies, True)
        inputs = list(input_lists[0]) if root == self._rank else []
        if root == self._rank and len(inputs) != self._size:
            raise ValueError('scatter: a list of %d inputs for %d ranks' % (len(inputs), self._size))
        sends = [self._dense(each, copies) for each in inputs]
        receives = [part if peer == root else None for peer in range(self._size)]
        return self._exchange('scatter', sends, receives, sends + [part], outputs, copies, opts)

    def barrier(self, opts):
        """torch.distributed.barrier: an all-reduce of one byte."""
        def body():
            pointer = self._token.data_ptr()
            _nccl('ncclAllReduce', pointer, pointer, 1, _types.BYTES, 0, self._comm.ptr, self._stream.handle)
        return self._submit('barrier', [self._token], body, asynchronous=opts.asyncOp)

    def monitored_barrier(self, opts, wait_all_ranks=False):
        """torch.distributed.monitored_barrier: rank 0 names the ranks that do not come in time."""
        flush_messages()
        self._barriers += 1
        name = 'monitored_barrier/%d' % self._barriers
        limit = opts.timeout if opts.timeout.total_seconds() >= 0 else self.timeout
        self._store.set('%s/%d' % (name, self._rank), b'1')
        if self._rank != 0:
            said = self._answer('%s/end' % name, limit * 2)
        else:
            said = self._missing(name, limit, wait_all_ranks)
            self._store.set('%s/end' % name, said.encode())
        if said:
            raise RuntimeError(said)

    def _answer(self, key, limit):
        try:
            self._store.wait([key], limit)
        except RuntimeError:  # DistStoreError, but FileStore has its own
            return 'monitored_barrier: rank 0 has not come within %g s' % limit.total_seconds()
        return self._store.get(key).decode()

    def _missing(self, name, limit, wait_all_ranks):
        end, missing = time.monotonic() + limit.total_seconds(), []
        for rank in range(1, self._size):
            left = datetime.timedelta(seconds=max(end - time.monotonic(), 0.001))
            try:
                self._store.wait(['%s/%d' % (name, rank)], left)
            except RuntimeError:  # DistStoreError, but FileStore has its own
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if not missing:
            return ''
        # The words of PyTorch's documentation, which programs may look for.
        return ('[Rank 0]: Rank%s %s failed to pass monitoredBarrier in %d ms'
                % ('' if len(missing) == 1 else 's', ', '.join(map(str, missing)),
                   limit / datetime.timedelta(milliseconds=1)))

    # ---- messages

    def _message(self, call, name, tensors, peer, tag):
        copies = []
        dense = [self._dense(each, copies, name == 'ncclRecv') for each in tensors]
        work = Work(self, call, list(tensors), dense, self._all(copies), peer if name == 'ncclRecv' else None)
        work.name, work.peer, work.tag, work.place = name, peer, tag, caller()
        self.use_device()
        if name == 'ncclSend':
            self._messages.send(work)
        else:
            self._messages.receive(work)
        self._note(work, None if waits_at_once() else tensors if name == 'ncclRecv' else ())
        return work

    def send(self, tensors, dst, tag=0):
        """torch.distributed.isend."""
        return self._message('send', 'ncclSend', tensors, dst, tag)

    def recv(self, tensors, src, tag=0):
        """torch.distributed.irecv."""
        return self._message('recv', 'ncclRecv', tensors, src, tag)

    def recv_anysource(self, tensors, tag=0):
        """torch.distributed.irecv without a source: the first wait chooses one of those that have sent."""
        return self._message('recv', 'ncclRecv', tensors, _messages.ANY, tag)

    def flush(self):
        """Calls the messages that wait, as one group."""
        self._messages.flush()

    # ---- several calls as one

    @property
    def supports_coalescing(self):
        """batch_isend_irecv() and coalescing blocks are one group."""
        return True

    def start_coalescing(self):
        """The calls until end_coalescing() are one group."""
        flush_messages()
        self._batch = []
        _nccl('ncclGroupStart')

    def end_coalescing(self):
        """Ends the block; its Work stands for all its calls."""
        noted, self._batch = self._batch, None
        batch = [work for work, _ in noted]
        try:
            _nccl('ncclGroupEnd')
        except _library.NCCLError as error:
            for work in batch:
                work.end(self.fail(work.call, error))
            raise batch[-1].error if batch else self.fail(_Several.CALL, error) from None
        self._messages.end_block()
        _queued().discard(self)
        calls = [work for work in batch if work.name is None]
        if calls:
            event = self._events.record(self._stream)
            for work in calls:
                work.event, work.queue = event, self._open
                self._open.append(work)
        for work, written in noted:
            self._note(work, written)
        return _Several(self, batch)

    # ---- groups of this group's ranks

    def set_timeout(self, timeout):
        """Waits that begin later take at most so long."""
        self.timeout = self._options._timeout = timeout
        _watch.note_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _split_comm(self, ranks):
        """The communicator of these ranks of the group, and its key; None for other ranks."""
        if self._batch is not None:
            raise dist.DistBackendError('%s at %s: a coalescing block is open: split the group before it or '
                                        'after it' % (_SPLIT, caller()))
        flush_messages()
        self.use_device()
        self._splits += 1
        step = _rendezvous.Rendezvous(self._store, 'tutti/split/%d' % self._splits, self._rank, self.ranks,
                                      _SPLIT)
        notes = step.come(self.timeout, ranks)
        _rendezvous.check_split(_SPLIT, notes, self.ranks)
        if ranks is None or self._rank not in ranks:
            return self._comm.split(-1, 0)
        key = '%s/%d/%d' % (self._key, self._splits, min(ranks))
        return self._comm.split(min(ranks), ranks.index(self._rank)), key, self._for_pipelines

    def split(self, store, ranks, opts):
        """torch.distributed.split_group, on a rank of the new group."""
        ranks = list(ranks)
        comm = self._split_comm(ranks)
        job_ranks = [self.ranks[each] for each in ranks]
        options = _options(opts._timeout if opts is not None else self.timeout, opts, job_ranks)
        return ProcessGroup(store, ranks.index(self._rank), job_ranks, options, _SPLIT, comm)

    def stay_out(self, ranks):
        """A rank's part in split_group() if it is not one of `ranks`, the first group."""
        self._split_comm(list(ranks))

    def perform_nocolor_split(self, _):
        """A rank's part in the making of a group that it is not in, of a job with a bound device."""
        self._split_comm(None)

    # ---- the end

    def _get_sequence_number_for_group(self):
        """How many collectives were called: TORCH_DISTRIBUTED_DEBUG=DETAIL compares it among the ranks."""
        return self._collectives

    def getBackendName(self):  # noqa: N802, the name that torch.distributed asks for
        """Its name for torch.distributed."""
        return 'tutti'

    name = _get_backend_name = getBackendName

    def _unwaited(self):
        return [work for work in self._open if work.place is not None and not work.waited]

    def shutdown(self):
        """Waits for what was called, and ends the communicators."""
        if not self.is_open():
            return
        flush_messages()
        forgotten = ['%s at %s' % (work.call, work.place) for work in self._unwaited()]
        if forgotten:
            warnings.warn('nothing has waited for %s: its result may be read before it is there, and its '
                          'input changed too early' % ', '.join(forgotten), stacklevel=2)
        self._comm.destroy()
        self._messages.destroy()
        while self._open:
            self._open.popleft().end()
        self._close()

    def _close(self):
        _groups.discard(self)
        self._events.close()
        with contextlib.suppress(_library.CUDAError):  # that of the operations before
            self._stream.close()
        self._messages.close()

    def abort(self):
        """Ends the communicators at once; ranks that wait for this one get an error."""
        with contextlib.suppress(_library.NCCLError):
            self._comm.abort()
        self._messages.abort()
        if threading.get_ident() == self.thread:  # else its thread may wait there
            self._close()

    # Names of earlier releases of PyTorch.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing


class _Several(Work):
    """The works of a coalescing block."""

    CALL = 'coalesced calls'

    def __init__(self, group, works):
        super().__init__(group, self.CALL, [each for work in works for each in work.outputs], [])
        self.works = works

    def wait(self, timeout=None):
        """Waits for all of them."""
        for work in self.works:
            work.wait(timeout)
        return True

    def is_completed(self):
        """True once all have ended."""
        return all(work.is_completed() for work in self.works)


def pass_on_splits():
    """PyTorch's C++ ends the process if split() of a backend in Python returns None: a rank that is in no
    group takes its part here."""
    in_cpp = dist.ProcessGroup.split_group

    def split_group(self, new_ranks, *arguments, **named):
        backends = {device.type: self._get_backend(device) for device in self._device_types}
        if self.rank() in new_ranks or not any(isinstance(each, ProcessGroup) for each in backends.values()):
            return in_cpp(self, new_ranks, *arguments, **named)
        for device, backend in backends.items():
            if isinstance(backend, ProcessGroup):
                backend.stay_out(new_ranks)
            elif backend.supports_splitting:
                backend.perform_nocolor_split(torch.device(device))
        return None
    dist.ProcessGroup.split_group = split_group


class _NoDevice(_Splittable):
    """In place of a backend whose devices this machine does not have: no tensor can come to it."""

    def __init__(self, rank, size, name):
        super().__init__(rank, size)
        self._rank, self._name = rank, name
        self._options = _Base.Options(name)

    def getBackendName(self):  # noqa: N802, the name that torch.distributed asks for
        """The name of the backend that it replaces."""
        return self._name

    name = _get_backend_name = getBackendName

    def shutdown(self):
        """Nothing was begun."""

    abort = shutdown

    def split(self, _, ranks, __):
        """The same, of fewer ranks."""
        return _NoDevice(list(ranks).index(self._rank), len(ranks), self._name)

    def perform_nocolor_split(self, _):
        """Nothing to take part in."""


def pass_over_missing_gpus():
    """A job may name "cpu:tutti,cuda:nccl" where there is no GPU: PyTorch's NCCL backends refuse that."""
    with contextlib.suppress(ValueError, AttributeError, RuntimeError):  # it may be missing
        dist.Backend._ensure_backend_registered('nccl')
    for name in ('NCCL', 'NCCL2'):
        plugin = dist.Backend._plugins.get(name)
        if plugin is None or not plugin.extended_api:
            continue

        def make(options, given, _make=plugin.creator_fn, _name=name.lower()):
            group = options.process_group
            beside = group is not None and torch.device('cpu') in group._device_types and \
                isinstance(group._get_backend(torch.device('cpu')), ProcessGroup)
            if beside and not torch.cuda.is_available():
                return _NoDevice(options.group_rank, options.group_size, _name)
            return _make(options, given)
        dist.Backend._plugins[name] = plugin._replace(creator_fn=make)


def _options(timeout, given, ranks):
    options = _Base.Options('tutti', timeout)
    options.group_name = given.group_name if given is not None else ''
    options.global_ranks_in_group = ranks
    return options


def create(options, _):
    """What torch.distributed calls for init_process_group("tutti") and new_group()."""
    rank = options.group_rank
    if not hasattr(rank_of_thread, 'device'):
        prepare(int(os.environ.get('LOCAL_WORLD_SIZE', options.group_size)))
        rank_of_thread.is_process = True
    if getattr(rank_of_thread, 'is_process', False) and not groups_of(threading.get_ident()):
        rank_of_thread.device = device_of(rank)  # a job after another one may give the process another rank
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    own = _options(options.timeout, None, ranks)
    own.group_name = options.group_id
    if options.split_from is not None:
        return options.split_from.split(options.store, ranks, own)
    call = 'new_group' if options.global_ranks_in_group else 'init_process_group'
    return ProcessGroup(options.store, rank, ranks, own, '%s (group %s of %s)'
                        % (call, options.group_id, _rendezvous.listed(ranks)))
