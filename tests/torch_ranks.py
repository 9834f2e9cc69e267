"""torch_ranks.py: the backend "tutti" of torch.distributed.

    torch_ranks.py CASE...  runs cases, on the ranks of torchrun or on threads; prints "right: CASE" for each
                            that is right, and exits with 0 if all are
    torch_ranks.py --each CASE...  runs each case of processes in a child of its own
    torch_ranks.py --right  the cases that run on threads and are right
    torch_ranks.py --wrong  those that have to fail"""
import collections
import copy
import datetime
import gc
import io
import os
import pickle
import signal
import sys
import tempfile
import traceback

import numpy
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode

import tutti.torch

OP = dist.ReduceOp
lines = []  # of repeats()


def ranks():
    return dist.get_rank(), dist.get_world_size()


def same(found, expected):
    found = found.tolist() if isinstance(found, torch.Tensor) else found
    expected = expected.tolist() if isinstance(expected, torch.Tensor) else expected
    assert found == expected, '%r, not %r' % (found, expected)


# ---- what every rank does; each case is right if none raises

def dtypes():
    rank, size = ranks()
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.uint32, torch.uint64,
                  torch.float16, torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn,
                  torch.float8_e5m2):
        tensor = torch.ones(5).to(dtype)
        dist.all_reduce(tensor)
        same(tensor.to(torch.float64), [float(size)] * 5)
        whole = [torch.empty(2, dtype=dtype) for _ in range(size)]
        dist.all_gather(whole, torch.full((2,), float(rank)).to(dtype))
        same([each[1].item() for each in whole], list(range(size)))
    for dtype in (torch.int16, torch.complex64, torch.bool):
        tensor = torch.full((3,), rank == 1 or 0).to(dtype)
        dist.broadcast(tensor, 1)
        same(tensor, torch.ones(3).to(dtype))
    both = torch.full((2,), complex(1, rank))
    dist.all_reduce(both)
    same(both, [complex(size, size * (size - 1) / 2)] * 2)


def operators():
    rank, size = ranks()
    for op, expected in ((OP.SUM, sum(range(1, size + 1))), (OP.MAX, size), (OP.MIN, 1),
                         (OP.AVG, (size + 1) / 2), (OP.PRODUCT, torch.arange(1, size + 1).prod().item())):
        tensor = torch.full((1000,), rank + 1.0)
        dist.all_reduce(tensor, op)
        same(tensor, [float(expected)] * 1000)
    for op, expected in ((OP.BAND, 1), (OP.BOR, (2 << size) - 1), (OP.BXOR, (2 << size) - 2 + size % 2)):
        tensor = torch.tensor([1 | 2 << rank])
        dist.all_reduce(tensor, op)
        same(tensor, [expected])
        part = torch.empty(1, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, torch.tensor([1 | 2 << rank] * size), op)
        same(part, [expected])
    tensor = torch.full((3,), 2.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(rank + 0.5))
    same(tensor, [size * size * 1.0] * 3)
    flag = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flag)
    same(flag, [True, True, False])
    for bad, op in ((torch.ones(2, dtype=torch.int16), OP.SUM), (torch.ones(2), OP.BOR)):
        try:
            dist.all_reduce(bad, op)
        except TypeError as error:
            assert 'int16' in str(error) or 'bits' in str(error), error
        else:
            raise AssertionError('no error for %s' % bad.dtype)


def collectives():
    rank, size = ranks()
    whole = torch.empty(size * 3)
    dist.all_gather_into_tensor(whole, torch.full((3,), float(rank)))
    same(whole, [float(i) for i in range(size) for _ in range(3)])
    parts = [torch.empty(i + 1) for i in range(size)]
    dist.all_gather(parts, torch.full((rank + 1,), float(rank)))
    same([each.tolist() for each in parts], [[float(i)] * (i + 1) for i in range(size)])
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size))
    same(part, [2.0 * rank * size, (2.0 * rank + 1) * size])
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((i + 1,), float(i)) for i in range(size)])
    same(part, [float(rank * size)] * (rank + 1))
    kept = torch.full((3,), rank + 1.0)
    dist.reduce(kept, 1)
    same(kept, [size * (size + 1) / 2 if rank == 1 else rank + 1.0] * 3)
    whole = [torch.empty(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), whole)
    same([each[0].item() for each in whole or []], list(range(size)) if rank == 0 else [])
    part = torch.empty(2)
    dist.scatter(part, [torch.full((2,), float(i)) for i in range(size)] if rank == 1 else None, src=1)
    same(part, [float(rank)] * 2)
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(float(size)) + 10 * rank)
    same(out, [10.0 * i + rank for i in range(size)])
    splits = [1 + (rank + i) % 2 for i in range(size)]
    out = torch.empty(sum(splits))
    dist.all_to_all_single(out, torch.full((sum(splits),), float(rank)), splits, splits)
    same(out, [float(i) for i in range(size) for _ in range(splits[i])])
    outs = [torch.empty(1 + (rank + i) % 2) for i in range(size)]
    dist.all_to_all(outs, [torch.full((1 + (rank + i) % 2,), float(rank)) for i in range(size)])
    same([each[0].item() for each in outs], list(range(size)))


