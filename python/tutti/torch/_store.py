"""The store of ranks that are threads of one process: its waits are the emulator's, so the others go on."""
import ctypes
import threading

import torch.distributed as dist

from .. import _library


class Store(dist.Store):
    """Keys and values of one job."""

    def __init__(self):
        super().__init__()
        self._values, self._lock, self._changes = {}, threading.Lock(), ctypes.c_uint32(0)
        self._ready, self._begins = ctypes.c_uint32(0), ctypes.c_uint32(0)

    def _changed(self):
        self._changes.value = (self._changes.value + 1) & 0xffffffff
        _library.nccl_library.tutti_emu_wake()

    def set(self, key, value):
        """Sets the value."""
        with self._lock:
            self._values[key] = value if isinstance(value, bytes) else bytes(value, 'utf-8')
            self._changed()

    def get(self, key):
        """The value, once there is one."""
        self.wait([key])
        return self._values[key]

    def add(self, key, amount):
        """Adds to a number; the sum."""
        with self._lock:
            total = int(self._values.get(key, b'0')) + amount
            self._values[key] = b'%d' % total
            self._changed()
            return total

    def compare_set(self, key, expected, desired):
        """Sets the value if it is as expected, or there is none and nothing is expected; what it is then."""
        with self._lock:
            now = self._values.get(key)
            if now == expected or (now is None and expected in (b'', '')):
                self._values[key] = now = desired if isinstance(desired, bytes) else bytes(desired, 'utf-8')
                self._changed()
            return now if now is not None else expected

    def check(self, keys):
        """True if all have values."""
        return all(key in self._values for key in keys)

    def delete_key(self, key):
        """True if there was a value."""
        with self._lock:
            return self._values.pop(key, None) is not None

    def num_keys(self):
        """How many there are."""
        return len(self._values)

    def wait(self, keys, timeout=None):
        """Waits until all have values; DistStoreError if nothing is left that could set them."""
        while True:
            before = self._changes.value
            if self.check(keys):
                return
            if _library.nccl_library.tutti_emu_wait(ctypes.byref(self._changes), before) != 0:
                raise dist.DistStoreError('waiting for %s: %s' % (', '.join(keys), _library.last_sentence()))

    def line_up(self, rank, size):
        """Returns when all ranks have called; as they take turns, they begin in one order in every run."""
        calls = _library.nccl_library
        while self._ready.value < rank:
            calls.tutti_emu_wait(ctypes.byref(self._ready), self._ready.value)
        self._ready.value = rank + 1
        self._begins.value = rank + 1 == size
        calls.tutti_emu_wake()
        calls.tutti_emu_wait(ctypes.byref(self._begins), 0)
