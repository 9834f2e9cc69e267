"""torch_memory.py: memory that PyTorch registers with the library: pools of ncclMemAlloc, registered
pools, windows, symmetric memory, and buffers that the caching allocator frees and reuses. A feature
that the library lacks must return an error and leave the library usable. Run by torch.sh."""
import gc

import torch
import torch.distributed as dist
from torch_common import (DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, last_words, run, same, say,
                          start)


def need_gpus():
    if GLOO:
        raise Skip('GPUs alone')


def backend():
    return dist.group.WORLD._get_backend(DEVICE)


def sums(data, turns=5):
    for turn in range(turns):
        data.fill_(RANK + turn)
        dist.all_reduce(data)
        same(data, torch.full(tuple(data.shape), float(SIZE * turn + SIZE * (SIZE - 1) // 2)))


def reused():
    """The allocator reuses addresses for other tensors, of other sizes, and returns memory to the device."""
    need_gpus()
    for turn in range(60):
        count = (turn * 7919) % 3000000 + 1
        sums(torch.empty(count, device=DEVICE), 1)
        source = torch.full((SIZE * 1000,), float(RANK), device=DEVICE)
        out = torch.empty(SIZE * 1000, device=DEVICE)
        dist.all_to_all_single(out, source)
        same(out, torch.arange(SIZE).repeat_interleave(1000).float())
        if turn % 10 == 9:
            del source, out
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def pool_make():
    if hasattr(backend(), 'mem_allocator'):
        return torch.cuda.MemPool(backend().mem_allocator)
    raise Skip('this PyTorch has no mem_allocator')


def allocator_pool():
    """Tensors in memory of ncclMemAlloc."""
    need_gpus()
    pool = pool_make()
    with torch.cuda.use_mem_pool(pool):
        data = torch.empty(1 << 20, device=DEVICE)
    sums(data)
    del data, pool


def registered_pool(symmetric):
    need_gpus()
    pool = pool_make()
    with torch.cuda.use_mem_pool(pool):
        data = torch.empty(1 << 20, device=DEVICE)
    options = {'symm': True} if symmetric else {}
    try:
        backend().register_mem_pool(pool, **options)
    except TypeError as error:
        raise Skip('register_mem_pool: %s' % error) from error
    sums(data)
    with torch.cuda.use_mem_pool(pool):
        more = torch.empty(1 << 19, device=DEVICE)
    sums(more)
    backend().deregister_mem_pool(pool)
    sums(data)
    del data, more, pool


def refused(name, body):
    """A call that may fail with an error message; later calls must work."""
    try:
        body()
        say('    %s: taken' % name)
    except (RuntimeError, AttributeError, NotImplementedError, ValueError, TypeError) as error:
        say('    %s: refused: %s' % (name, last_words(error)))
    sums(torch.empty(1000, device=DEVICE))


def symmetric_memory():
    """torch.distributed._symmetric_memory with its CUDA backend, beside the library."""
    need_gpus()
    import torch.distributed._symmetric_memory as memory

    def body():
        data = memory.empty(1 << 16, dtype=torch.float32, device=DEVICE)
        handle = memory.rendezvous(data, dist.group.WORLD.group_name)
        data.fill_(RANK)
        handle.barrier()
        peer = (RANK + 1) % SIZE
        same(handle.get_buffer(peer, (1 << 16,), torch.float32), torch.full((1 << 16,), float(peer)))
        handle.barrier()

    refused('symmetric memory by CUDA', body)


def symmetric_memory_nccl():
    """The same with windows of the library, which need its device API."""
    need_gpus()
    import torch.distributed._symmetric_memory as memory
    if not hasattr(memory, 'set_backend'):
        raise Skip('this PyTorch has no backends of symmetric memory')

    def body():
        memory.set_backend('NCCL')
        data = memory.empty(1 << 16, dtype=torch.float32, device=DEVICE)
        memory.rendezvous(data, dist.group.WORLD.group_name)
        sums(data)

    refused('symmetric memory by NCCL', body)


def pinned_views():
    """Slices of a tensor with any offset."""
    need_gpus()
    data = torch.zeros(100000, device=DEVICE)
    for first in (1, 2, 3, 5, 17, 33):
        part = data[first:first + 50001]
        part.fill_(RANK)
        dist.all_reduce(part)
        same(part, torch.full((50001,), SIZE * (SIZE - 1) / 2))


start()
run('the library', check_library)
run('memory used again', reused)
run('unaligned pieces', pinned_views)
run('a pool of ncclMemAlloc', allocator_pool)
run('a registered pool', registered_pool, False)
run('a registered symmetric pool', registered_pool, True)
run('symmetric memory', symmetric_memory)
run('symmetric memory by NCCL', symmetric_memory_nccl)
run('memory used again, at the end', reused)
finish()