def layouts():
    rank, size = ranks()
    base = torch.arange(12.0).reshape(3, 4) + rank
    other = base.t()
    dist.all_reduce(other)
    same(other, (size * torch.arange(12.0).reshape(3, 4) + size * (size - 1) / 2).t())
    strided = torch.zeros(10)[::2] + rank
    dist.broadcast(strided, 1)
    same(strided, [1.0] * 5)
    holes = torch.zeros(10)
    dist.broadcast(holes[::2] if rank else holes[::2].fill_(7.0), 0)
    same(holes, [7.0, 0.0] * 5)
    empty = torch.empty(0)
    dist.all_reduce(empty)
    scalar = torch.tensor(rank + 1.0)
    dist.all_reduce(scalar)
    same(scalar, size * (size + 1) / 2)
    grown = torch.ones(4, requires_grad=True)
    dist.all_reduce(grown)
    same(grown.detach(), [float(size)] * 4)


def messages():
    rank, size = ranks()
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1000000):
        got = torch.empty(count)
        works = [dist.isend(torch.full((count,), float(rank)), ahead), dist.irecv(got, behind)]
        for work in works:
            work.wait()
        same(got[-1].item(), float(behind))
        if rank % 2 == 0 and size % 2 == 0:
            dist.send(got, ahead)
            dist.recv(got, ahead)
        elif size % 2 == 0:
            dist.recv(got, behind)
            dist.send(got, behind)
    got = torch.empty(3)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), ahead),
                                    dist.P2POp(dist.irecv, got, behind)])
    for work in works:
        work.wait()
    same(got, [float(behind)] * 3)
    if rank == 0:  # a message is under way while all call a collective
        work = dist.isend(torch.full((300000,), 5.0), 1)
    dist.barrier()
    if rank == 1:
        got = torch.empty(300000)
        assert dist.recv(got, 0) == 0
        same(got[-1].item(), 5.0)
    if rank == 0:
        work.wait()


def tags():
    """Messages match by source and tag, in order within one; also if others come between."""
    rank, size = ranks()
    if rank == 0:
        works = [dist.isend(torch.full((1000,), value), 1, tag=tag)
                 for tag, value in ((5, 1.0), (7, 2.0), (5, 3.0), (0, 4.0))]
        for work in reversed(works):
            work.wait()
    if rank == 1:
        got = torch.empty(4, 1000)
        for part, tag in zip(got, (0, 7, 5, 5)):
            assert dist.recv(part, 0, tag=tag) == 0
        same(got[:, 999], [4.0, 2.0, 1.0, 3.0])
    holes, ahead, behind = torch.zeros(4, dtype=torch.int16), (rank + 1) % size, (rank - 1) % size
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2,), rank).short(), ahead, tag=1),
                                    dist.P2POp(dist.irecv, holes[::2], behind, tag=1)])
    for work in works:
        work.wait()
    same(holes, [behind, 0, behind, 0])


def any_source():
    """A receive without a source takes one message of a rank that has sent; each source's come in order."""
    rank, size = ranks()
    for tag in (0, 3):
        if rank != 0:
            for i in range(2):
                dist.send(torch.tensor([10 * rank + i]), 0, tag=tag)
            continue
        found = collections.defaultdict(list)
        for _ in range(2 * (size - 1)):
            got = torch.empty(1, dtype=torch.int64)
            found[dist.recv(got, tag=tag)].append(got.item())
            lines.append(got.item())
        same(dict(found), {each: [10 * each, 10 * each + 1] for each in range(1, size)})
    if rank == 0:  # a named one that was called later does not overtake
        first, second = torch.empty(1), torch.empty(1)
        works = [dist.irecv(first, tag=9), dist.irecv(second, 1, tag=9)]
        works[1].wait()
        while not works[0].is_completed():
            pass
        same([first.item(), second.item(), works[0].source_rank()], [1.0, 2.0, 1])
    elif rank == 1:
        for value in (1.0, 2.0):
            dist.send(torch.tensor([value]), 0, tag=9)
    dist.barrier()  # a message of the next case may not come to a receive of any source


def independent_messages():
    """A message does not wait for others that were called before it, as with threads."""
    rank, size = ranks()
    got = torch.empty(1)
    if rank == 0:
        late = dist.irecv(got, 1)
        dist.send(torch.ones(1), 2)
        dist.send(torch.ones(1), 2)
        late.wait()
    elif rank == 1:
        dist.recv(got, 2)
        dist.send(got, 0)
    elif rank == 2:
        dist.recv(got, 0)
        dist.recv(got, 0)
        dist.send(got, 1)


