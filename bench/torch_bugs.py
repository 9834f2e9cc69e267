#!/usr/bin/env python3
"""torch_bugs.py: programs with torch.distributed, each with one mistake, and what three ways to run them say:
the backend "tutti" (threads as ranks, seeds 1 to 20 where the order matters), gloo, and gloo with
TORCH_DISTRIBUTED_DEBUG=DETAIL. A row for each program: `cause`: an exception whose text names the cause,
`error`: another one, `hang`: none within --seconds, `silent`: the program ends as if all were well.

  bench/torch_bugs.py [--seconds S] [NAME...]     (needs PyTorch; all programs take some 10 minutes)"""
import argparse
import os
import re
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 4
BUGS = {}  # name -> (function, regular expression of the cause, whether orders matter)


def bug(cause, orders=False):
    def add(function):
        BUGS[function.__name__] = (function, cause, orders)
        return function
    return add


def ones(count=8, dtype=None):
    import torch
    return torch.ones(count, dtype=dtype)


def setup():
    import torch.distributed as dist
    return dist, dist.get_rank(), dist.get_world_size()


# ---- calls that differ

@bug('different counts|has different')
def all_reduce_of_different_sizes():
    dist, rank, _ = setup()
    dist.all_reduce(ones(8 + (rank == 2)))


@bug('different (data)?types|float.*double|different')
def all_reduce_of_different_types():
    import torch
    dist, rank, _ = setup()
    dist.all_reduce(ones(8, torch.float64 if rank == 1 else torch.float32))


@bug('different (reduce )?op|sum.*max|max.*sum')
def sum_and_maximum():
    dist, rank, _ = setup()
    dist.all_reduce(ones(), dist.ReduceOp.MAX if rank == 3 else dist.ReduceOp.SUM)


@bug('different roots|root')
def broadcast_from_different_roots():
    dist, rank, _ = setup()
    dist.broadcast(ones(), 1 if rank == 2 else 0)


@bug('different roots|root')
def reduce_to_different_roots():
    dist, rank, _ = setup()
    dist.reduce(ones(), rank % 2)


@bug('different functions|AllReduce.*Broadcast|Broadcast.*AllReduce')
def all_reduce_and_broadcast():
    dist, rank, _ = setup()
    if rank == 1:
        dist.broadcast(ones(), 0)
    else:
        dist.all_reduce(ones())


@bug('different functions|AllGather.*ReduceScatter|ReduceScatter.*AllGather')
def all_gather_and_reduce_scatter():
    dist, rank, size = setup()
    if rank == 0:
        dist.reduce_scatter_tensor(ones(8), ones(8 * size))
    else:
        dist.all_gather_into_tensor(ones(8 * size), ones(8))


@bug('different counts|different')
def swapped_order_of_two_sums():
    dist, rank, _ = setup()
    pair = [ones(8), ones(16)]
    for each in reversed(pair) if rank == 1 else pair:
        dist.all_reduce(each)


@bug('different')
def barrier_instead_of_sum():
    dist, rank, _ = setup()
    if rank == 2:
        dist.barrier()
    else:
        dist.all_reduce(ones())


@bug('different counts|different')
def all_to_all_of_different_sizes():
    dist, rank, size = setup()
    count = size * (3 if rank == 1 else 2)
    dist.all_to_all_single(ones(count), ones(count))


@bug(r'different counts|has different|count')
def all_to_all_splits_do_not_match():
    dist, rank, size = setup()
    splits = [2] * size
    if rank == 1:
        splits = [3, 1, 2, 2]
    dist.all_to_all_single(ones(sum([2] * size)), ones(sum(splits)), [2] * size, splits)


@bug('different counts|count')
def message_of_another_size():
    dist, rank, _ = setup()
    if rank == 0:
        dist.send(ones(8), 1)
    elif rank == 1:
        dist.recv(ones(12), 0)


@bug('different')
def message_of_another_type():
    import torch
    dist, rank, _ = setup()
    if rank == 0:
        dist.send(ones(8, torch.float32), 1)
    elif rank == 1:
        dist.recv(ones(8, torch.int32), 0)


# ---- ranks that do not call

@bug('rank 2 .*(not called|was not called)|was not called by rank 2')
def a_rank_skips_a_sum():
    dist, rank, _ = setup()
    if rank != 2:
        dist.all_reduce(ones())


@bug('rank 0')
def only_the_first_rank_logs_a_sum():
    dist, rank, _ = setup()
    dist.all_reduce(ones())
    if rank == 0:
        dist.all_reduce(ones(1))


