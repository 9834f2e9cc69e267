"""Communicators and their calls, with the names of NVIDIA's Python interface to NCCL (nccl4py)."""
import contextlib
import ctypes
import threading

from . import _library, buffers, cuda
from ._library import NcclInvalid
from .types import NcclDataType, NcclRedOp

_UNDEFINED = -(1 << 31)
_HOST_IMMEDIATE = 1


class UniqueId:
    """Names a communicator that is being made: get_unique_id() of one rank, passed to all by the program."""

    def __init__(self, data):
        if len(data) != _library.UNIQUE_ID_BYTES:
            raise NcclInvalid('a unique id has %d bytes, not %d' % (_library.UNIQUE_ID_BYTES, len(data)))
        self._bytes = bytes(data)

    def __bytes__(self):
        return self._bytes

    @property
    def as_bytes(self):
        """The id's 128 bytes."""
        return self._bytes


def get_unique_id():
    """A new id, which listens at an address of this process until all ranks have joined."""
    raw = _library.UniqueIdBytes()
    _library.nccl('ncclGetUniqueId', ctypes.byref(raw))
    return UniqueId(bytes(raw))


def get_version():
    """The library's version as NCCL counts: 10000 * major + 100 * minor + patch."""
    version = ctypes.c_int()
    _library.nccl('ncclGetVersion', ctypes.byref(version))
    return version.value


class _Config(ctypes.Structure):
    """ncclConfig_t of 2.30."""
    _fields_ = [('size', ctypes.c_size_t), ('magic', ctypes.c_uint), ('version', ctypes.c_uint),
                ('blocking', ctypes.c_int), ('cgaClusterSize', ctypes.c_int), ('minCTAs', ctypes.c_int),
                ('maxCTAs', ctypes.c_int), ('netName', ctypes.c_char_p), ('splitShare', ctypes.c_int),
                ('trafficClass', ctypes.c_int), ('commName', ctypes.c_char_p),
                ('collnetEnable', ctypes.c_int),
                ('CTAPolicy', ctypes.c_int), ('shrinkShare', ctypes.c_int), ('nvlsCTAs', ctypes.c_int),
                ('nChannelsPerNetPeer', ctypes.c_int), ('nvlinkCentricSched', ctypes.c_int),
                ('graphUsageMode', ctypes.c_int), ('numRmaCtx', ctypes.c_int),
                ('maxP2pPeers', ctypes.c_int), ('graphStreamOrdering', ctypes.c_int)]


# The Python name of each member, and the member.
_CONFIG = {'blocking': 'blocking', 'cga_cluster_size': 'cgaClusterSize', 'min_ctas': 'minCTAs',
           'max_ctas': 'maxCTAs', 'net_name': 'netName', 'split_share': 'splitShare',
           'traffic_class': 'trafficClass', 'comm_name': 'commName', 'collnet_enable': 'collnetEnable',
           'cta_policy': 'CTAPolicy', 'shrink_share': 'shrinkShare', 'nvls_ctas': 'nvlsCTAs',
           'n_channels_per_net_peer': 'nChannelsPerNetPeer', 'nvlink_centric_sched': 'nvlinkCentricSched',
           'graph_usage_mode': 'graphUsageMode', 'num_rma_ctx': 'numRmaCtx',
           'max_p2p_peers': 'maxP2pPeers', 'graph_stream_ordering': 'graphStreamOrdering'}


class NCCLConfig:
    """Options of a communicator: ncclConfig_t's members as keyword arguments, as `comm_name='tensor'`."""

    def __init__(self, **options):
        unknown = sorted(set(options) - set(_CONFIG))
        if unknown:
            raise NcclInvalid('NCCLConfig has no option %s; its options are %s'
                              % (', '.join(unknown), ', '.join(_CONFIG)))
        self.options = options

    def _structure(self):
        made = _Config(ctypes.sizeof(_Config), 0xcafebeef, 23007)
        for name, kind in _Config._fields_[3:]:
            setattr(made, name, None if kind is ctypes.c_char_p else _UNDEFINED)
        for option, value in self.options.items():
            setattr(made, _CONFIG[option], value.encode() if isinstance(value, str) else int(value))
        return made


# ---- groups

_local = threading.local()


def _pending():
    """Copies to the host that wait for the end of this thread's outermost group; None outside of groups."""
    return getattr(_local, 'pending', None)


