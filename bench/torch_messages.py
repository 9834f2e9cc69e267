#!/usr/bin/env python3
"""torch_messages.py: messages by the backend "tutti" of torch.distributed, with threads as ranks: microseconds.

  bench/torch_messages.py      (needs PyTorch, and the build for TUTTI_LIBRARY_PATH)

`one way`: half of a round trip of 4 bytes between two ranks. `ring`: each rank calls an isend to the next one
and an irecv from the one before, and waits for both. `batch`: the same as one batch_isend_irecv. Medians of
rank 0's times, and the best; five runs of each, all of them printed."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'python'))
import tutti.torch  # noqa: E402, registers the backend

TIMES = 300


def one_way():
    tensor, first = torch.zeros(1), dist.get_rank() == 0
    if first:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def neighbours():
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % size, (rank - 1) % size


def ring():
    ahead, behind = neighbours()
    for work in (dist.isend(torch.zeros(1), ahead), dist.irecv(torch.zeros(1), behind)):
        work.wait()


def batch():
    ahead, behind = neighbours()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.zeros(1), ahead),
                                        dist.P2POp(dist.irecv, torch.zeros(1), behind)]):
        work.wait()


def timed(step):
    times = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times[10:]), min(times)


def main():
    torch.set_num_threads(1)
    for ranks, step in ((2, one_way), (2, ring), (4, ring), (2, batch), (4, batch)):
        part = 2 if step is one_way else 1
        runs = [tutti.torch.run(timed, ranks, step, seed=1)[0] for _ in range(5)]
        print('%-8s %d ranks, median (best):' % (step.__name__, ranks),
              '  '.join('%.1f (%.1f)' % (median / part, best / part) for median, best in runs), flush=True)


if __name__ == '__main__':
    main()
