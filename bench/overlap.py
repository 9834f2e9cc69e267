"""overlap.py: what collectives cost a program that computes beside them. Matrix products that fill the GPU are
timed alone, then beside collectives without end on another stream. Under a budget of CTAs they may slow down by
the multiprocessors that those take, and by what both take from memory.

    NCCL_MAX_CTAS=8 python3 -m torch.distributed.run --nproc-per-node 2 bench/overlap.py
    the same with LD_PRELOAD=build/lib/libnccl.so.2 TUTTI_BACKEND=cuda

Prints a line a collective: microseconds of a product alone and beside it, by how much that is slower, and the
collective's bus bandwidth meanwhile. Needs PyTorch and two GPUs."""
import os
import statistics

import torch
import torch.distributed as dist

PRODUCTS, ROUNDS, BYTES = 100, 5, 128 << 20


def timed(work, stream):
    """Microseconds of `work` on `stream`."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        begin.record()
        work()
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000


def collectives(size, device):
    whole = torch.zeros(BYTES // 4, device=device)
    part = torch.zeros(BYTES // 4 // size, device=device)
    return (('all_reduce', 2 * (size - 1) / size, lambda: dist.all_reduce(whole)),
            ('all_gather', (size - 1) / size, lambda: dist.all_gather_into_tensor(whole, part)),
            ('reduce_scatter', (size - 1) / size, lambda: dist.reduce_scatter_tensor(part, whole)))


def beside(call, products, compute, communicate, product_us):
    """Products' time while calls go on, and the calls' time; as many calls as the products last for."""
    call_us = timed(lambda: [call() for _ in range(5)], communicate) / 5
    wanted = torch.tensor([max(2, int(1.3 * PRODUCTS * product_us / call_us))], device='cuda')
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)  # ranks that time otherwise call as often
    count = int(wanted)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(communicate):
        begin.record()
        for _ in range(count):
            call()
        end.record()
    both_us = timed(products, compute) / PRODUCTS
    end.synchronize()
    return both_us, begin.elapsed_time(end) * 1000 / count


def main():
    rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
    device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
    torch.cuda.set_device(device)
    dist.init_process_group('nccl', device_id=device)
    compute, communicate = torch.cuda.Stream(), torch.cuda.Stream()
    left = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    right, product = torch.randn_like(left), torch.empty_like(left)

    def products():
        for _ in range(PRODUCTS):
            torch.mm(left, right, out=product)

    timed(products, compute)
    alone = statistics.median(timed(products, compute) / PRODUCTS for _ in range(ROUNDS))
    units = torch.cuda.get_device_properties(device).multi_processor_count
    if rank == 0:
        with open('/proc/self/maps', encoding='utf-8') as maps:
            libraries = sorted({line.split()[-1] for line in maps if 'libnccl.so' in line})
        print('# %s, NCCL_MAX_CTAS=%s, %d multiprocessors' % (
            ' '.join(libraries), os.environ.get('NCCL_MAX_CTAS', ''), units))
    for name, factor, call in collectives(size, device):
        rounds = [beside(call, products, compute, communicate, alone) for _ in range(ROUNDS)]
        both, call_us = (statistics.median(values) for values in zip(*rounds))
        if rank == 0:
            print('%-14s product %.1f us alone, %.1f beside: %.1f %% slower; %.0f GB/s bus bandwidth' % (
                name, alone, both, (both / alone - 1) * 100, BYTES / call_us * factor / 1000))
    dist.destroy_process_group()


main()