@contextlib.contextmanager
def group():
    """Calls of the block are one: ncclGroupStart() and ncclGroupEnd(). Their results exist after its end."""
    outermost = _pending() is None
    if outermost:
        _local.pending = []
    _library.nccl('ncclGroupStart')
    try:
        try:
            yield
        finally:
            _library.nccl('ncclGroupEnd')
        if outermost:
            for copy in _local.pending:
                copy()
    finally:
        if outermost:
            _local.pending = None


# ---- calls

class _Staging:
    """Device memory in place of host arrays, for one call: filled before it, copied back after it."""

    def __init__(self, regions, stream):
        self.stream, self.device, self.group = stream, cuda.current_device(), _pending()
        self.regions = regions  # their arrays live as long as this
        sizes = {}
        for region in regions:
            if region.on_host:
                sizes[region.pointer] = max(region.nbytes, sizes.get(region.pointer, 0))
        self.buffers = {pointer: cuda.Buffer(size) for pointer, size in sizes.items()}

    def place(self, region):
        """The address that the call gets for a region."""
        buffer = self.buffers.get(region.pointer)
        return buffer.pointer if buffer else region.pointer

    def load(self, region):
        """Copies a region that the call reads to the device."""
        if region.pointer in self.buffers:
            self.buffers[region.pointer].copy_from(region.pointer, region.nbytes, self.stream)

    def store(self, region):
        """Copies a region that the call has written back to the host."""
        if region.pointer in self.buffers:
            cuda.set_device(self.device)
            self.buffers[region.pointer].copy_to(region.pointer, region.nbytes, self.stream)


def _require(condition, text, *values):
    if not condition:
        raise NcclInvalid(text % values)


class CustomRedOp:
    """An operator of one communicator: the sum of inputs that are multiplied by a factor a rank."""

    def __init__(self, comm, value, dtype):
        self.comm, self.dtype, self.value = comm, dtype, value