def groups():
    rank, size = ranks()
    evens, odds = dist.new_group(list(range(0, size, 2))), dist.new_group(list(range(1, size, 2)))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=odds if rank % 2 else evens)
    same(tensor, [float(sum(range(rank % 2, size, 2)))] * 3)
    mesh = dist.device_mesh.init_device_mesh('cpu', (2, size // 2), mesh_dim_names=('rows', 'columns'))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group('rows'))
    same(tensor, [2.0 * (rank % (size // 2)) + size // 2] * 3)


def splits():
    rank, size = ranks()
    half = size // 2
    group = dist.split_group(split_ranks=[list(range(half)), list(range(half, size))], group_desc='half',
                             timeout=datetime.timedelta(seconds=77))
    assert group.group_desc == 'half'
    same(dist.get_process_group_ranks(group), list(range(half)) if rank < half else list(range(half, size)))
    summed = torch.full((3,), float(rank))
    dist.all_reduce(summed, group=group)
    same(summed, [float(sum(dist.get_process_group_ranks(group)))] * 3)
    whole = torch.empty(size)
    backwards = dist.split_group(split_ranks=[list(reversed(range(size)))])
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank)]), group=backwards)
    same(whole, [float(each) for each in reversed(range(size))])
    first = dist.split_group(split_ranks=[[1, 0]])  # the others are in no group
    assert (first == dist.GroupMember.NON_GROUP_MEMBER) == (rank > 1)
    if rank < 2:
        again = dist.split_group(first, split_ranks=[[0], [1]])  # ranks of `first`, which are 1 and 0
        same(dist.get_process_group_ranks(again), [rank])
        dist.destroy_process_group(again)
        dist.destroy_process_group(first)
    dist.barrier()


def bound_device():
    """With a bound device, new_group() splits, and ranks that are in no group take part."""
    rank, size = ranks()
    dist.group.WORLD.bound_device_id = torch.device('cpu', 0)
    for members in ([0, 1], list(range(size))):
        group = dist.new_group(members, group_desc='bound')
        if rank in members:
            summed = torch.ones(2)
            dist.all_reduce(summed, group=group)
            same(summed, [float(len(members))] * 2)
    dist.group.WORLD.bound_device_id = None


def aborted():
    """A group that one rank aborts is an error on the others once nothing else can move."""
    rank, size = ranks()
    group = dist.new_group(list(range(size)))
    if rank != 1:
        try:
            dist.all_reduce(torch.ones(3), group=group)
        except dist.DistBackendError as error:
            assert 'rank 1' in str(error) and 'abort' in str(error), error
        else:
            raise AssertionError('no error after an abort')
    distributed_c10d._abort_process_group(group)
    distributed_c10d._abort_process_group()
    assert not dist.is_initialized()


def objects():
    rank, size = ranks()
    everything = [None] * size
    dist.all_gather_object(everything, {'rank': rank, 'text': 'x' * rank})
    same([each['rank'] for each in everything], list(range(size)))
    one = [{'of': rank}, None]
    dist.broadcast_object_list(one, 1)
    same(one[0], {'of': 1})
    dist.barrier()
    dist.monitored_barrier()


def asynchronous():
    rank, size = ranks()
    tensors = [torch.full((1000,), float(rank + i)) for i in range(10)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    for work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success()
    for i, each in enumerate(tensors):
        same(each[0].item(), size * (size - 1) / 2 + i * size)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda each: each.value()[0] * 2)
    same(future.wait(), [2.0 * size] * 3)
    with dist._coalescing_manager(async_ops=True) as block:
        pair = torch.ones(4), torch.ones(5) * 2
        for each in pair:
            dist.all_reduce(each)
    block.wait()
    same([pair[0][0].item(), pair[1][4].item()], [1.0 * size, 2.0 * size])


def functional():
    import torch.distributed._functional_collectives as functional_collectives
    rank, size = ranks()
    summed = functional_collectives.all_reduce(torch.full((4,), float(rank)), 'sum', dist.group.WORLD)
    same(summed + 0, [size * (size - 1) / 2] * 4)
    whole = functional_collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    same(whole + 0, [float(i) for i in range(size) for _ in range(2)])


def data_parallel():
    rank, size = ranks()
    torch.manual_seed(0)
    alone = torch.nn.Linear(8, 4)
    model = torch.nn.parallel.DistributedDataParallel(alone)
    data = torch.arange(8.0 * size).reshape(size, 8)
    model(data[rank:rank + 1]).sum().backward()
    torch.manual_seed(0)
    expected = torch.nn.Linear(8, 4)
    (expected(data).sum() / size).backward()
    assert torch.allclose(alone.weight.grad, expected.weight.grad)


def fully_sharded():
    from torch.distributed.fsdp import fully_shard
    rank, size = ranks()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    mesh = dist.device_mesh.init_device_mesh('cpu', (size,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0], losses


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    rank, size = ranks()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    expected = model(torch.ones(2, 8))
    mesh = dist.device_mesh.init_device_mesh('cpu', (size,))
    parallelize_module(model, mesh, {'0': ColwiseParallel(), '2': RowwiseParallel()})
    assert torch.allclose(model(torch.ones(2, 8)), expected, atol=1e-5)


def attention_parts(rank, size):
    """Queries, keys and values of all ranks, and the rank's own parts of them, by dimension 2."""
    numbers = torch.Generator().manual_seed(5)
    whole = [torch.randn(2, 3, 4 * size, 8, generator=numbers) for _ in range(3)]
    return whole, [each.chunk(size, 2)[rank].contiguous() for each in whole]


def ring_attention():
    """Keys and values go round the ranks, once by all_to_all and once by messages; each rank adds up."""
    import torch.distributed._functional_collectives as functional_collectives
    rank, size = ranks()
    whole, (query, key, value) = attention_parts(rank, size)
    expected = torch.nn.functional.scaled_dot_product_attention(*whole).chunk(size, 2)[rank]
    ahead, behind = (rank + 1) % size, (rank - 1) % size

    def by_all_to_all(part):
        moved = functional_collectives.permute_tensor(part.flatten(), [(i + 1) % size for i in range(size)],
                                                      dist.group.WORLD)
        return moved.reshape(part.shape)

    def by_messages(part):
        got = torch.empty_like(part)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, part, ahead),
                                            dist.P2POp(dist.irecv, got, behind)]):
            work.wait()
        return got
    for rotate in (by_all_to_all, by_messages):
        part, summed, weight = torch.stack([key, value]), 0, 0
        for step in range(size):
            shares = torch.exp(query @ part[0].transpose(-1, -2) / 8 ** 0.5)
            summed, weight = summed + shares @ part[1], weight + shares.sum(-1, keepdim=True)
            part = rotate(part) if step < size - 1 else part
        assert torch.allclose(summed / weight, expected, atol=1e-5)