@bug('rank 3')
def uneven_batches():
    dist, rank, _ = setup()
    for _ in range(2 if rank == 3 else 3):
        dist.all_reduce(ones())


@bug('rank 1')
def a_rank_returns_early_from_a_loop():
    dist, rank, _ = setup()
    for step in range(4):
        if rank == 1 and step == 2:
            return
        dist.all_reduce(ones())


@bug('mistake of rank 1')
def a_rank_raises():
    dist, rank, _ = setup()
    if rank == 1:
        raise ValueError('mistake of rank 1')
    dist.all_reduce(ones())


@bug('rank 2')
def a_rank_catches_and_goes_on():
    dist, rank, _ = setup()
    try:
        if rank == 2:
            raise ValueError('bad sample')
        dist.all_reduce(ones())
    except ValueError:
        pass
    dist.all_reduce(ones(4))


@bug('rank 1')
def an_object_is_gathered_by_some():
    dist, rank, size = setup()
    if rank != 1:
        dist.all_gather_object([None] * size, rank)


@bug('rank 3')
def a_barrier_is_missing():
    dist, rank, _ = setup()
    if rank != 3:
        dist.barrier()


@bug('rank 1')
def a_receive_without_a_send():
    dist, rank, _ = setup()
    if rank == 0:
        dist.recv(ones(), 1)


@bug('rank 1|rank 0')
def a_send_without_a_receive():
    dist, rank, _ = setup()
    if rank == 0:
        dist.send(ones(1 << 22), 1)


@bug('cycle|in a cycle|waits')
def all_send_first():
    dist, rank, size = setup()
    dist.send(ones(1 << 22), (rank + 1) % size)
    dist.recv(ones(1 << 22), (rank - 1) % size)


@bug('cycle|waits|not called')
def all_receive_first():
    dist, rank, size = setup()
    dist.recv(ones(), (rank - 1) % size)
    dist.send(ones(), (rank + 1) % size)


@bug('rank')
def the_wrong_neighbour():
    dist, rank, size = setup()
    works = [dist.isend(ones(), (rank + 1) % size), dist.irecv(ones(), (rank + 1) % size)]
    for work in works:
        work.wait()


# ---- groups

@bug('another communicator')
def two_groups_in_crossed_order():
    dist, rank, size = setup()
    pair = [dist.new_group(list(range(size))) for _ in range(2)]
    for group in reversed(pair) if rank == 1 else pair:
        dist.all_reduce(ones(), group=group)


