"""Makes the memory of tensors known to the emulator while operations use it, as a GPU maps pinned memory."""
import ctypes
import threading

from .. import _library, cuda

_PORTABLE = 1
_WITHOUT_TIMES = 2
_lock = threading.Lock()
_used = {}  # address of a storage -> [bytes, uses]


def _register(pointer, nbytes):
    return _library.cuda_library.cudaHostRegister(pointer, nbytes, _PORTABLE) == 0


def hold(tensor):
    """Makes the tensor's memory known until release(); a key for it. None: it overlaps other known memory."""
    storage = tensor.untyped_storage()
    pointer, nbytes = storage.data_ptr(), storage.nbytes()
    if nbytes == 0:
        return 0
    with _lock:
        entry = _used.get(pointer)
        if entry is None:
            if cuda.is_device_memory(pointer) or not _register(pointer, nbytes):
                return None
            entry = _used[pointer] = [nbytes, 0]
        elif entry[0] < nbytes:
            return None
        entry[1] += 1
    return pointer


def release(keys):
    """The operations that used these tensors have ended."""
    with _lock:
        for pointer in keys:
            if pointer == 0:
                continue
            entry = _used[pointer]
            entry[1] -= 1
            if entry[1] == 0:
                del _used[pointer]
                _library.cuda_library.cudaHostUnregister(pointer)  # also after a failure of the device


class Events:
    """Points in the streams of one device, cudaEvent_t without times, which are used again."""

    def __init__(self):
        self._free = []

    def record(self, stream):
        """A cudaEvent_t behind everything that is on the stream now."""
        if self._free:
            event = self._free.pop()
        else:
            event = ctypes.c_void_p()
            _library.cuda('cudaEventCreateWithFlags', ctypes.byref(event), _WITHOUT_TIMES)
        _library.cuda('cudaEventRecord', event, stream.handle)
        return event

    def reuse(self, event):
        """The caller no longer needs this event."""
        self._free.append(event)

    def close(self):
        """Destroys the events that are not in use."""
        while self._free:
            _library.cuda_library.cudaEventDestroy(self._free.pop())


def has_passed(event):
    """True if its stream has come to the event, also by a failure."""
    return _library.cuda_library.cudaEventQuery(event) != _library.CUDA_NOT_READY


def wait_for(event):
    """Waits until its stream comes to the event. CUDAError if it cannot."""
    _library.cuda('cudaEventSynchronize', event)
