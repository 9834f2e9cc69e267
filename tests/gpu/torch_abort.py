"""torch_abort.py: behaviour when a rank does not call: a time-out, an abort by the program, an abort by
PyTorch's watchdog, and a clean exit. torch_abort.py MODE, with MODE one of

    work       Work.wait(timeout) in blocking-wait mode fails, the group is aborted, the program exits with 0
    abort      the program aborts a stuck group itself and makes a new one
    watchdog   PyTorch's watchdog detects the time-out and ends the process: torch.sh expects the failure
    leave      a rank exits without notice, the others detect it

Run by torch.sh."""
import os
import sys
import time
from datetime import timedelta

MODE = sys.argv[1] if len(sys.argv) > 1 else 'abort'
if MODE == 'work':
    os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'
if MODE != 'watchdog':
    os.environ['TORCH_NCCL_ASYNC_ERROR_HANDLING'] = '0'
    os.environ['TORCH_NCCL_ENABLE_MONITORING'] = '0'
os.environ['TORCH_NCCL_DUMP_ON_TIMEOUT'] = '0'
os.environ['TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC'] = '1000'
os.environ['TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC'] = '10'

import torch
import torch.distributed as dist
from torch_common import DEVICE, GLOO, RANK, SIZE, Skip, check_library, finish, run, same, start

LATE = SIZE - 1
SHORT = timedelta(seconds=4)


def need_several():
    if GLOO or SIZE < 2:
        raise Skip('needs two GPUs')


def sums():
    data = torch.full((5000,), float(RANK), device=DEVICE)
    dist.all_reduce(data)
    same(data, torch.full((5000,), SIZE * (SIZE - 1) / 2))


def stuck_work():
    """All ranks but the last call."""
    need_several()
    if RANK == LATE:
        time.sleep(10)
        return
    data = torch.zeros(5000, device=DEVICE)
    begin = time.monotonic()
    try:
        dist.all_reduce(data, async_op=True).wait(SHORT)
    except RuntimeError as error:
        # The first rank whose time-out expires aborts; the others detect the abort.
        assert any(word in str(error) for word in ('imed out', 'imeout', 'was aborted')), error
        assert time.monotonic() - begin < 30
        return
    raise AssertionError('the wait ended well')


def abort_and_anew():
    """The group is aborted on all ranks while kernels of some wait, and created again."""
    need_several()
    if RANK != LATE:
        dist.all_reduce(torch.zeros(5000, device=DEVICE), async_op=True)
    time.sleep(2)
    begin = time.monotonic()
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    assert time.monotonic() - begin < 20, 'the abort took %.1f s' % (time.monotonic() - begin)
    start()
    sums()


def leave():
    """The last rank exits abruptly; the others abort and exit."""
    need_several()
    if RANK == LATE:
        sys.stdout.flush()
        os._exit(0)
    try:
        dist.all_reduce(torch.zeros(5000, device=DEVICE), async_op=True)
    except RuntimeError as error:  # the loss may have been detected already
        print('    refused: %s' % str(error).split('\n', maxsplit=1)[0], flush=True)
    time.sleep(2)
    dist.distributed_c10d._abort_process_group()
    torch.cuda.synchronize()
    if RANK == 0:
        print('ok - torch, %d GPUs: a rank that left: the others abort' % SIZE, flush=True)
    os._exit(0)


def watchdog():
    if RANK == LATE:
        time.sleep(60)
        return
    dist.all_reduce(torch.zeros(5000, device=DEVICE))
    torch.cuda.synchronize()  # returns after the watchdog has aborted the group, before it ends the process
    time.sleep(30)
    print('not ok - the watchdog let it pass', flush=True)


start(timeout=SHORT if MODE == 'watchdog' else timedelta(seconds=30))
run('the library', check_library)
run('a sum that ends', sums)
if MODE == 'leave' and SIZE > 1:
    leave()
elif MODE == 'watchdog' and SIZE > 1:
    watchdog()
elif MODE == 'work':
    run('a time-out of one call', stuck_work)
    if SIZE > 1:
        dist.distributed_c10d._abort_process_group()
else:
    run('abort, and a new group', abort_and_anew)
    run('abort, and a new group, again', abort_and_anew)
finish()
