"""torch_ctypes.py: the library through ctypes, as serving engines load it: by the name libnccl.so.2, with
PyTorch's tensors and streams, the unique id broadcast over gloo, windows if available, and
everything captured into CUDA graphs. TUTTI_TEST_SO is the name or path of another library to load. Run by
torch.sh."""
import ctypes
import os

import torch
import torch.distributed as dist
from torch_common import DEVICE, GLOO, LOCAL, RANK, SIZE, Skip, check_library, finish, run, same, say

TYPES = {torch.int8: 0, torch.uint8: 1, torch.int32: 2, torch.int64: 4, torch.float16: 6, torch.float32: 7,
         torch.float64: 8, torch.bfloat16: 9}
SUM, PRODUCT, MAX, MIN, AVG = range(5)


class UniqueId(ctypes.Structure):
    """Passed by value."""
    _fields_ = [('internal', ctypes.c_byte * 128)]


POINTER, SIZE_T, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
SIGNATURES = {
    'ncclGetVersion': [POINTER], 'ncclGetUniqueId': [POINTER],
    'ncclCommInitRank': [POINTER, INT, UniqueId, INT],
    'ncclAllReduce': [POINTER, POINTER, SIZE_T, INT, INT, POINTER, POINTER],
    'ncclReduce': [POINTER, POINTER, SIZE_T, INT, INT, INT, POINTER, POINTER],
    'ncclAllGather': [POINTER, POINTER, SIZE_T, INT, POINTER, POINTER],
    'ncclReduceScatter': [POINTER, POINTER, SIZE_T, INT, INT, POINTER, POINTER],
    'ncclSend': [POINTER, SIZE_T, INT, INT, POINTER, POINTER],
    'ncclRecv': [POINTER, SIZE_T, INT, INT, POINTER, POINTER],
    'ncclBroadcast': [POINTER, POINTER, SIZE_T, INT, INT, POINTER, POINTER],
    'ncclCommDestroy': [POINTER], 'ncclCommAbort': [POINTER], 'ncclGroupStart': [], 'ncclGroupEnd': [],
    'ncclCommWindowRegister': [POINTER, POINTER, SIZE_T, POINTER, INT],
    'ncclCommWindowDeregister': [POINTER, POINTER], 'ncclMemAlloc': [POINTER, SIZE_T],
    'ncclMemFree': [POINTER],
    'ncclCommRegister': [POINTER, POINTER, SIZE_T, POINTER], 'ncclCommDeregister': [POINTER, POINTER],
    'ncclCommCount': [POINTER, POINTER], 'ncclCommUserRank': [POINTER, POINTER],
    'ncclCommGetAsyncError': [POINTER, POINTER], 'ncclDevCommCreate': [POINTER, POINTER, POINTER],
}


class Library:
    """Checks the result of every call."""

    def __init__(self, name):
        self.so = ctypes.CDLL(name)
        self.so.ncclGetErrorString.restype = self.so.ncclGetLastError.restype = ctypes.c_char_p
        self.so.ncclGetLastError.argtypes = [POINTER]
        for function, arguments in SIGNATURES.items():
            getattr(self.so, function).argtypes = arguments
            getattr(self.so, function).restype = INT

    def __getattr__(self, name):
        function = getattr(self.so, name)

        def call(*arguments):
            code = function(*arguments)
            if code != 0:
                raise RuntimeError('%s: %s: %s' % (name, self.so.ncclGetErrorString(code).decode(),
                                                   self.so.ncclGetLastError(None).decode()))
        return call


class Communicator:
    """Like an engine's wrapper: calls on tensors and the current stream."""

    def __init__(self, library):
        ident = UniqueId()
        if RANK == 0:
            library.ncclGetUniqueId(ctypes.byref(ident))
        text = torch.frombuffer(bytearray(bytes(ident)), dtype=torch.uint8).clone()
        dist.broadcast(text, 0)
        ctypes.memmove(ctypes.byref(ident), bytes(text.tolist()), 128)
        self.nccl, self.comm = library, ctypes.c_void_p()
        library.ncclCommInitRank(ctypes.byref(self.comm), SIZE, ident, RANK)
        self.all_reduce(torch.zeros(1, device=DEVICE))
        torch.cuda.synchronize()

    @staticmethod
    def stream():
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def all_reduce(self, data, op=SUM):
        out = torch.empty_like(data)
        self.nccl.ncclAllReduce(data.data_ptr(), out.data_ptr(), data.numel(), TYPES[data.dtype], op,
                                self.comm, self.stream())
        return out

    def all_gather(self, out, data):
        self.nccl.ncclAllGather(data.data_ptr(), out.data_ptr(), data.numel(), TYPES[data.dtype], self.comm,
                                self.stream())

    def reduce_scatter(self, out, data, op=SUM):
        self.nccl.ncclReduceScatter(data.data_ptr(), out.data_ptr(), out.numel(), TYPES[data.dtype], op,
                                    self.comm, self.stream())

    def broadcast(self, data, root):
        self.nccl.ncclBroadcast(data.data_ptr(), data.data_ptr(), data.numel(), TYPES[data.dtype], root,
                                self.comm, self.stream())

    def pass_on(self, out, data):
        """Around the ring, in one group."""
        self.nccl.ncclGroupStart()
        self.nccl.ncclSend(data.data_ptr(), data.numel(), TYPES[data.dtype], (RANK + 1) % SIZE, self.comm,
                           self.stream())
        self.nccl.ncclRecv(out.data_ptr(), out.numel(), TYPES[out.dtype], (RANK - 1) % SIZE, self.comm,
                           self.stream())
        self.nccl.ncclGroupEnd()

    def close(self):
        self.nccl.ncclCommDestroy(self.comm)