class Counts(TorchDispatchMode):
    """A dispatch mode of the program's own."""
    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.count += 1
        return function(*arguments, **(named or {}))


def uses_before_wait():
    """What is permitted before wait(): views, shapes, other parts, inputs, the root's own tensor."""
    rank, size = ranks()
    whole, part = torch.zeros(4 * size), torch.full((4,), float(rank))
    work = dist.all_gather_into_tensor(whole, part, async_op=True)
    assert whole.reshape(size, 4)[0].shape == (4,) and torch.empty_like(whole).numel() == 4 * size
    same(part + 1, [rank + 1.0] * 4)
    same(torch.compile(lambda tensor: tensor * 2, backend='aot_eager', fullgraph=True)(part), part * 2)
    with Counts() as counts:  # and it may end while another mode is above
        work.wait()
        same(whole[:1] + 0, [0.0])
    assert counts.count > 0
    base = torch.zeros(8)
    work = dist.all_reduce(base[:4], async_op=True)
    base[4:] += 1
    for read in (torch.Tensor.numpy, torch.Tensor.tolist, repr, numpy.asarray, copy.deepcopy, pickle.dumps):
        read(base[4:].clone())
        read(torch.nn.Parameter(torch.ones(2)).detach())
    same(base[4:].numpy().tolist(), [1.0] * 4)
    same(torch.compile(lambda tensor: torch.from_numpy(tensor.numpy() + 1), fullgraph=True,
                       backend='aot_eager')(base[4:]), [2.0] * 4)
    work.wait()
    same([base.numpy().tolist(), base.tolist()], [[0.0] * 4 + [1.0] * 4] * 2)
    with Counts() as counts:
        works = [dist.broadcast(part, 0, async_op=True)]
        if rank == 0:
            same(part + 0, [0.0] * 4)
    works[0].wait()
    same(part, [0.0] * 4)
    tutti.torch.check_early_use(False)
    work = dist.all_reduce(base, async_op=True)
    base.sum()
    work.wait()
    tutti.torch.check_early_use(True)


class Waits(torch.autograd.Function):
    """Waits in backward for what was called before."""

    @staticmethod
    def forward(context, tensor, work):
        context.work = work
        return tensor * 1

    @staticmethod
    def backward(context, gradient):
        context.work.wait()
        return gradient * 1, None


def waits_in_backward():
    """Backward's end brings back the dispatch modes that there were at its begin: they must not add up."""
    for _ in range(3):
        summed = torch.ones(3)
        weight = torch.ones(3, requires_grad=True)
        Waits.apply(weight, dist.all_reduce(summed, async_op=True)).sum().backward()
        assert torch._C._len_torch_dispatch_stack() <= 1
        same(summed, [float(dist.get_world_size())] * 3)
    dist.all_reduce(summed, async_op=True).wait()
    assert torch._C._len_torch_dispatch_stack() == 0


def compiled(backend='aot_eager'):
    """Functional collectives in a compiled function; no break of its graph."""
    import torch.distributed._functional_collectives as functional_collectives
    rank, size = ranks()

    def step(tensor):
        summed = functional_collectives.all_reduce(tensor * 2, 'sum', dist.group.WORLD)
        whole = functional_collectives.all_gather_tensor(summed + 1, 0, dist.group.WORLD)
        return functional_collectives.reduce_scatter_tensor(whole * 2, 'sum', 0, dist.group.WORLD) + 1
    tensor = torch.arange(4.0) + rank
    same(torch.compile(step, fullgraph=True, backend=backend)(tensor), step(tensor))


def mean_of_squares(found, target):
    return (found - target).square().mean()


