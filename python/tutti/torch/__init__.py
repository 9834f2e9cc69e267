"""A backend for torch.distributed on the CPU: NCCL's collectives in the emulator, repeatable and checked.

    import tutti.torch
    torch.distributed.init_process_group('tutti')

torchrun, torch.multiprocessing.spawn and new_group() work as with other backends. run() has threads as
ranks, for tests.
"""
import torch.distributed as _dist

from ._backend import ProcessGroup, create
from ._backend import pass_on_splits as _pass_on_splits
from ._backend import pass_over_missing_gpus as _pass_over_missing_gpus
from ._early import check_early_use
from ._early import pass_messages_by as _pass_messages_by
from ._threads import run
from ._work import pass_on_questions as _pass_on_questions

__all__ = ['ProcessGroup', 'check_early_use', 'run']

if not hasattr(_dist.Backend, 'TUTTI'):
    _pass_on_questions()
    _pass_on_splits()
    _pass_messages_by()
    _pass_over_missing_gpus()
    _dist.Backend.register_backend('tutti', create, extended_api=True, devices=['cpu'])
