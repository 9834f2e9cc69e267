"""torch_ranks.py: the backend "tutti" of torch.distributed.

    torch_ranks.py CASE     runs one case, on the ranks of torchrun or on threads; exits with 0 if it is right
    torch_ranks.py --list   the cases that run on threads"""
import datetime
import gc
import os
import signal
import sys
import tempfile

import torch
import torch.distributed as dist

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
    try:
        dist.isend(got, ahead, tag=3)
    except ValueError as error:
        assert 'tag' in str(error)
    else:
        raise AssertionError('a tag was taken')


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


FAILING = {
    'different_counts': (different_counts, ('different counts', '3 float', '4 float')),
    'different_types': (different_types, ('different', 'float', 'double')),
    'different_operators': (different_operators, ('different', 'sum', 'max')),
    'different_roots': (different_roots, ('different roots',)),
    'different_calls': (different_calls, ('different', 'AllReduce', 'ReduceScatter')),
    'left_out': (left_out, ('rank 1', 'AllReduce')),
    'crossed_groups': (crossed_groups, ('another communicator',)),
    'message_missing': (message_missing, ('rank 1', 'Recv'))}
RIGHT = (dtypes, operators, collectives, layouts, messages, groups, objects, asynchronous, functional,
         data_parallel, fully_sharded, tensor_parallel, repeats)


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


def lost():
    """Rank 1 exits; the others get an error: of its connection, or of the operation that cannot end."""
    dist.init_process_group('tutti')
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 1:
        os._exit(0)
    try:
        dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        assert 'all_reduce: ' in str(error), error
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


RANKED = {'timed_out': timed_out, 'lost': lost, 'detail': detail, 'monitored': monitored,
          'second_job': second_job}


def main(name):
    if name == '--list':
        print('\n'.join([each.__name__ for each in RIGHT] + list(FAILING)))
    elif name in RANKED:
        RANKED[name]()
    elif name in FAILING:
        function, texts = FAILING[name]
        try:
            tutti.torch.run(function, 2)
        except (dist.DistBackendError, RuntimeError) as error:
            missing = [text for text in (*texts, 'torch_ranks.py:') if text not in str(error)]
            assert not missing, 'without %r: %s' % (missing, error)
        else:
            raise AssertionError('nothing was raised')
    else:
        function = next(each for each in RIGHT if each.__name__ == name)
        if 'RANK' in os.environ:
            dist.init_process_group('tutti')
            function()
            dist.destroy_process_group()
        else:
            runs = []
            for _ in range(10 if function is repeats else 1):
                lines.clear()
                torch.manual_seed(1)
                tutti.torch.run(function, 4)
                runs.append(list(lines))
            assert all(each == runs[0] for each in runs), runs


if __name__ == '__main__':
    main(sys.argv[1])