def pipeline(schedule, per_rank, group=None):
    """Gradients of a pipeline are those of the layers one after the other."""
    from torch.distributed.pipelining import PipelineStage
    rank, size = ranks()
    numbers = torch.Generator().manual_seed(3)
    data, target = torch.randn(8, 8, generator=numbers), torch.randn(8, 8, generator=numbers)
    expected = [torch.nn.Linear(8, 8) for _ in range(size * per_rank)]
    for each in expected:
        for parameter in each.parameters():
            parameter.data = torch.randn(parameter.shape, generator=numbers) / 3
    layers = copy.deepcopy(expected)
    mean_of_squares(torch.nn.Sequential(*expected)(data), target).backward()
    own = [rank + size * i for i in range(per_rank)]
    stages = [PipelineStage(layers[i], i, len(layers), torch.device('cpu'), group=group) for i in own]
    steps = schedule(stages if per_rank > 1 else stages[0], n_microbatches=4, loss_fn=mean_of_squares)
    steps.step(*([data] if rank == 0 else []), **({'target': target} if rank == size - 1 else {}))
    for i in own:
        assert torch.allclose(layers[i].weight.grad, expected[i].weight.grad, atol=1e-5)


def pipelines():
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
    pipeline(ScheduleGPipe, 1)
    pipeline(Schedule1F1B, 1)


def interleaved_pipeline():
    """Its ranks send to one neighbour while they receive from another one. With processes as ranks, the group
    has to be made after the import; so does its parent, if it is split."""
    from torch.distributed.pipelining import ScheduleInterleaved1F1B
    rank, size = ranks()
    group = dist.new_group()
    pipeline(ScheduleInterleaved1F1B, 2, group)
    pipeline(ScheduleInterleaved1F1B, 2, dist.split_group(group, split_ranks=[list(range(size))]))
    odd = dist.new_group(list(range(size - 1)))  # a ring of an odd number of ranks
    for ends in ((0, 1), (1, 2), (2, 0)) if rank < size - 1 else ():
        if rank in ends:
            got = torch.empty(1)
            works = [dist.irecv(got, sum(ends) - rank, group=odd) for _ in range(2)]
            works += [dist.isend(torch.tensor([each]), sum(ends) - rank, group=odd) for each in (1.0, 2.0)]
            for work in works:
                work.wait()
            same(got, [2.0])


def repeats():
    """What ranks draw, print and sum between their waits comes in one order."""
    rank, size = ranks()
    drawn = torch.randn(3)
    works = [dist.all_reduce(torch.randn(10), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.all_reduce(drawn)
    lines.append((rank, drawn.tolist(), torch.randn(1).item()))


# ---- cases that have to fail: the texts that every message has to contain, and what the ranks do

def different_counts():
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


def different_types():
    dist.all_reduce(torch.ones(3, dtype=(torch.float32, torch.float64)[dist.get_rank() % 2]))


def different_operators():
    dist.all_reduce(torch.ones(3), (OP.SUM, OP.MAX)[dist.get_rank() % 2])


def different_roots():
    dist.broadcast(torch.ones(3), dist.get_rank() % 2)


def different_calls():
    if dist.get_rank() % 2:
        dist.all_reduce(torch.ones(4))
    else:
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * dist.get_world_size()))


def left_out():
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(3))


def crossed_groups():
    every = list(range(dist.get_world_size()))
    pair = [dist.new_group(every), dist.new_group(every)]
    for group in pair if dist.get_rank() else reversed(pair):
        dist.all_reduce(torch.ones(3), group=group)


def message_missing():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1)


def many_lines():
    """More lines call than a file of records has places for; the error has those of the last calls."""
    calls = ['dist.all_reduce(torch.ones(1))'] * 1500 + ['dist.all_reduce(torch.ones(3 + dist.get_rank()))']
    exec(compile('\n'.join(calls), 'torch_ranks.py', 'exec'))


def many_lines_crossed():
    every = list(range(dist.get_world_size()))
    groups = [dist.new_group(every), dist.new_group(every)]
    calls = ['dist.all_reduce(torch.ones(1))'] * 100 + ['dist.all_reduce(torch.ones(3), group=group)']
    for group in groups if dist.get_rank() else reversed(groups):
        exec(compile('\n'.join(calls), 'torch_ranks.py', 'exec'), {**globals(), 'group': group})


def group_missing():
    if dist.get_rank() != 1:
        dist.new_group([0, 1])


def group_or_sum():
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3))
    else:
        dist.new_group([0, 1])


def split_missing():
    if dist.get_rank() != 1:
        dist.split_group(split_ranks=[[0, 1]])


def split_differs():
    dist.split_group(split_ranks=[[0, 1]] if dist.get_rank() else [[0], [1]])


def split_left():
    group = dist.split_group(split_ranks=[[0, 1]])
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3), group=group)


def tag_missing():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(3), 1, tag=4)
    else:
        dist.send(torch.ones(3), 0, tag=3)


def any_missing():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1, tag=3)
    else:
        dist.recv(torch.ones(3), tag=4)


def sent_only():
    if dist.get_rank() == 0:
        dist.isend(torch.ones(3), 1, tag=3)


def tag_sizes():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1, tag=3)
    else:
        dist.recv(torch.ones(4), 0, tag=3)


def early(use, **options):
    """Uses the tensor of an all-reduce, or its input, before wait()."""
    tensor, whole = torch.ones(4), torch.ones(4 * dist.get_world_size())
    if options:
        work = dist.all_gather_into_tensor(whole, tensor, async_op=True)
    else:
        work = dist.all_reduce(tensor, async_op=True)
    use(tensor)
    work.wait()


def early_read():
    early(lambda tensor: tensor + 1)


def early_item():
    early(lambda tensor: tensor[2].item())


