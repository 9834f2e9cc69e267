"""Finds and loads the two shared libraries, and turns their error codes into exceptions.

`libnccl.so.2` has NCCL's calls; `libtutti-cudart.so` has the emulated CUDA runtime: devices, streams and
memory without a GPU. They are looked for in the folder that TUTTI_LIBRARY_PATH names; without it in the
package (`lib`, where a wheel has them), then in the build folder of a source tree.
"""
import ctypes
import os
import pathlib

POINTER, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
UNIQUE_ID_BYTES = 128


class UniqueIdBytes(ctypes.Structure):
    """ncclUniqueId, which calls take by value."""
    _fields_ = [('internal', ctypes.c_byte * UNIQUE_ID_BYTES)]


NCCL_CALLS = {
    'ncclGetVersion': [POINTER], 'ncclGetUniqueId': [POINTER],
    'ncclCommInitRankConfig': [POINTER, INT, UniqueIdBytes, INT, POINTER],
    'ncclCommInitAll': [POINTER, INT, POINTER], 'ncclCommFinalize': [POINTER],
    'ncclCommDestroy': [POINTER], 'ncclCommAbort': [POINTER], 'ncclCommGetAsyncError': [POINTER, POINTER],
    'ncclCommSplit': [POINTER, INT, INT, POINTER, POINTER],
    'ncclCommShrink': [POINTER, POINTER, INT, POINTER, POINTER, INT],
    'ncclCommCount': [POINTER, POINTER], 'ncclCommUserRank': [POINTER, POINTER],
    'ncclCommCuDevice': [POINTER, POINTER],
    'ncclRedOpCreatePreMulSum': [POINTER, POINTER, INT, INT, POINTER], 'ncclRedOpDestroy': [INT, POINTER],
    'ncclAllReduce': [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclReduce': [POINTER, POINTER, SIZE, INT, INT, INT, POINTER, POINTER],
    'ncclBroadcast': [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclAllGather': [POINTER, POINTER, SIZE, INT, POINTER, POINTER],
    'ncclReduceScatter': [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclAlltoAll': [POINTER, POINTER, SIZE, INT, POINTER, POINTER],
    'ncclGather': [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclScatter': [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclSend': [POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclRecv': [POINTER, SIZE, INT, INT, POINTER, POINTER],
    'ncclGroupStart': [], 'ncclGroupEnd': [],
}

CUDA_CALLS = {
    'cudaGetDeviceCount': [POINTER], 'cudaSetDevice': [INT], 'cudaGetDevice': [POINTER],
    'cudaMalloc': [POINTER, SIZE], 'cudaFree': [POINTER],
    'cudaMemcpy': [POINTER, POINTER, SIZE, INT], 'cudaMemcpyAsync': [POINTER, POINTER, SIZE, INT, POINTER],
    'cudaStreamCreateWithFlags': [POINTER, INT], 'cudaStreamDestroy': [POINTER],
    'cudaStreamSynchronize': [POINTER], 'cudaStreamQuery': [POINTER],
    'cudaEventCreateWithFlags': [POINTER, ctypes.c_uint], 'cudaEventRecord': [POINTER, POINTER],
    'cudaEventSynchronize': [POINTER], 'cudaEventQuery': [POINTER], 'cudaEventDestroy': [POINTER],
    'cudaPointerGetAttributes': [POINTER, POINTER],
}
CUDA_NOT_READY = 600
NCCL_IN_PROGRESS = 7


class NCCLError(RuntimeError):
    """A call of NCCL failed. `code` is its ncclResult_t; the text is the library's own sentence."""

    def __init__(self, call, code, sentence):
        super().__init__('%s: %s' % (call, sentence))
        self.call, self.code = call, code


class CUDAError(RuntimeError):
    """A call of the CUDA runtime failed. `code` is its cudaError_t."""

    def __init__(self, call, code, sentence):
        super().__init__('%s: %s' % (call, sentence))
        self.call, self.code = call, code


class NcclInvalid(ValueError):
    """An argument that the Python layer refuses: a wrong type, shape, root or number of elements."""


class EmulatorConfig(ctypes.Structure):
    """tutti_emu_config_t; 0 keeps what the environment says."""
    _fields_ = [('size', SIZE), ('seed', ctypes.c_uint64), ('threads', INT),
                *((name, ctypes.c_uint32)
                  for name in ('device_count', 'slots', 'chunk_bytes', 'channel_count', 'flag_bits', 'depth',
                               'lag_percent')),
                ('trace_path', ctypes.c_char_p)]


class EmulatorStats(ctypes.Structure):
    """tutti_emu_stats_t."""
    _fields_ = [('size', SIZE), ('events', ctypes.c_uint64), ('steps', ctypes.c_uint64),
                ('trace_hash', ctypes.c_uint64)]


def restart(seed=0, device_count=0, events=None):
    """Begins the emulator anew, as in a new process. NCCLError: a communicator or a stream is in use."""
    config = EmulatorConfig(size=ctypes.sizeof(EmulatorConfig), seed=seed, device_count=device_count,
                            trace_path=os.fsencode(events) if events is not None else None)
    nccl('tutti_emu_configure', ctypes.byref(config))


def _folders():
    own = os.environ.get('TUTTI_LIBRARY_PATH')
    here = pathlib.Path(__file__).resolve().parent
    return [pathlib.Path(own)] if own else [here / 'lib', here.parents[1] / 'build' / 'lib']


def folder():
    """The folder with the libraries. ImportError if no place has them."""
    for place in _folders():
        if (place / 'libnccl.so.2').exists():
            return place
    raise ImportError('libnccl.so.2 is in none of %s: set TUTTI_LIBRARY_PATH to the folder that has it'
                      % ', '.join(str(place) for place in _folders()))


def _declare(library, calls):
    for name, arguments in calls.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, INT


_place = folder()
nccl_library = ctypes.CDLL(str(_place / 'libnccl.so.2'), mode=ctypes.RTLD_GLOBAL)
cuda_library = ctypes.CDLL(str(_place / 'libtutti-cudart.so'))
_declare(nccl_library, NCCL_CALLS)
_declare(cuda_library, CUDA_CALLS)
nccl_library.ncclGetLastError.argtypes, nccl_library.ncclGetLastError.restype = [POINTER], ctypes.c_char_p
nccl_library.tutti_emu_callers.argtypes = [ctypes.c_uint32]
nccl_library.tutti_emu_configure.argtypes = [POINTER]
nccl_library.tutti_emu_wait.argtypes = [POINTER, ctypes.c_uint32]
nccl_library.tutti_emu_poll.argtypes = [POINTER, ctypes.c_uint32]
nccl_library.tutti_emu_stats.argtypes = [POINTER]
nccl_library.ncclGetErrorString.argtypes, nccl_library.ncclGetErrorString.restype = [INT], ctypes.c_char_p
cuda_library.cudaGetErrorString.argtypes, cuda_library.cudaGetErrorString.restype = [INT], ctypes.c_char_p


def last_sentence():
    """The first line of what the library says of its last error, or ''."""
    text = nccl_library.ncclGetLastError(None)
    return text.decode(errors='replace').strip() if text else ''


def nccl(call, *arguments):
    """Calls NCCL; NCCLError unless it succeeds or is in progress."""
    code = getattr(nccl_library, call)(*arguments)
    if code not in (0, NCCL_IN_PROGRESS):
        raise NCCLError(call, code, last_sentence() or nccl_library.ncclGetErrorString(code).decode())
    return code


def cuda(call, *arguments):
    """Calls the CUDA runtime; CUDAError unless it succeeds."""
    code = getattr(cuda_library, call)(*arguments)
    if code != 0:
        text = cuda_library.cudaGetErrorString(code).decode()
        sentence = last_sentence()
        raise CUDAError(call, code, '%s: %s' % (text, sentence) if sentence else text)
