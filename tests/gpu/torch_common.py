"""torch_common.py: shared by the PyTorch programs of this folder. One process per GPU, started by
torchrun. `run(name, body)` runs a check on every rank and has rank 0 print one `ok - `, `not ok - ` or `skip:
` line for all, agreed on through a file and not through the library under test. `library()` returns
the libnccl that the process has mapped. With TUTTI_TEST_BACKEND=gloo the same programs run on the CPU, to
test the programs themselves."""
import ctypes
import glob
import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ.get('RANK', '0'))
SIZE = int(os.environ.get('WORLD_SIZE', '1'))
LOCAL = int(os.environ.get('LOCAL_RANK', '0'))
if os.environ.get('NCCL_MULTI_RANK_GPU_ENABLE') == '1':
    LOCAL %= max(torch.cuda.device_count(), 1)  # ranks share the devices
GLOO = os.environ.get('TUTTI_TEST_BACKEND') == 'gloo'
DEVICE = torch.device('cpu') if GLOO else torch.device('cuda', LOCAL)
PATIENCE = timedelta(seconds=40)

# torchrun's process is the parent of all ranks, so they agree on the name.
_path = '%s/tutti-torch-%d-%s' % (tempfile.gettempdir(), os.getppid(), os.environ.get('MASTER_PORT', '0'))
_store = dist.FileStore(_path, SIZE)
_store.set_timeout(PATIENCE)
_count, _failed, _starts = 0, 0, 0


class Skip(Exception):
    """Raised if this PyTorch or this backend lacks a feature; names it."""


def say(text):
    if RANK == 0:
        print(text, flush=True)


def synchronize():
    if not GLOO:
        torch.cuda.synchronize()


def last_words(error):
    """The failure and its location in one line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if 'tests/gpu' in frame.filename
              or os.path.dirname(os.path.abspath(__file__)) in frame.filename]
    place = '%s:%d' % (os.path.basename(frames[-1].filename), frames[-1].lineno) if frames else '?'
    text = ' '.join(str(error).split())
    return '%s: %s: %s' % (place, type(error).__name__, text[:300])


def outcome_of(body):
    try:
        body()
        synchronize()
        return 'ok'
    except Skip as reason:
        return 'skip: %s' % reason
    except (AssertionError, RuntimeError, ValueError, TypeError, AttributeError, OSError) as error:
        lacking = isinstance(error, (NotImplementedError, RuntimeError)) and GLOO and any(
            word in str(error) for word in ('not support', 'not implemented', 'Unsupported', 'nvalid scalar'))
        return 'skip: gloo: %s' % str(error).split('\n')[0][:80] if lacking else last_words(error)


def agree(name, outcome):
    """Called by all ranks; rank 0 prints the common result."""
    global _count, _failed
    _count += 1
    _store.set('%d/%d' % (_count, RANK), outcome)
    if RANK != 0:
        _failed += outcome != 'ok' and not outcome.startswith('skip')
        return
    faults, skips = [], []
    for rank in range(SIZE):
        try:
            said = _store.get('%d/%d' % (_count, rank)).decode()
        except RuntimeError:
            said = 'no result within %d s' % PATIENCE.seconds
        if said.startswith('skip'):
            skips.append(said)
        elif said != 'ok':
            faults.append('rank %d: %s' % (rank, said))
    _failed += bool(faults)
    if faults:
        print('not ok - %s\n    %s' % (name, '\n    '.join(faults)), flush=True)
    else:
        print('%s: %s' % (skips[0], name) if skips else 'ok - %s' % name, flush=True)


def run(name, body, *arguments):
    agree('torch, %d GPUs: %s' % (SIZE, name), outcome_of(lambda: body(*arguments)))


def library():
    """Path of the mapped libnccl and whether it is this library, by a symbol that only this library has."""
    with open('/proc/self/maps', encoding='utf-8') as maps:
        paths = sorted({line.split(maxsplit=5)[5].strip() for line in maps if '/libnccl.so' in line})
    ours = [hasattr(ctypes.CDLL(path), 'tutti_version') for path in paths]
    return paths, ours


def check_library():
    """Checks that the process has the library named by TUTTI_TEST_LIBRARY (tutti or nccl). With LD_PRELOAD
    PyTorch also maps its own file, by its full path, but calls this library: the library's output proves
    that, and torch.sh checks it."""
    wanted = os.environ.get('TUTTI_TEST_LIBRARY')
    if GLOO or not wanted:
        raise Skip('TUTTI_TEST_LIBRARY is not set')
    paths, ours = library()
    alone = len(paths) == 1 or 'LD_PRELOAD' in os.environ
    assert paths and alone, 'libnccl is mapped %d times: %s' % (len(paths), paths)
    assert any(ours) == (wanted == 'tutti'), 'mapped is %s' % paths


def start(with_device_id=True, timeout=PATIENCE):
    """The process group of all ranks: the first uses torchrun's store, a later one its own file,
    because torchrun's store still has the keys of the first."""
    global _starts
    if not GLOO:
        torch.cuda.set_device(LOCAL)
    place = {}
    if _starts:
        place = {'store': dist.FileStore('%s-%d' % (_path, _starts), SIZE), 'rank': RANK, 'world_size': SIZE}
    _starts += 1
    device_id = DEVICE if with_device_id and not GLOO else None
    dist.init_process_group('gloo' if GLOO else 'nccl', device_id=device_id, timeout=timeout, **place)


def finish():
    """Ends the group and the program, with status 1 if a check failed."""
    if dist.is_initialized():
        run('destroy_process_group', dist.destroy_process_group)
    _store.add('left', 1)
    if RANK == 0:
        while int(_store.add('left', 0)) < SIZE:
            pass
        for path in glob.glob(_path + '*'):
            os.unlink(path)
    raise SystemExit(1 if _failed else 0)


def same(actual, expected):
    """Exactly equal, for any type."""
    actual = actual.detach().cpu()
    assert actual.shape == expected.shape, '%s is not %s' % (tuple(actual.shape), tuple(expected.shape))
    if actual.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        actual, expected = actual.float(), expected.float()
    wrong = (actual != expected).flatten().nonzero().flatten()
    if len(wrong):
        i = int(wrong[0])
        raise AssertionError('%d of %d elements of %s differ, first [%d]: %s, not %s' % (
            len(wrong), actual.numel(), actual.dtype, i, actual.flatten()[i].item(),
            expected.flatten()[i].item()))
