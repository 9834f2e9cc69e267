"""torch_groups.py: messages and groups of PyTorch: send and receive in every form, batches of them,
sub-groups, split groups, barriers, Python objects, and process groups made and destroyed again.
torch_groups.py MODE, with MODE `lazy` (groups without device_id, which connect at their first call) or
`eager` (with). Run by torch.sh."""
import sys

import torch
import torch.distributed as dist
from torch_common import DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, run, same, start


def numbers(rank, count, dtype=torch.float32):
    return ((torch.arange(count) * 5 + rank * 11) % 97).to(dtype)


def here(rank, count, dtype=torch.float32):
    return numbers(rank, count, dtype).to(DEVICE)


def need_two():
    if SIZE < 2:
        raise Skip('one rank sends to nobody')


def send_receive():
    need_two()
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for count in (1, 1000, 3000001):
            for sender in range(SIZE):
                to = (sender + 1) % SIZE
                if RANK == sender:
                    dist.send(here(sender, count, dtype), to)
                elif RANK == to:
                    data = torch.zeros(count, dtype=dtype, device=DEVICE)
                    dist.recv(data, sender)
                    same(data, numbers(sender, count, dtype))


def isend_irecv():
    need_two()
    data = torch.zeros(1000, device=DEVICE)
    if RANK == 0:
        for to in range(1, SIZE):
            dist.isend(here(to, 1000), to).wait()
    else:
        dist.irecv(data, 0).wait()
        same(data, numbers(RANK, 1000))


def batch(count):
    """Every rank to every rank at once, with a different size per pair."""
    need_two()
    outs = [torch.zeros(count + 3 * rank + RANK, device=DEVICE) for rank in range(SIZE)]
    works = []
    for peer in range(SIZE):
        if peer != RANK:
            works.append(dist.P2POp(dist.irecv, outs[peer], peer))
            works.append(dist.P2POp(dist.isend, here(RANK, count + 3 * RANK + peer), peer))
    for work in dist.batch_isend_irecv(works):
        work.wait()
    for peer in range(SIZE):
        if peer != RANK:
            same(outs[peer], numbers(peer, count + 3 * peer + RANK))


def pipeline():
    """A pipeline: each stage forwards what it received, repeatedly, in both directions at once."""
    need_two()
    forth, back = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    data = here(RANK, 70000)
    for _ in range(4 * SIZE):
        out = torch.zeros(70000, device=DEVICE)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, forth),
                                            dist.P2POp(dist.irecv, out, back)]):
            work.wait()
        data = out
    same(data, numbers(RANK, 70000))


def sum_over(group, ranks, count=5000):
    data = here(RANK, count)
    dist.all_reduce(data, group=group)
    same(data, sum(numbers(rank, count) for rank in ranks))


def sub_groups():
    for ranks in ([0], list(range(SIZE)), list(range(0, SIZE, 2)), list(range(SIZE - 1, -1, -1))):
        group = dist.new_group(ranks)
        if RANK in ranks:
            sum_over(group, ranks)
            out = torch.zeros(100, device=DEVICE) if RANK != ranks[0] else here(7, 100)
            dist.broadcast(out, ranks[0], group)
            same(out, numbers(7, 100))
            dist.barrier(group)
            dist.destroy_process_group(group)


def enumerated_subgroups():
    if SIZE % 2 or SIZE < 2:
        raise Skip('pairs need an even number')
    group, groups = dist.new_subgroups(2)
    first = RANK // 2 * 2
    sum_over(group, [first, first + 1])
    for each in groups:
        if RANK in dist.get_process_group_ranks(each):
            dist.destroy_process_group(each)


def split_group():
    if GLOO or not hasattr(dist, 'split_group'):
        raise Skip('NCCL alone')
    halves = [list(range(SIZE // 2)), list(range(SIZE // 2, SIZE))] if SIZE > 1 else [[0]]
    group = dist.split_group(split_ranks=halves)
    ranks = halves[0] if RANK in halves[0] else halves[1]
    sum_over(group, ranks)
    sum_over(None, range(SIZE))
    dist.destroy_process_group(group)


def device_mesh():
    from torch.distributed.device_mesh import init_device_mesh
    if SIZE < 4 or SIZE % 2:
        raise Skip('two dimensions need four ranks')
    mesh = init_device_mesh(DEVICE.type, (SIZE // 2, 2), mesh_dim_names=('data', 'model'))
    sum_over(mesh.get_group('model'), [RANK // 2 * 2, RANK // 2 * 2 + 1])
    sum_over(mesh.get_group('data'), range(RANK % 2, SIZE, 2))


def barriers():
    for _ in range(20):
        dist.barrier()
    dist.barrier(async_op=True).wait()
    if not GLOO:
        dist.barrier(device_ids=[DEVICE.index])


def objects():
    mine = {'rank': RANK, 'text': 'x' * (100 * RANK + 1), 'list': list(range(RANK))}
    out = [None] * SIZE
    dist.all_gather_object(out, mine)
    assert [each['rank'] for each in out] == list(range(SIZE))
    some = [mine, 'two'] if RANK == 0 else [None, None]
    dist.broadcast_object_list(some, 0, device=DEVICE)
    assert some[0]['rank'] == 0 and some[1] == 'two'
    out = [None] * SIZE if RANK == 0 else None
    dist.gather_object(mine, out, 0)
    assert RANK != 0 or len(out[SIZE - 1]['list']) == SIZE - 1
    got = [None]
    dist.scatter_object_list(got, [{'to': rank} for rank in range(SIZE)] if RANK == 0 else None, 0)
    assert got[0]['to'] == RANK
    if SIZE > 1:
        if RANK == 0:
            dist.send_object_list([mine], 1, device=DEVICE)
        elif RANK == 1:
            got = [None]
            dist.recv_object_list(got, 0, device=DEVICE)
            assert got[0]['rank'] == 0


def sum_now():
    sum_over(None, range(SIZE))


def again(with_device_id):
    """The group of all ranks is destroyed and created again."""
    if dist.is_initialized():
        dist.destroy_process_group()
    start(with_device_id)
    sum_over(None, range(SIZE))


EAGER = sys.argv[1:] == ['eager']
start(with_device_id=EAGER)
run('the library', check_library)
run('the first call', sum_now)
if EAGER:
    run('split_group', split_group)
else:
    run('send, recv', send_receive)
    run('isend, irecv', isend_irecv)
for size in (1, 4000, 1000000):
    run('batch_isend_irecv of %d' % size, batch, size)
run('a pipeline both ways', pipeline)
run('sub-groups', sub_groups)
run('new_subgroups', enumerated_subgroups)
run('device_mesh', device_mesh)
run('barriers', barriers)
run('objects', objects)
run('destroy, and init again', again, not EAGER)
run('sub-groups of the second group', sub_groups)
run('destroy, and init a third time', again, EAGER)
run('barriers of the third group', barriers)
finish()