def early_numpy():
    early(lambda tensor: tensor.numpy())


def early_list():
    early(lambda tensor: tensor[1:].tolist())


def early_print():
    early(print)


def early_format():
    early('{}'.format)


def early_array():
    early(numpy.asarray)


def early_save():
    early(lambda tensor: torch.save({'state': [tensor]}, io.BytesIO()))


def early_pickle():
    early(pickle.dumps)


def early_copy():
    early(copy.deepcopy)


def early_dlpack():
    early(numpy.from_dlpack)


def early_write():
    early(lambda tensor: tensor[1:].zero_(), gather=True)


def early_message():
    got = torch.zeros(3)
    works = [dist.isend(torch.ones(3), 1 - dist.get_rank()), dist.irecv(got, 1 - dist.get_rank())]
    got.sum()
    for work in works:
        work.wait()


def early_batch():
    got, other = torch.zeros(3), 1 - dist.get_rank()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(3), other),
                                    dist.P2POp(dist.irecv, got, other)])
    got.sum()
    for work in works:
        work.wait()


def early_gradient():
    weight = torch.ones(4, requires_grad=True)
    (weight * 2).sum().backward()
    work = dist.all_reduce(weight.grad, async_op=True)
    torch.optim.SGD([weight], lr=0.1).step()
    work.wait()


FAILING = {
    'early_read': (early_read, ('all_reduce: rank', 'reads its tensor at torch_ranks.py:', 'before wait()',
                                'called at torch_ranks.py:')),
    'early_item': (early_item, ('all_reduce: rank', 'reads its tensor',)),
    **{each.__name__: (each, ('all_reduce: rank', 'reads its tensor at torch_ranks.py:', 'before wait()'))
       for each in (early_numpy, early_list, early_print, early_format, early_array, early_save, early_pickle,
                    early_copy, early_dlpack)},
    'early_write': (early_write, ('all_gather_into_tensor: rank', 'writes to its tensor',)),
    'early_message': (early_message, ('recv: rank', 'reads its tensor',)),
    'early_batch': (early_batch, ('recv: rank', 'reads its tensor',)),
    'early_gradient': (early_gradient, ('all_reduce: rank', 'reads its tensor', '(early_gradient)')),
    'tag_missing': (tag_missing, ('with tag 4', 'rank 0 waits at',
                                  'rank 1 sends rank 0 a message with tag 3 at')),
    'any_missing': (any_missing, ('rank 1 receives from any rank with tag 4 at', 'rank 0 sends rank 1',
                                  'a message with tag 3 at')),
    'sent_only': (sent_only, ('rank 0 sends rank 1 a message with tag 3 at', 'which nothing receives')),
    'tag_sizes': (tag_sizes, ('tag 3', '3 float', '4 float')),
    'group_missing': (group_missing, ('new_group (group 1 of ranks 0, 1): rank 1 did not call it',
                                      'called by rank 0 at', 'rank 1 has returned')),
    'group_or_sum': (group_or_sum, ('has not called', 'AllReduce', 'new_group (group 1',
                                    'waits for rank 1, called by rank 0 at')),
    'split_missing': (split_missing, ('split_group: rank 1 did not call it', 'called by rank 0 at')),
    'split_differs': (split_differs, ('split_group: rank', 'the group [0, 1]',
                                      'have to pass the same groups')),
    'split_left': (split_left, ('rank 1', 'AllReduce')),
    'different_counts': (different_counts, ('different counts', '3 float', '4 float')),
    'many_lines': (many_lines, ('different counts', 'torch_ranks.py:1501 (<module>)')),
    'many_lines_crossed': (many_lines_crossed, (
        'another communicator', 'rank 1 called #0 at torch_ranks.py:101', 'rank 0 #0 at torch_ranks.py:101')),
    'different_types': (different_types, ('different', 'float', 'double')),
    'different_operators': (different_operators, ('different', 'sum', 'max')),
    'different_roots': (different_roots, ('different roots',)),
    'different_calls': (different_calls, ('different', 'AllReduce', 'ReduceScatter')),
    'left_out': (left_out, ('rank 1', 'AllReduce')),
    'crossed_groups': (crossed_groups, ('another communicator',)),
    # Which of two sentences comes first, that of the hang or of rank 1's end, is for the order of events.
    'message_missing': (message_missing, ('rank 1 of comm', '(message_missing)'))}
RIGHT = (dtypes, operators, collectives, layouts, messages, tags, any_source,
         independent_messages, groups, splits, bound_device, aborted,
         objects, asynchronous, functional, data_parallel, fully_sharded, tensor_parallel, uses_before_wait,
         waits_in_backward, compiled, pipelines, interleaved_pipeline, ring_attention, repeats)


# ---- time-outs, and losses, with processes

def timed_out():
    """Rank 1 never calls, and lives."""
    dist.init_process_group('tutti')  # whose time-out is not too short for processes that start late
    if dist.get_rank() == 1:
        signal.pause()
    try:
        dist.all_reduce(torch.ones(3), async_op=True).wait(datetime.timedelta(seconds=3))
    except dist.DistBackendError as error:
        print('said:', error)
        os._exit(9)


