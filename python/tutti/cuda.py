"""The emulated CUDA runtime, as far as programs in Python need it: devices, streams and device memory.

A device is a rank's place in the emulator; TUTTI_EMU=devices=N sets how many there are (8 by default). Device
memory is memory of this machine, but only copies and collectives may use it before a stream that writes it is
synchronized: a read without an order is reported as an error.
"""
import ctypes

from . import _library
from .types import NcclDataType

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_NON_BLOCKING = 1


class _Attributes(ctypes.Structure):
    """cudaPointerAttributes."""
    _fields_ = [('type', ctypes.c_int), ('device', ctypes.c_int), ('device_pointer', ctypes.c_void_p),
                ('host_pointer', ctypes.c_void_p), ('reserved', ctypes.c_long * 8)]


def device_count():
    """How many devices the emulator has."""
    count = ctypes.c_int()
    _library.cuda('cudaGetDeviceCount', ctypes.byref(count))
    return count.value


def set_device(device):
    """Makes `device` this thread's current one: its communicators, streams and memory are made there."""
    _library.cuda('cudaSetDevice', device)


def current_device():
    """This thread's current device."""
    device = ctypes.c_int()
    _library.cuda('cudaGetDevice', ctypes.byref(device))
    return device.value


def is_device_memory(pointer):
    """True if the address is in memory that the CUDA runtime allocated or registered."""
    attributes = _Attributes()
    _library.cuda('cudaPointerGetAttributes', ctypes.byref(attributes), pointer)
    return attributes.type != 0


class Stream:
    """A stream of the current device that does not wait for the default one."""

    def __init__(self):
        handle = ctypes.c_void_p()
        _library.cuda('cudaStreamCreateWithFlags', ctypes.byref(handle), _NON_BLOCKING)
        self.handle = handle.value

    def synchronize(self):
        """Waits for everything on the stream. CUDAError, with the diagnosis, if that cannot end."""
        _library.cuda('cudaStreamSynchronize', self.handle)

    def query(self):
        """True if everything on the stream has ended."""
        code = _library.cuda_library.cudaStreamQuery(self.handle)
        if code not in (0, _library.CUDA_NOT_READY):
            _library.cuda('cudaStreamSynchronize', self.handle)
        return code == 0

    def close(self):
        """Destroys the stream; its work still ends."""
        handle, self.handle = self.handle, None
        if handle is not None:
            _library.cuda('cudaStreamDestroy', handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def handle_of(stream):
    """The cudaStream_t of a Stream, an object with __cuda_stream__, a number, or None: the default one."""
    if stream is None or isinstance(stream, int):
        return stream
    if isinstance(stream, Stream):
        return stream.handle
    if hasattr(stream, '__cuda_stream__'):
        return stream.__cuda_stream__()[1]
    raise _library.NcclInvalid('stream: a Stream, an object with __cuda_stream__, a number or None; not %r'
                               % type(stream).__name__)


class Buffer:
    """`count` elements of device memory, on the current device, freed with the object or by close()."""

    def __init__(self, count, dtype=NcclDataType.UINT8):
        self.count, self.dtype = count, NcclDataType(dtype)
        pointer = ctypes.c_void_p()
        _library.cuda('cudaMalloc', ctypes.byref(pointer), self.nbytes)
        self.pointer = pointer.value

    @property
    def nbytes(self):
        """Its size in bytes."""
        return self.count * self.dtype.itemsize

    def copy_from(self, pointer, nbytes, stream=None):
        """Copies `nbytes` from host memory at `pointer` in the order of `stream`."""
        _library.cuda('cudaMemcpyAsync', self.pointer, pointer, nbytes, _HOST_TO_DEVICE, handle_of(stream))

    def copy_to(self, pointer, nbytes, stream=None):
        """Copies `nbytes` to host memory at `pointer` in the order of `stream`."""
        _library.cuda('cudaMemcpyAsync', pointer, self.pointer, nbytes, _DEVICE_TO_HOST, handle_of(stream))

    def close(self):
        """Frees the memory, when everything on the device has ended."""
        if self.pointer is not None:
            _library.cuda('cudaFree', self.pointer)
        self.pointer = None

    def __del__(self):
        if getattr(self, 'pointer', None) is not None:
            _library.cuda_library.cudaFree(self.pointer)
