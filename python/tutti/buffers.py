"""What a call gets as a buffer: device memory, or any array of the host.

Accepted are tutti.cuda.Buffer, and objects with `__array_interface__` (NumPy), `__dlpack__` (PyTorch, JAX)
or the buffer protocol (bytearray, array, memoryview). Their elements must lie in one piece.
"""
import ctypes

from . import cuda
from ._library import NcclInvalid
from .types import NcclDataType

_T = NcclDataType
_BY_ARRAY = {'i1': _T.INT8, 'u1': _T.UINT8, 'b1': _T.UINT8, 'i4': _T.INT32, 'u4': _T.UINT32, 'i8': _T.INT64,
             'u8': _T.UINT64, 'f2': _T.FLOAT16, 'f4': _T.FLOAT32, 'f8': _T.FLOAT64}
_BY_FORMAT = {'b': _T.INT8, 'B': _T.UINT8, 'c': _T.UINT8, '?': _T.UINT8, 'i': _T.INT32, 'I': _T.UINT32,
              'l': _T.INT64, 'L': _T.UINT64, 'q': _T.INT64, 'Q': _T.UINT64, 'e': _T.FLOAT16, 'f': _T.FLOAT32,
              'd': _T.FLOAT64}
_BY_DLPACK = {(0, 8): _T.INT8, (1, 8): _T.UINT8, (6, 8): _T.UINT8, (0, 32): _T.INT32, (1, 32): _T.UINT32,
              (0, 64): _T.INT64, (1, 64): _T.UINT64, (2, 16): _T.FLOAT16, (2, 32): _T.FLOAT32,
              (2, 64): _T.FLOAT64, (4, 16): _T.BFLOAT16, (10, 8): _T.FLOAT8E4M3, (12, 8): _T.FLOAT8E5M2}


class Region:
    """`count` elements of `dtype` at `pointer`; `owner` keeps them alive."""

    def __init__(self, pointer, count, dtype, writable, owner):
        self.pointer, self.count, self.dtype = pointer, count, dtype
        self.writable, self.owner = writable, owner

    @property
    def nbytes(self):
        """Its size in bytes."""
        return self.count * self.dtype.itemsize

    @property
    def on_host(self):
        """True for memory that is not the device's, which a call copies."""
        return self.count > 0 and not cuda.is_device_memory(self.pointer)


class _DLTensor(ctypes.Structure):
    """DLPack's DLTensor."""
    _fields_ = [('data', ctypes.c_void_p), ('device_type', ctypes.c_int32), ('device_id', ctypes.c_int32),
                ('ndim', ctypes.c_int32), ('code', ctypes.c_uint8), ('bits', ctypes.c_uint8),
                ('lanes', ctypes.c_uint16), ('shape', ctypes.POINTER(ctypes.c_int64)),
                ('strides', ctypes.POINTER(ctypes.c_int64)), ('byte_offset', ctypes.c_uint64)]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _is_packed(shape, strides, unit):
    """True if the elements lie in one piece, in the order of C; strides and unit are in the same measure."""
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != unit:
            return False
        unit *= extent
    return True


def _product(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def _refuse_gaps(what):
    raise NcclInvalid('%s: its elements do not lie in one piece; pass a contiguous copy' % what)


def _from_array(what, value):
    described = value.__array_interface__
    name = described['typestr']
    if name[1:] not in _BY_ARRAY or name[0] == '>':
        raise NcclInvalid('%s: NCCL has no type for elements %r' % (what, name))
    dtype, shape = _BY_ARRAY[name[1:]], described['shape']
    strides = described.get('strides')
    if strides is not None and _product(shape) and not _is_packed(shape, strides, dtype.itemsize):
        _refuse_gaps(what)
    pointer, read_only = described['data']
    return Region(pointer, _product(shape), dtype, not read_only, value)


def _from_dlpack(what, value):
    if value.__dlpack_device__()[0] != 1:
        raise NcclInvalid('%s: an array of device %r; the emulator takes arrays of the CPU'
                          % (what, value.__dlpack_device__()))
    capsule = value.__dlpack__()
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b'dltensor'))
    dtype = _BY_DLPACK.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise NcclInvalid('%s: NCCL has no type for DLPack code %d of %d bits'
                          % (what, tensor.code, tensor.bits))
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    if tensor.strides and _product(shape):
        strides = [tensor.strides[i] for i in range(tensor.ndim)]
        if not _is_packed(shape, strides, 1):
            _refuse_gaps(what)
    return Region((tensor.data or 0) + tensor.byte_offset, _product(shape), dtype, True, (value, capsule))


def _from_bytes(what, value):
    try:
        view = memoryview(value)
    except TypeError:
        raise NcclInvalid('%s: a tutti.cuda.Buffer, or an array with __array_interface__, __dlpack__ or the '
                          'buffer protocol; not %r' % (what, type(value).__name__)) from None
    if not view.c_contiguous:
        _refuse_gaps(what)
    dtype = _BY_FORMAT.get(view.format.lstrip('@=<'))
    if dtype is None or dtype.itemsize != view.itemsize:
        raise NcclInvalid('%s: NCCL has no type for elements %r' % (what, view.format))
    count = view.nbytes // view.itemsize
    if view.readonly:
        copy = ctypes.create_string_buffer(view.tobytes(), max(view.nbytes, 1))
        return Region(ctypes.addressof(copy), count, dtype, False, copy)
    whole = (ctypes.c_char * view.nbytes).from_buffer(view.cast('B') if view.nbytes else bytearray(1))
    return Region(ctypes.addressof(whole), count, dtype, True, whole)


def resolve(what, value, written=False):
    """The Region of a call's argument `what`. NcclInvalid: no buffer, with gaps, or read-only and written."""
    if isinstance(value, cuda.Buffer):
        return Region(value.pointer, value.count, value.dtype, True, value)
    if hasattr(value, '__array_interface__'):
        region = _from_array(what, value)
    elif hasattr(value, '__dlpack__'):
        region = _from_dlpack(what, value)
    else:
        region = _from_bytes(what, value)
    if written and not region.writable:
        raise NcclInvalid('%s: it is read-only, and the call writes it' % what)
    return region