def for_pipelines():
    """Neighbours have links of their own, on which nothing waits for messages of others."""
    import torch.distributed.pipelining  # noqa: F401
    dist.init_process_group('tutti')
    for case in (messages, tags, any_source, splits):
        case()
    rank, size = ranks()
    got = torch.empty(1)
    if rank == 0:
        late = dist.irecv(got, 1)
        for _ in range(2):
            dist.send(torch.ones(1), size - 1)
        late.wait()
    else:
        for _ in range(2 if rank == size - 1 else 1):
            dist.recv(got, (rank + 1) % size)
        dist.send(got, rank - 1)
    dist.destroy_process_group()


def any_source_alone():
    """Every rank receives from any rank while others do so too, the last one after all others have left."""
    dist.init_process_group('tutti')
    rank, size = ranks()
    for receiver in range(size):
        for _ in range(2):
            if rank != receiver:
                dist.send(torch.full((10,), float(rank)), receiver)
        for _ in range(2 * (size - 1) if rank == receiver else 0):
            got = torch.empty(10)
            source = dist.recv(got)
            same(got, [float(source)] * 10)
    store = distributed_c10d._get_default_store()
    if rank == size - 1:
        store.set('received', 'all')
    store.wait(['received'])
    dist.destroy_process_group()


def late_pipeline():
    """The group was made before the import: the error says so."""
    dist.init_process_group('tutti')
    from torch.distributed.pipelining import ScheduleInterleaved1F1B
    try:
        pipeline(ScheduleInterleaved1F1B, 2)
    except dist.DistBackendError as error:
        print('said:', error)
        os._exit(9)


def lost():
    """Rank 1 exits; the errors of the others name it."""
    dist.init_process_group('tutti')
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        assert 'all_reduce: ' in str(error) and 'rank 1 (process' in str(error), error
        assert 'closed its connection without goodbye' in str(error), error
        os._exit(9)


def group_timed_out():
    """Rank 1 does not call new_group, and lives."""
    dist.init_process_group('tutti')
    if dist.get_rank() != 0:
        signal.pause()
    try:
        dist.new_group([0, 1], timeout=datetime.timedelta(seconds=3))
    except dist.DistBackendError as error:
        print('said:', error)
        os._exit(9)


def detail():
    """The checks of TORCH_DISTRIBUTED_DEBUG=DETAIL, where an object of PyTorch's wraps the backend."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group('tutti')
    group = dist.new_group()
    gc.collect()
    rank, size = ranks()
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    same(tensor, [size * (size + 1) / 2] * 3)
    whole = torch.empty(size)
    dist.all_gather_into_tensor(whole, torch.full((1,), float(rank)), group=group)
    same(whole, [float(i) for i in range(size)])
    try:
        dist.all_reduce(torch.ones(3 + rank), group=group)
    except RuntimeError as error:
        assert 'mismatch' in str(error), error
    else:
        raise AssertionError('nothing was raised')
    dist.destroy_process_group()


def sum_order():
    """With TUTTI_SUM_ORDER=rank, buckets of any size give the bits of a loop over the ranks."""
    dist.init_process_group('tutti')
    rank, size = ranks()
    torch.manual_seed(7)
    each = [(torch.randn(999) * 10.0 ** torch.randint(-4, 8, (999,))).to(torch.bfloat16) for _ in range(size)]
    fold = each[0]
    for other in each[1:]:
        fold = fold + other
    for bucket in (17, 500, 999):
        total = each[rank].clone()
        for begin in range(0, 999, bucket):
            dist.all_reduce(total[begin:begin + bucket])
        assert torch.equal(total, fold), 'buckets of %d add up in another order' % bucket


def rank_sum_order():
    os.environ['TUTTI_SUM_ORDER'] = 'rank'
    sum_order()


def any_sum_order():
    """Without the setting the comparison fails."""
    try:
        sum_order()
    except AssertionError as error:
        assert 'add up in another order' in str(error), error
    else:
        raise AssertionError('the order is that of the ranks')


def monitored():
    """Rank 1 does not come to the barrier: the others name it. A FileStore has errors of its own."""
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    path = os.path.join(tempfile.gettempdir(), 'torch_ranks-%s' % os.environ['MASTER_PORT'])
    store = dist.FileStore(path, size)
    dist.init_process_group('tutti', rank=rank, world_size=size, store=store)
    dist.monitored_barrier()
    if rank == 1:
        store.wait(['said/%d' % each for each in range(size) if each != 1])
    else:
        try:
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=1))
        except RuntimeError as error:
            assert 'Rank 1 failed to pass monitoredBarrier in 1000 ms' in str(error), error
        else:
            raise AssertionError('nothing was raised')
        store.set('said/%d' % rank, 'it')
    dist.destroy_process_group()


def second_job():
    """A process is rank 0 of its own job, then has a rank in this one, and only the rank tells its device."""
    for name in ('LOCAL_RANK', 'TUTTI_LOCAL_RANK'):
        os.environ.pop(name, None)
    dist.init_process_group('tutti', store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    dist.init_process_group('tutti')
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, [float(dist.get_world_size())] * 3)
    dist.destroy_process_group()


def context_parallelism():
    """PyTorch's context_parallel(), whose attention on CPUs is that of DTensor, and only without a mask. It
    replaces a function for the whole process, so ranks are no threads."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard
    dist.init_process_group('tutti')
    rank, size = ranks()
    mesh = dist.device_mesh.init_device_mesh('cpu', (size,))
    whole, _ = attention_parts(rank, size)
    expected = torch.nn.functional.scaled_dot_product_attention(*whole)
    buffers = [each.clone() for each in whole]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
        found = torch.nn.functional.scaled_dot_product_attention(*buffers)
    assert torch.allclose(context_parallel_unshard(mesh, [found], [2])[0], expected, atol=1e-5)
    dist.destroy_process_group()


