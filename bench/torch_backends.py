#!/usr/bin/env python3
"""torch_backends.py: dist.all_reduce of CPU tensors by the backend "tutti" (both modes of the emulator) and by gloo,
with processes as ranks, in one run: medians and best times in microseconds.

  bench/torch_backends.py [RANKS...]     (default: 2 4; needs PyTorch, and the build for TUTTI_LIBRARY_PATH)"""
import os
import socket
import statistics
import subprocess
import sys
import time

SIZES = (4 << 10, 1 << 20, 64 << 20)
HERE = os.path.dirname(os.path.abspath(__file__))


def rank(backend):
    import torch
    import torch.distributed as dist
    if backend == 'tutti':
        import tutti.torch  # noqa: F401, registers the backend
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        times = []
        for _ in range(10 if size > 1 << 24 else 200):
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append((time.perf_counter() - begin) * 1e6)
        if dist.get_rank() == 0:
            print('%d %.1f %.1f' % (size, statistics.median(times[2:]), min(times)), flush=True)
    dist.destroy_process_group()


def measure(backend, mode, count):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    processes = []
    for number in range(count):
        environment = dict(os.environ, RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(count),
                           MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), TUTTI_EMU='mode=' + mode,
                           TUTTI_TRACE='off', PYTHONPATH=os.path.join(HERE, '..', 'python'))
        processes.append(subprocess.Popen([sys.executable, __file__, '--rank', backend], env=environment,
                                          stdout=subprocess.PIPE, text=True))
    lines = processes[0].communicate(timeout=300)[0].splitlines()
    for process in processes[1:]:
        process.communicate(timeout=60)
    return {int(size): (float(median), float(best)) for size, median, best in map(str.split, lines)}


def main():
    print('%6s %9s %24s %24s %24s' % ('ranks', 'bytes', 'gloo median, best', 'threads', 'guarded'))
    for count in [int(each) for each in sys.argv[1:]] or [2, 4]:
        found = [measure('gloo', 'guarded', count), measure('tutti', 'threads', count),
                 measure('tutti', 'guarded', count)]
        for size in SIZES:
            print('%6d %9d' % (count, size) + ''.join(' %12.1f %11.1f' % each[size] for each in found))


if __name__ == '__main__':
    if sys.argv[1:2] == ['--rank']:
        rank(sys.argv[2])
    else:
        main()
