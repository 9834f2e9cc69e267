"""How tensors and operators of PyTorch are NCCL's."""
import functools

import torch
import torch.distributed as dist

from ..types import NcclDataType, NcclRedOp

_T = NcclDataType
_TYPES = {torch.int8: _T.INT8, torch.uint8: _T.UINT8, torch.bool: _T.UINT8, torch.int32: _T.INT32,
          torch.uint32: _T.UINT32, torch.int64: _T.INT64, torch.uint64: _T.UINT64,
          torch.float16: _T.FLOAT16, torch.float32: _T.FLOAT32, torch.float64: _T.FLOAT64,
          torch.bfloat16: _T.BFLOAT16, torch.float8_e4m3fn: _T.FLOAT8E4M3,
          torch.float8_e5m2: _T.FLOAT8E5M2}
TYPES = {dtype: int(number) for dtype, number in _TYPES.items()}
BYTES = int(_T.UINT8)
_OP = dist.ReduceOp.RedOpType
_OPERATORS = {_OP.SUM: NcclRedOp.SUM, _OP.PRODUCT: NcclRedOp.PROD, _OP.MAX: NcclRedOp.MAX,
              _OP.MIN: NcclRedOp.MIN, _OP.AVG: NcclRedOp.AVG}
OPERATORS = {op: int(number) for op, number in _OPERATORS.items()}
# Sums of bools are "any", products "all", as elsewhere in PyTorch.
_OF_BOOLS = {_OP.SUM: int(NcclRedOp.MAX), _OP.BOR: int(NcclRedOp.MAX), _OP.MAX: int(NcclRedOp.MAX),
             _OP.PRODUCT: int(NcclRedOp.MIN), _OP.BAND: int(NcclRedOp.MIN), _OP.MIN: int(NcclRedOp.MIN)}
_BITS = {_OP.BAND: torch.bitwise_and, _OP.BOR: torch.bitwise_or, _OP.BXOR: torch.bitwise_xor}


def moved(tensor):
    """(address, elements, type) for calls that only move; elements that NCCL has no type for are bytes."""
    number = TYPES.get(tensor.dtype)
    if number is None:
        return tensor.data_ptr(), tensor.numel() * tensor.element_size(), BYTES
    return tensor.data_ptr(), tensor.numel(), number


def kind_of(op):
    """The RedOpType of what torch.distributed passes as an operator."""
    return op.op if isinstance(op, dist.ReduceOp) else op


def fold_of(op, dtype):
    """The function of two tensors for an operator that NCCL does not have; None: it has it."""
    kind = kind_of(op)
    if kind not in _BITS or (dtype == torch.bool and kind in _OF_BOOLS):
        return None
    if dtype.is_floating_point or dtype.is_complex:
        raise TypeError('%s of %s: only integers and bools have bits' % (kind.name, dtype))
    return functools.partial(functools.reduce, _BITS[kind])


def reduced(call, tensor, op):
    """(view, type, operator) for a reduction; no operator for PREMUL_SUM. TypeError: NCCL has none."""
    kind = kind_of(op)
    if tensor.dtype.is_complex and kind in (_OP.SUM, _OP.AVG, _OP.PREMUL_SUM):
        tensor = torch.view_as_real(tensor)
    number = TYPES.get(tensor.dtype)
    operator = _OF_BOOLS.get(kind) if tensor.dtype == torch.bool else OPERATORS.get(kind)
    if number is None or (operator is None and (kind != _OP.PREMUL_SUM or tensor.dtype == torch.bool)):
        raise TypeError('%s: NCCL has no %s of %s' % (call, kind.name, tensor.dtype))
    return tensor, number, operator