def order_of_sources():
    """The sources of receives without one, on rank 0."""
    rank, size = ranks()
    if rank != 0:
        dist.send(torch.ones(1), 0, tag=2)
        return None
    return [dist.recv(torch.ones(1), tag=2) for _ in range(1, size)]


def seeded_sources():
    """The seed decides which source a receive of any source takes."""
    orders = [[tutti.torch.run(order_of_sources, 4, seed=seed)[0] for _ in range(3)] for seed in range(1, 9)]
    assert all(each == each[:1] * 3 for each in orders), orders
    assert len(set(tuple(each[0]) for each in orders)) > 2, orders


ALONE = {'seeded_sources': seeded_sources}


def missing_gpus():
    """A backend for devices that this machine does not have is passed over."""
    if torch.cuda.is_available():
        return
    dist.init_process_group('cpu:tutti,cuda:nccl')
    groups()
    splits()
    dist.destroy_process_group()


def restarted():
    """torchrun starts all ranks again when one has died."""
    dist.init_process_group('tutti')
    summed = torch.ones(3)
    dist.all_reduce(summed)
    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(summed)
    same(summed, [float(dist.get_world_size() ** 2)] * 3)
    dist.destroy_process_group()


def of_spawn(rank, size, store):
    dist.init_process_group('tutti', rank=rank, world_size=size, init_method='file://' + store)
    summed = torch.ones(3)
    dist.all_reduce(summed)
    same(summed, [float(size)] * 3)
    dist.destroy_process_group()


def spawned():
    """torch.multiprocessing.spawn, with a file as the store."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(of_spawn, (2, os.path.join(folder, 'store')), 2)


ALONE['spawned'] = spawned
ALONE['inductor'] = lambda: tutti.torch.run(compiled, 2, 'inductor')
RANKED = {each.__name__: each for each in (missing_gpus, restarted, timed_out, for_pipelines, late_pipeline,
                                            any_source_alone, lost, group_timed_out, detail, monitored,
                                            second_job, context_parallelism, rank_sum_order,
                                            any_sum_order)}


def fails(name):
    """A case that has to fail, with its texts."""
    function, texts = FAILING[name]
    try:
        tutti.torch.run(function, 2)
    except (dist.DistBackendError, RuntimeError) as error:
        missing = [text for text in (*texts, 'torch_ranks.py:') if text not in str(error)]
        assert not missing, 'without %r: %s' % (missing, error)
    else:
        raise AssertionError('nothing was raised')


def on_threads(function):
    """A case that has to be right, on threads."""
    runs = []
    for _ in range(10 if function in (repeats, any_source) else 1):
        lines.clear()
        torch.manual_seed(1)
        tutti.torch.run(function, 4)
        runs.append(list(lines))
    assert all(each == runs[0] for each in runs), runs


def one(name):
    if name in ALONE:
        ALONE[name]()
    elif name in RANKED:
        RANKED[name]()
    elif name in FAILING:
        fails(name)
    else:
        function = next(each for each in RIGHT if each.__name__ == name)
        if 'RANK' not in os.environ:
            on_threads(function)
            return
        if not dist.is_initialized():
            dist.init_process_group('tutti')
        function()


def each_apart(names):
    """Runs each case in a child of this process, because PyTorch takes seconds to start. The first rank has
    the store of all cases, each of which has a prefix of its own, as with torchrun."""
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
    store = dist.TCPStore(*place, is_master=True, wait_for_workers=False) if rank == 0 else None
    os.environ['TORCHELASTIC_USE_AGENT_STORE'] = 'True'
    wrong = 0
    for number, name in enumerate(names):
        os.environ['TORCHELASTIC_RESTART_COUNT'] = str(number)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = main([name])
            sys.stdout.flush()
            os._exit(status)
        wrong += os.waitpid(child, 0)[1] != 0
    if store is None:
        dist.TCPStore(*place, is_master=False).set('done/%d' % rank, '')
    else:
        store.wait(['done/%d' % other for other in range(1, size)])
    return 1 if wrong else 0


def main(names):
    if names[:1] == ['--each']:
        return each_apart(names[1:])
    if names in (['--right'], ['--wrong']):
        right = [each.__name__ for each in RIGHT] + ['seeded_sources', 'spawned']
        print('\n'.join(right if names == ['--right'] else FAILING))
        return 0
    wrong = 0
    for name in names:
        try:
            one(name)
            print('right: %s\n' % name, end='', flush=True)
        except Exception:  # the cases behind it are run as well
            traceback.print_exc()
            wrong += 1
            if 'RANK' in os.environ:
                break
    if 'RANK' in os.environ and dist.is_initialized():
        dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
