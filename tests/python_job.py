"""python_job.py: two ranks, a thread each, which call the library from Python. Rank 1 leaves its third call
out.

  LIBRARIES=build/lib python_job.py CDLL|PyDLL     without or with the GIL held during calls"""
import ctypes
import os
import sys
import threading

RANKS, FLOAT, SUM = 2, 7, 0
library = getattr(ctypes, sys.argv[1])
cuda = library(os.environ['LIBRARIES'] + '/libtutti-cudart.so', mode=ctypes.RTLD_GLOBAL)
nccl = library(os.environ['LIBRARIES'] + '/libnccl.so.2')
comms = (ctypes.c_void_p * RANKS)()


def must(result):
    if result != 0:
        os._exit(2)


def prepare(rank):
    buffer, stream = ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cudaSetDevice(rank))
    must(cuda.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(4096)))
    must(cuda.cudaStreamCreate(ctypes.byref(stream)))
    return buffer, stream


def step(rank, buffer, stream):
    comm = ctypes.c_void_p(comms[rank])
    must(nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(64), FLOAT, SUM, comm, stream))


def train(rank):
    buffer, stream = prepare(rank)
    for _ in range(3 - rank):
        step(rank, buffer, stream)
    if library is ctypes.CDLL:  # else the other thread cannot run
        cuda.cudaStreamSynchronize(stream)


must(nccl.ncclCommInitAll(comms, RANKS, None))
threads = [threading.Thread(target=train, args=(rank,)) for rank in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os._exit(3)