@bug('another communicator|rank')
def the_wrong_group():
    dist, rank, size = setup()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.all_reduce(ones(), group=None if rank == 0 else rows[rank // 2])


@bug('rank|not part of group')
def a_rank_outside_its_group():
    dist, rank, _ = setup()
    group = dist.new_group([0, 1])
    if rank in (0, 2):
        dist.all_reduce(ones(), group=group)


@bug('new_group|rank|ranks|group')
def some_ranks_make_a_group():
    dist, rank, _ = setup()
    if rank < 2:
        group = dist.new_group([0, 1, 2, 3])
        dist.all_reduce(ones(), group=group)


@bug('another communicator|cycle|rank')
def tensor_and_data_parallel_swapped():
    dist, rank, _ = setup()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    order = [rows[rank // 2], columns[rank % 2]]
    for group in reversed(order) if rank == 3 else order:
        dist.all_reduce(ones(), group=group)


# ---- asynchronous operations

@bug('nothing has waited|waited')
def a_work_that_nobody_waits_for():
    dist, _, _ = setup()
    dist.all_reduce(ones(), async_op=True)


@bug('AssertionError|too early|wait')
def a_read_before_the_wait():
    dist, rank, size = setup()
    tensor = ones()
    work = dist.all_reduce(tensor, async_op=True)
    seen = tensor.clone()
    work.wait()
    assert seen[0] == size


@bug('changed|AssertionError|written')
def an_input_changed_before_the_wait():
    dist, rank, size = setup()
    tensor = ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.zero_()
    work.wait()
    assert tensor[0] == size


@bug('different|another communicator|rank', orders=True)
def buckets_in_the_order_in_which_they_are_there():
    dist, rank, size = setup()
    every = list(range(size))
    groups = [dist.new_group(every) for _ in range(2)]
    works = {i: dist.all_reduce(ones(1000), group=groups[i], async_op=True) for i in range(2)}
    while works:
        for i in [i for i, work in works.items() if work.is_completed()]:
            del works[i]
            dist.all_reduce(ones(1000 + i))


@bug('different|rank', orders=True)
def a_sum_only_if_a_message_is_there():
    dist, rank, size = setup()
    work = dist.isend(ones(), 1) if rank == 0 else dist.irecv(ones(), 0) if rank == 1 else None
    if work is None or work.is_completed():
        dist.all_reduce(ones())
    if work is not None:
        work.wait()


# ---- shapes and pipelines

@bug('elements|size|splits')
def an_output_that_is_too_small():
    dist, _, size = setup()
    dist.all_gather_into_tensor(ones(8 * size - 1), ones(8))


@bug('different|count')
def the_last_batch_is_smaller():
    dist, rank, size = setup()
    batch = ones(4 if rank == size - 1 else 8)
    dist.all_gather_into_tensor(ones(batch.numel() * size), batch)


@bug('cycle|waits|not called|rank')
def pipeline_stages_in_the_wrong_order():
    dist, rank, size = setup()
    for _ in range(2):
        if rank < size - 1:
            dist.recv(ones(), rank + 1)
        if rank > 0:
            dist.send(ones(), rank - 1)
        if rank > 0:
            dist.recv(ones(), rank - 1)
        if rank < size - 1 and rank != 1:
            dist.send(ones(), rank + 1)


@bug('rank|different')
def parameters_that_only_one_rank_uses():
    import torch
    dist, rank, _ = setup()
    layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
    used = layers if rank == 0 else layers[:1]
    for layer in used:
        dist.all_reduce(layer.weight.detach())


# ---- running them

def rank_main(name):
    import datetime
    import torch.distributed as dist
    dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=600))
    BUGS[name][0]()
    dist.destroy_process_group()


def tutti_main(name):
    import torch  # noqa: F401, its threads start before the emulator
    import warnings
    import tutti.torch
    warnings.simplefilter('error')
    for seed in range(1, 21 if BUGS[name][2] else 2):
        tutti.torch.run(BUGS[name][0], RANKS, seed=seed)


def outcome(name, texts, codes, late):
    said = '\n'.join(re.findall(r'^(?:\[rank\d+\]: *)*([\w.]*(?:Error|Warning): .*)', '\n'.join(texts), re.M))
    if re.search(BUGS[name][1], said, re.S) and any(codes):
        return 'cause'
    return 'hang' if late else 'error' if any(codes) else 'silent'


def processes_run(commands, environments, seconds):
    """Outputs, statuses, and whether the time was over."""
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True) for command, environment in zip(commands, environments)]
    end, late = time.monotonic() + seconds, False
    while any(each.poll() is None for each in running):
        if time.monotonic() > end:
            late = True
            for each in running:
                each.kill()
        time.sleep(0.02)
    texts = [each.communicate()[0] for each in running]
    return texts, [0 if late and each.returncode == -9 else each.returncode for each in running], late


def gloo_run(name, seconds, detail):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    environments = [dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR='127.0.0.1',
                         MASTER_PORT=str(port), OMP_NUM_THREADS='1',
                         **({'TORCH_DISTRIBUTED_DEBUG': 'DETAIL'} if detail else {})) for rank in range(RANKS)]
    command = [sys.executable, __file__, '--rank', name]
    return outcome(name, *processes_run([command] * RANKS, environments, seconds))


def tutti_run(name, seconds):
    environment = dict(os.environ, PYTHONPATH=os.path.join(HERE, '..', 'python'), OMP_NUM_THREADS='1',
                       TUTTI_TRACE='off')
    return outcome(name, *processes_run([[sys.executable, __file__, '--tutti', name]], [environment], seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=15)
    parser.add_argument('--rank', help=argparse.SUPPRESS)
    parser.add_argument('--tutti', help=argparse.SUPPRESS)
    parser.add_argument('names', nargs='*')
    flags = parser.parse_args()
    if flags.rank:
        return rank_main(flags.rank)
    if flags.tutti:
        return tutti_main(flags.tutti)
    print('%-46s %-8s %-8s %-8s' % ('program', 'tutti', 'gloo', 'DETAIL'))
    counts = {}
    for name in flags.names or BUGS:
        found = (tutti_run(name, 60), gloo_run(name, flags.seconds, False), gloo_run(name, flags.seconds, True))
        print('%-46s %-8s %-8s %-8s' % (name, *found), flush=True)
        for way, each in zip(('tutti', 'gloo', 'DETAIL'), found):
            counts[way, each] = counts.get((way, each), 0) + 1
    for way in ('tutti', 'gloo', 'DETAIL'):
        print('%s: %s' % (way, ', '.join('%d %s' % (counts.get((way, each), 0), each)
                                         for each in ('cause', 'error', 'hang', 'silent'))))
    return None


if __name__ == '__main__':
    main()
