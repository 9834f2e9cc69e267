"""Data types and operators, with NCCL's names and values."""
import enum


class NcclDataType(enum.IntEnum):
    """ncclDataType_t."""
    (INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3,
     FLOAT8E5M2) = range(12)

    @property
    def itemsize(self):
        """Bytes of an element."""
        return (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)[self]


class NcclRedOp(enum.IntEnum):
    """ncclRedOp_t; AVG divides the sum by the number of ranks."""
    SUM, PROD, MAX, MIN, AVG = range(5)


SUM, PROD, MAX, MIN, AVG = NcclRedOp
