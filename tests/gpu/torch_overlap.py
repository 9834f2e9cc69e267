"""torch_overlap.py: several communicators on streams of their own, beside matrix products that fill the
GPU, launched in an order that differs between ranks if that is allowed: calls of different
communicators whose kernels need not be on the device at once. Run by torch.sh."""
import random

import torch
import torch.distributed as dist
from torch_common import DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, run, same, start, synchronize

GROUPS, COUNT = 4, 1 << 20


def need_gpus():
    if GLOO:
        raise Skip('GPUs alone')


def streams_make():
    return [torch.cuda.Stream() for _ in range(GROUPS)]


def groups_make():
    """Makes each group's first call, in the same order on all ranks, because it connects the ranks."""
    groups = [dist.new_group(list(range(SIZE))) for _ in range(GROUPS)]
    for group in groups:
        dist.all_reduce(torch.zeros(COUNT, device=DEVICE), group=group)
        dist.broadcast(torch.zeros(COUNT, device=DEVICE), 0, group)
    synchronize()
    return groups


def call(kind, group, data, turn):
    """One collective of `group`, and the expected content of `data`."""
    if kind == 0:
        data.fill_(RANK + turn)
        dist.all_reduce(data, group=group)
        return torch.full((COUNT,), float(SIZE * turn + SIZE * (SIZE - 1) // 2))
    if kind == 1:
        data.fill_(RANK + turn)
        dist.broadcast(data, 0, group)
        return torch.full((COUNT,), float(turn))
    part = COUNT // SIZE
    mine = torch.full((part,), float(RANK + turn), device=DEVICE)
    dist.all_gather_into_tensor(data[:part * SIZE], mine, group=group)
    data[part * SIZE:].zero_()
    wanted = torch.zeros(COUNT)
    wanted[:part * SIZE] = torch.arange(SIZE).repeat_interleave(part) + turn
    return wanted


def turns(groups, streams, order_of, products, count):
    """In each turn every group makes a call on its stream, in the order `order_of(turn)`, while matrix
    products keep all multiprocessors busy on another stream."""
    busy = torch.cuda.Stream()
    left = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    for turn in range(count):
        with torch.cuda.stream(busy):
            for _ in range(products):
                left @ left
        wanted, datas = [None] * GROUPS, [None] * GROUPS
        for index in order_of(turn):
            with torch.cuda.stream(streams[index]):
                datas[index] = torch.empty(COUNT, device=DEVICE)
                wanted[index] = call((turn + index) % 3, groups[index], datas[index], turn)
        for index in range(GROUPS):
            streams[index].synchronize()
            same(datas[index], wanted[index])
    busy.synchronize()


def same_order():
    need_gpus()
    groups = groups_make()
    turns(groups, streams_make(), lambda turn: range(GROUPS), 40, 12)
    for group in groups:
        dist.destroy_process_group(group)


def order_by_turn():
    """The order changes from turn to turn, and is the same on all ranks."""
    need_gpus()
    groups = groups_make()
    turns(groups, streams_make(), lambda turn: random.Random(turn).sample(range(GROUPS), GROUPS), 40, 12)
    for group in groups:
        dist.destroy_process_group(group)


def other_order():
    """Each rank launches in a different order. NCCL does not guarantee that this works; here kernels of four
    groups fit on a GPU at once, so neither library may hang."""
    need_gpus()
    groups = groups_make()
    turns(groups, streams_make(),
          lambda turn: random.Random(100 * turn + RANK).sample(range(GROUPS), GROUPS), 0, 12)
    for group in groups:
        dist.destroy_process_group(group)


def disjoint_groups():
    """Pairs of neighbours, shifted by one each turn: groups overlap, and each rank runs them in sequence."""
    need_gpus()
    if SIZE < 3:
        raise Skip('needs three GPUs')
    pairs = [(rank, (rank + 1) % SIZE) for rank in range(SIZE)]
    groups = [dist.new_group(sorted(pair)) for pair in pairs]
    left = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    for turn in range(20):
        for _ in range(10):
            left @ left
        for pair, group in zip(pairs, groups):
            if RANK in pair:
                data = torch.full((300000,), float(RANK + turn), device=DEVICE)
                dist.all_reduce(data, group=group)
                same(data, torch.full((300000,), float(sum(pair) + 2 * turn)))


def behind_compute():
    """On one rank a collective waits on its stream for a long product; meanwhile the other ranks' kernels
    spin beside their own products."""
    need_gpus()
    left = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    data = torch.empty(COUNT, device=DEVICE)
    for turn in range(8):
        if turn % SIZE == RANK:
            for _ in range(60):
                left @ left
        data.fill_(RANK + turn)
        work = dist.all_reduce(data, async_op=True)
        for _ in range(20):
            left @ left
        work.wait()
        same(data, torch.full((COUNT,), float(SIZE * turn + SIZE * (SIZE - 1) // 2)))


start()
run('the library', check_library)
run('four groups beside products, one order', same_order)
run('four groups beside products, one order per turn', order_by_turn)
run('four groups, one order per rank', other_order)
run('groups that overlap', disjoint_groups)
run('after a rank that computes', behind_compute)
finish()