class Communicator:
    """One rank's part in a communicator.

    Buffers are tutti.cuda.Buffer or arrays of the host (tutti.buffers). Arrays are copied: a call reads its
    input when the stream gets there, and an array holds its result when the stream is synchronized.
    Errors are NCCLError with the library's sentence, and NcclInvalid for arguments that Python refuses.
    """

    def __init__(self, ptr):
        """Takes over an ncclComm_t, a number; use init() and init_all()."""
        self.ptr = ptr
        self.nranks = self._ask('ncclCommCount')
        self.rank = self._ask('ncclCommUserRank')
        self.device = self._ask('ncclCommCuDevice')
        self._kept = []

    def _ask(self, call):
        answer = ctypes.c_int()
        _library.nccl(call, self.ptr, ctypes.byref(answer))
        return answer.value

    # ---- making and ending

    @classmethod
    def init(cls, nranks, rank, unique_id, config=None):
        """Joins a communicator as `rank` of `nranks`, on the current device; waits for the other ranks.

        All pass the same `unique_id`. Ranks of one thread use init_all().
        """
        _require(isinstance(unique_id, UniqueId), 'unique_id: a UniqueId, not %r', type(unique_id).__name__)
        handle, raw = ctypes.c_void_p(), _library.UniqueIdBytes.from_buffer_copy(bytes(unique_id))
        options = (config or NCCLConfig())._structure()
        _library.nccl('ncclCommInitRankConfig', ctypes.byref(handle), nranks, raw, rank,
                      ctypes.byref(options))
        return cls(handle.value)

    @classmethod
    def init_all(cls, devices=None):
        """Communicators of all ranks, in one process: for a number of devices, a list, or all of them."""
        if devices is None or isinstance(devices, int):
            devices = list(range(cuda.device_count() if devices is None else devices))
        handles = (ctypes.c_void_p * len(devices))()
        _library.nccl('ncclCommInitAll', handles, len(devices), (ctypes.c_int * len(devices))(*devices))
        return [cls(handle) for handle in handles]

    def split(self, color, key, config=None):
        """A communicator of the ranks of one `color`, in the order of `key`; None where color is -1."""
        handle, options = ctypes.c_void_p(), (config or NCCLConfig())._structure()
        _library.nccl('ncclCommSplit', self.ptr, color, key, ctypes.byref(handle), ctypes.byref(options))
        return Communicator(handle.value) if handle.value else None

    def shrink(self, exclude, config=None):
        """A communicator without the ranks in `exclude`, which do not call."""
        handle, options = ctypes.c_void_p(), (config or NCCLConfig())._structure()
        ranks = (ctypes.c_int * len(exclude))(*exclude)
        _library.nccl('ncclCommShrink', self.ptr, ranks, len(exclude), ctypes.byref(handle),
                      ctypes.byref(options), 0)
        return Communicator(handle.value)

    def _end(self, call):
        if self.ptr is None:
            return
        pointer, self.ptr = self.ptr, None
        _library.nccl(call, pointer)
        self._kept.clear()

    def finalize(self):
        """Waits until everything that was called has ended, on all ranks."""
        _library.nccl('ncclCommFinalize', self.ptr)

    def destroy(self):
        """Ends the communicator when its operations have ended; does nothing the second time."""
        self._end('ncclCommDestroy')

    def abort(self):
        """Ends the communicator at once; other ranks get an error."""
        self._end('ncclCommAbort')

    @property
    def is_valid(self):
        """False after destroy() and abort()."""
        return self.ptr is not None

    def get_async_error(self):
        """The ncclResult_t of the communicator: 0 while all is well."""
        return self._ask('ncclCommGetAsyncError')

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.destroy()
        else:
            self.abort()

    # ---- the common part of calls

    def _forget_ended(self):
        """Frees what was kept for calls that have ended; those of an open group have not begun."""
        group_now = _pending()
        self._kept = [each for each in self._kept if (group_now is not None and each.group is group_now) or
                      _library.cuda_library.cudaStreamQuery(each.stream) == _library.CUDA_NOT_READY]

    def _call(self, name, pointers, reads, writes, arguments, stream):
        """Calls `name` with the addresses of `pointers`, regions or None; `reads`, `writes` are of these."""
        _require(self.ptr is not None, '%s: the communicator was destroyed or aborted', name)
        handle, before = cuda.handle_of(stream), cuda.current_device()
        if before != self.device:
            cuda.set_device(self.device)
        try:
            staging = _Staging([region for region in pointers if region is not None], handle)
            for region in reads:
                staging.load(region)
            addresses = [staging.place(region) if region is not None else None for region in pointers]
            _library.nccl(name, *addresses, *arguments, self.ptr, handle)
            if staging.buffers and writes and _pending() is not None:
                _pending().extend((lambda r=region: staging.store(r)) for region in writes)
            else:
                for region in writes:
                    staging.store(region)
            if staging.buffers:
                self._forget_ended()
                self._kept.append(staging)
        finally:
            if before != self.device:
                cuda.set_device(before)

    def _two(self, name, sendbuf, recvbuf, counts, arguments, stream, sends=True, receives=True):
        """A collective. counts(send, receive): what NCCL is told, or a sentence why they do not fit."""
        send = buffers.resolve('sendbuf', sendbuf) if sends else None
        receive = buffers.resolve('recvbuf', recvbuf, True) if receives else None
        _require(send is None or receive is None or send.dtype == receive.dtype,
                 '%s: sendbuf has elements of %s and recvbuf of %s', name,
                 send and send.dtype.name, receive and receive.dtype.name)
        count = counts(send, receive)
        _require(isinstance(count, int), '%s: %s', name, count)
        dtype = (send or receive).dtype
        for each in arguments:
            _require(not isinstance(each, CustomRedOp) or each.comm is self,
                     '%s: the operator belongs to another communicator', name)
        self._call(name, (send, receive), [send] if sends else [], [receive] if receives else [],
                   [count, int(dtype), *(int(getattr(each, 'value', each)) for each in arguments)], stream)

    def _equal(self, send, receive):
        if send is None or receive is None:
            return (send or receive).count
        if send.count != receive.count:
            return 'sendbuf has %d elements and recvbuf %d' % (send.count, receive.count)
        return send.count

    def _receives_all(self, send, receive):
        if send is None or receive is None:
            return send.count if send is not None else receive.count // self.nranks
        if receive.count != send.count * self.nranks:
            return ('recvbuf has %d elements, not the %d of sendbuf times %d ranks'
                    % (receive.count, send.count, self.nranks))
        return send.count

    def _sends_all(self, send, receive):
        if send is None or receive is None:
            return receive.count if receive is not None else send.count // self.nranks
        if send.count != receive.count * self.nranks:
            return ('sendbuf has %d elements, not the %d of recvbuf times %d ranks'
                    % (send.count, receive.count, self.nranks))
        return receive.count

    def _parts(self, send, receive):
        if send.count != receive.count or send.count % self.nranks:
            return ('sendbuf has %d elements and recvbuf %d: both need the same number, a multiple of '
                    '%d ranks' % (send.count, receive.count, self.nranks))
        return send.count // self.nranks

    # ---- collectives and messages

    def allreduce(self, sendbuf, recvbuf, op=NcclRedOp.SUM, *, stream=None):
        """Combines all ranks' sendbuf, element by element, in every rank's recvbuf; both of one size."""
        self._two('ncclAllReduce', sendbuf, recvbuf, self._equal, [op], stream)

    def reduce(self, sendbuf, recvbuf, op=NcclRedOp.SUM, root=None, *, stream=None):
        """As allreduce(), in the recvbuf of rank `root` alone; of all ranks if root is None."""
        if root is None:
            self.allreduce(sendbuf, recvbuf, op, stream=stream)
        else:
            self._two('ncclReduce', sendbuf, recvbuf, self._equal, [op, root], stream,
                      receives=self.rank == root)

    def broadcast(self, sendbuf, recvbuf, root, *, stream=None):
        """Copies sendbuf of rank `root` to every rank's recvbuf, of the same size."""
        self._two('ncclBroadcast', sendbuf, recvbuf, self._equal, [root], stream, sends=self.rank == root)

    def allgather(self, sendbuf, recvbuf, *, stream=None):
        """Puts all ranks' sendbuf, in the order of ranks, into every recvbuf, nranks times as large."""
        self._two('ncclAllGather', sendbuf, recvbuf, self._receives_all, [], stream)

    def reduce_scatter(self, sendbuf, recvbuf, op=NcclRedOp.SUM, *, stream=None):
        """Combines all ranks' sendbuf; part i of the result goes to rank i's recvbuf, 1/nranks as large."""
        self._two('ncclReduceScatter', sendbuf, recvbuf, self._sends_all, [op], stream)

    def alltoall(self, sendbuf, recvbuf, *, stream=None):
        """Part j of rank i's sendbuf becomes part i of rank j's recvbuf; both of one size."""
        self._two('ncclAlltoAll', sendbuf, recvbuf, self._parts, [], stream)

    def gather(self, sendbuf, recvbuf, root, *, stream=None):
        """Puts all ranks' sendbuf, in the order of ranks, into `root`'s recvbuf, nranks times as large."""
        self._two('ncclGather', sendbuf, recvbuf, self._receives_all, [root], stream,
                  receives=self.rank == root)

    def scatter(self, sendbuf, recvbuf, root, *, stream=None):
        """Part i of sendbuf of rank `root`, nranks times as large, goes to rank i's recvbuf."""
        self._two('ncclScatter', sendbuf, recvbuf, self._sends_all, [root], stream, sends=self.rank == root)

    def send(self, sendbuf, peer, *, stream=None):
        """Sends sendbuf to rank `peer`, which receives as much."""
        region = buffers.resolve('sendbuf', sendbuf)
        self._call('ncclSend', (region,), [region], [], [region.count, int(region.dtype), peer], stream)

    def recv(self, recvbuf, peer, *, stream=None):
        """Receives recvbuf from rank `peer`."""
        region = buffers.resolve('recvbuf', recvbuf, True)
        self._call('ncclRecv', (region,), [], [region], [region.count, int(region.dtype), peer], stream)

    # ---- operators

    def create_pre_mul_sum(self, scalar, dtype=NcclDataType.FLOAT32):
        """An operator that adds this rank's input times `scalar`, a number of `dtype`; see CustomRedOp."""
        kinds = {NcclDataType.FLOAT32: ctypes.c_float, NcclDataType.FLOAT64: ctypes.c_double,
                 NcclDataType.INT8: ctypes.c_int8, NcclDataType.UINT8: ctypes.c_uint8,
                 NcclDataType.INT32: ctypes.c_int32, NcclDataType.UINT32: ctypes.c_uint32,
                 NcclDataType.INT64: ctypes.c_int64, NcclDataType.UINT64: ctypes.c_uint64}
        if isinstance(scalar, (bytes, bytearray)):
            value = ctypes.create_string_buffer(bytes(scalar), dtype.itemsize)
        else:
            _require(dtype in kinds, 'create_pre_mul_sum: pass the scalar of %s as bytes', dtype.name)
            value = kinds[dtype](scalar)
        op = ctypes.c_int()
        _library.nccl('ncclRedOpCreatePreMulSum', ctypes.byref(op), ctypes.byref(value), int(dtype),
                      _HOST_IMMEDIATE, self.ptr)
        return CustomRedOp(self, op.value, dtype)

    def destroy_op(self, op):
        """Frees an operator; calls that were made with it keep it."""
        _library.nccl('ncclRedOpDestroy', op.value, self.ptr)
