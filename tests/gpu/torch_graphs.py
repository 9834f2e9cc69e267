"""torch_graphs.py: collectives of PyTorch in CUDA graphs: captured, replayed many times between eager
calls, from several communicators, and captured again. Run by torch.sh."""
import torch
import torch.distributed as dist
from torch_common import DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, run, same, start

COUNTS = (1, 1024, 32768, 262144, 5000011)


def need_gpus():
    if GLOO:
        raise Skip('GPUs alone')


def capture(body):
    """A warm-up on a side stream, as PyTorch's documentation requires, then the graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def all_reduce(count):
    need_gpus()
    data = torch.zeros(count, device=DEVICE)
    graph = capture(lambda: dist.all_reduce(data))
    for turn in range(10):
        data.fill_(RANK + turn)
        graph.replay()
        eager = torch.full((1000,), float(RANK), device=DEVICE)
        dist.all_reduce(eager)
        same(data, torch.full((count,), float(SIZE * turn + SIZE * (SIZE - 1) // 2)))
        same(eager, torch.full((1000,), SIZE * (SIZE - 1) / 2))


def many_in_one():
    """The operations of a layer: matrix products, sums, gathers and scatters in one graph."""
    need_gpus()
    left = torch.eye(256, device=DEVICE) * 2
    data = torch.zeros(256, 256, device=DEVICE)
    whole = torch.zeros(256 * SIZE, 256, device=DEVICE)
    part = torch.zeros(256, 256, device=DEVICE)

    def body():
        work = left @ data
        dist.all_reduce(work)
        dist.all_gather_into_tensor(whole, work)
        dist.reduce_scatter_tensor(part, whole)
        part.add_(1)

    graph = capture(body)
    for turn in range(20):
        data.fill_(turn)
        graph.replay()
        same(part, torch.full((256, 256), 2.0 * turn * SIZE * SIZE + 1))


def back_to_back():
    """A thousand replays with nothing in between; each doubles, is summed, and is scaled back."""
    need_gpus()
    data = torch.ones(4096, device=DEVICE)

    def body():
        dist.all_reduce(data)
        data.div_(SIZE)

    graph = capture(body)
    data.fill_(3)
    for _ in range(1000):
        graph.replay()
    same(data, torch.full((4096,), 3.0))


def several_groups():
    """Two communicators in one graph, on two streams."""
    need_gpus()
    other = dist.new_group(list(range(SIZE)))
    first, second = torch.zeros(70000, device=DEVICE), torch.zeros(50000, device=DEVICE)

    def body():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        dist.all_reduce(first)
        with torch.cuda.stream(side):
            dist.all_reduce(second, group=other)
        torch.cuda.current_stream().wait_stream(side)

    graph = capture(body)
    for turn in range(50):
        first.fill_(turn)
        second.fill_(2 * turn)
        graph.replay()
        same(first, torch.full((70000,), float(turn * SIZE)))
        same(second, torch.full((50000,), 2.0 * turn * SIZE))
    del graph
    dist.destroy_process_group(other)


def all_to_all():
    need_gpus()
    source = torch.zeros(SIZE * 1000, device=DEVICE)
    out = torch.zeros(SIZE * 1000, device=DEVICE)
    graph = capture(lambda: dist.all_to_all_single(out, source))
    for turn in range(10):
        source.copy_(torch.arange(SIZE, device=DEVICE).repeat_interleave(1000) + 10 * RANK + turn)
        graph.replay()
        same(out, (torch.arange(SIZE).repeat_interleave(1000) * 10 + RANK + turn).float())


def messages():
    need_gpus()
    if SIZE < 2:
        raise Skip('one rank sends to nobody')
    data = torch.zeros(100000, device=DEVICE)
    out = torch.zeros(100000, device=DEVICE)

    def body():
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, (RANK + 1) % SIZE),
                                            dist.P2POp(dist.irecv, out, (RANK - 1) % SIZE)]):
            work.wait()

    graph = capture(body)
    for turn in range(10):
        data.fill_(100 * turn + RANK)
        graph.replay()
        same(out, torch.full((100000,), 100.0 * turn + (RANK - 1) % SIZE))


start()
run('the library', check_library)
for size in COUNTS:
    run('a graph of one all_reduce of %d' % size, all_reduce, size)
run('a graph of a layer', many_in_one)
run('a thousand replays', back_to_back)
run('a graph over two groups', several_groups)
run('a graph of all_to_all_single', all_to_all)
run('a graph of messages', messages)
finish()