def ramp(first, count, dtype=torch.float32):
    return (torch.arange(count, device=DEVICE) % 13 + first).to(dtype)


def version(library):
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    assert 22000 <= number.value < 30000, number.value
    say('    version %d' % number.value)


def each_call(comm):
    for dtype in TYPES:
        wanted = sum(ramp(rank, 1000).cpu() for rank in range(SIZE)).to(dtype)
        same(comm.all_reduce(ramp(RANK, 1000, dtype)), wanted)
        whole = torch.empty(1000 * SIZE, dtype=dtype, device=DEVICE)
        comm.all_gather(whole, ramp(RANK, 1000, dtype))
        same(whole, torch.cat([ramp(rank, 1000, dtype).cpu() for rank in range(SIZE)]))
        part = torch.empty(1000, dtype=dtype, device=DEVICE)
        comm.reduce_scatter(part, torch.cat([ramp(RANK + to, 1000, dtype) for to in range(SIZE)]))
        same(part, sum(ramp(rank + RANK, 1000).cpu() for rank in range(SIZE)).to(dtype))
        data = ramp(RANK, 1000, dtype)
        comm.broadcast(data, SIZE - 1)
        same(data, ramp(SIZE - 1, 1000, dtype).cpu())
        comm.pass_on(part, ramp(RANK, 1000, dtype))
        same(part, ramp((RANK - 1) % SIZE, 1000, dtype).cpu())


def captured(comm):
    """Graphs of several sizes share one pool, as an engine captures them for each batch size."""
    graphs, datas, outs, pool = [], [], [], None
    for count in (1 << 20, 65536, 8192, 1024, 64):
        data = torch.zeros(count, dtype=torch.bfloat16, device=DEVICE)
        comm.all_reduce(data)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outs.append(comm.all_reduce(comm.all_reduce(data)))
        pool = graph.pool()
        graphs.append(graph)
        datas.append(data)
    for turn in range(20):
        for graph, data, out in zip(graphs, datas, outs):
            data.fill_(turn % 4 + 1)
            graph.replay()
            same(out, torch.full((data.numel(),), (turn % 4 + 1) * SIZE * SIZE).to(torch.bfloat16))
    del graphs


def windows(comm):
    """A window or none, because libraries differ: other calls work in either case."""
    memory, window = ctypes.c_void_p(), ctypes.c_void_p()
    comm.nccl.ncclMemAlloc(ctypes.byref(memory), 1 << 20)
    try:
        comm.nccl.ncclCommWindowRegister(comm.comm, memory, 1 << 20, ctypes.byref(window), 1)
        say('    window: %s' % ('made' if window.value else 'taken, and none made'))
        stream = comm.stream()
        comm.nccl.ncclAllReduce(memory, memory, 1000, TYPES[torch.float32], SUM, comm.comm, stream)
        torch.cuda.synchronize()
        comm.nccl.ncclCommWindowDeregister(comm.comm, window)
    except RuntimeError as error:
        say('    window: refused: %s' % error)
    handle = ctypes.c_void_p()
    comm.nccl.ncclCommRegister(comm.comm, memory, 1 << 20, ctypes.byref(handle))
    comm.nccl.ncclAllReduce(memory, memory, 1 << 18, TYPES[torch.float32], SUM, comm.comm, comm.stream())
    torch.cuda.synchronize()
    comm.nccl.ncclCommDeregister(comm.comm, handle)
    comm.nccl.ncclMemFree(memory)
    each_call(comm)


def device_side(comm):
    """This library has no device API, and reports so."""
    if os.environ.get('TUTTI_TEST_LIBRARY') != 'tutti':
        raise Skip('ours alone')
    try:
        comm.nccl.ncclDevCommCreate(comm.comm, None, None)
    except RuntimeError as error:
        assert 'ncclDevCommCreate' in str(error), error
        each_call(comm)
        return
    raise AssertionError('ncclDevCommCreate succeeded')


def two_communicators(library):
    first, second = Communicator(library), Communicator(library)
    for turn in range(10):
        same(first.all_reduce(ramp(turn, 5000)), (ramp(turn, 5000) * SIZE).cpu())
        same(second.all_reduce(ramp(turn + 1, 5000)), (ramp(turn + 1, 5000) * SIZE).cpu())
    first.close()
    same(second.all_reduce(ramp(1, 5000)), (ramp(1, 5000) * SIZE).cpu())
    second.close()


def main():
    dist.init_process_group('gloo')
    if GLOO:
        Library(os.environ.get('TUTTI_TEST_SO', 'libnccl.so.2'))
        say('ok - ctypes: every symbol is there')
        return
    torch.cuda.set_device(LOCAL)
    library = Library(os.environ.get('TUTTI_TEST_SO', 'libnccl.so.2'))
    run('ctypes: the library', check_library)
    run('ctypes: the version', version, library)
    comm = Communicator(library)
    run('ctypes: each call', each_call, comm)
    run('ctypes: captured', captured, comm)
    run('ctypes: windows', windows, comm)
    run('ctypes: the device side', device_side, comm)
    run('ctypes: two communicators', two_communicators, library)
    run('ctypes: destroy', comm.close)


main()
finish()
