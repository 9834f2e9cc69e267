"""tutti: NCCL's collectives without GPUs, from Python.

The names are those of NVIDIA's Python interface to NCCL (nccl4py): Communicator, get_unique_id(), group().
tutti.cuda has the emulated devices, streams and memory; tutti.torch a backend for torch.distributed.
"""
from . import cuda
from ._library import CUDAError, NCCLError, NcclInvalid
from .core import (Communicator, CustomRedOp, NCCLConfig, UniqueId, get_unique_id, get_version, group)
from .types import AVG, MAX, MIN, PROD, SUM, NcclDataType, NcclRedOp

__all__ = ['AVG', 'CUDAError', 'Communicator', 'CustomRedOp', 'MAX', 'MIN', 'NCCLConfig', 'NCCLError',
           'NcclDataType', 'NcclInvalid', 'NcclRedOp', 'PROD', 'SUM', 'UniqueId', 'cuda', 'get_unique_id',
           'get_version', 'group']
