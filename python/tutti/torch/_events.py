"""Points in streams: when an operation has ended."""
import ctypes

from .. import _library

_WITHOUT_TIMES = 2


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
