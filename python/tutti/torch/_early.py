"""Uses of a tensor before wait(): an error at the line that reads or writes it.

While operations of a thread have not been waited for, a TorchDispatchMode compares the tensors of each
operator with theirs. It is pushed only where no other mode is: the last one that began ends first. Whether it
is on the stack is always looked up, as autograd restores the stack that there was when backward began.
Methods that read a tensor's memory without an operator (_WITHOUT_OPERATORS) are wrapped when the first
operation is called that the program has to wait for. They stay wrapped: to change a class again and again
makes the interpreter slower at finding its attributes.
"""
import contextlib
import functools
import sys
import threading

import torch
import torch.distributed as dist
from torch.utils import _python_dispatch as _dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ._work import caller

_local = threading.local()
_enabled = True
_COMMUNICATION = ('c10d', '_c10d_functional', 'c10d_functional', '_c10d_functional_autograd')
_SHAPES_ALONE = {'empty_like', 'zeros_like', 'ones_like', 'full_like', 'rand_like', 'randn_like', 'new_empty',
                 'new_zeros', 'new_ones', 'new_full', 'new_empty_strided', 'sym_size', 'sym_stride',
                 'sym_numel', 'sym_storage_offset', 'is_same_size', 'is_contiguous', 'lift_fresh',
                 'record_stream', 'size', 'stride', 'numel', 'dim', 'device'}
# print() and str() call __repr__, numpy.asarray() numpy(), torch.save() and pickle __reduce_ex__.
_WITHOUT_OPERATORS = ('numpy', 'tolist', '__repr__', '__reduce_ex__', '__deepcopy__', '__dlpack__')
_wrapped = False
_outstanding = {}  # id of each work that a thread has not waited for; a dictionary changes in one step
_looked_up = {}  # operator -> _arguments() of it, because its schema takes long to ask


def _top():
    """The mode that looks at the next operator of this thread, or None."""
    return _dispatch._get_current_dispatch_mode()


def check_early_use(on):
    """Whether a tensor that is used before wait() is an error: True, the default, or False."""
    global _enabled
    _enabled = bool(on)


def _region(tensor):
    """(first byte, end, whether every byte between is the tensor's); None: it has no memory of its own."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.numel() == 0 or tensor.device.type != 'cpu':
        return None
    first, size = tensor.data_ptr(), tensor.element_size()
    if tensor.is_contiguous():
        return first, first + tensor.numel() * size, True
    last = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))
    return first, first + (last + 1) * size, last + 1 == tensor.numel()


def _overlap(one, other):
    """Whether two regions certainly have a byte in common."""
    if one[0] >= other[1] or other[0] >= one[1]:
        return False
    if one[2] and other[2]:
        return True
    if one[2] or other[2]:
        whole, part = (one, other) if one[2] else (other, one)
        return whole[0] <= part[0] < whole[1] or part[1] <= whole[1]
    return one[0] == other[0]


def _arguments(function):
    """(name, whether it is written) of the arguments with tensors' values; none for an operator without."""
    if function not in _looked_up:
        schema, name = function._schema, function._schema.name.partition('::')[2]
        none = function.namespace in _COMMUNICATION or function.is_view or name in _SHAPES_ALONE
        _looked_up[function] = () if none else tuple(
            (each.name, each.alias_info is not None and each.alias_info.is_write)
            for each in schema.arguments)
    return _looked_up[function]


class _Pending:
    """An operation that nothing has waited for."""

    def __init__(self, work, written, read):
        self.work, self.written, self.read = work, tuple(written), tuple(read)
        self.found = False  # whether they are regions already: often nothing asks

    def _find(self):
        self.written, self.read = ([each for each in map(_region, tensors) if each is not None]
                                   for tensors in (self.written, self.read))
        self.found = True

    def complain(self, region, writes):
        """Raises if this region must not be read, or written, now."""
        if not self.found:
            self._find()
        if any(_overlap(region, each) for each in self.written):
            what = 'writes to' if writes else 'reads'
        elif writes and any(_overlap(region, each) for each in self.read):
            what = 'writes to'
        else:
            return
        work = self.work
        raise dist.DistBackendError(
            '%s: rank %d %s its tensor at %s before wait(); called at %s'
            % (work.call, work.group.ranks[work.group._rank], what, caller(), work.place))


class _Mode(TorchDispatchMode):
    """Looks at the operators of one thread."""

    def __init__(self):
        super().__init__()
        self.pending, self.running, self.paused = {}, 0, 0  # running: operators, while it is off the stack

    @classmethod
    def ignore_compile_internals(cls):
        """Functions are compiled as without this mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls):
        """False: PyTorch need not import its compiler, which takes seconds, for the first operator."""
        return False

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if self.pending and not self.paused and _enabled:
            self._look(function, arguments, named or {})
        self.running += 1
        try:
            return function(*arguments, **(named or {}))
        finally:
            self.running -= 1

    def _look(self, function, arguments, named):
        for place, (name, writes) in enumerate(_arguments(function)):
            value = arguments[place] if place < len(arguments) else named.get(name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    self.look_at(tensor, writes)

    def look_at(self, tensor, writes):
        """Raises if this tensor must not be read, or written, now."""
        region = _region(tensor)
        if region is not None:
            for each in tuple(self.pending.values()):
                each.complain(region, writes)

    def is_idle(self):
        """Nothing is pending, and it is not on the stack."""
        return not self.pending and not self.running and _top() is not self

    def settle(self):
        """On the stack while something is pending, as far as its order permits."""
        if self.running:
            return
        top = _top()
        if self.pending and top is None and _enabled:
            _dispatch._push_mode(self)
        elif not self.pending and top is self:
            _dispatch._pop_mode()


class _ModeBesideCompiler(_Mode):
    """The same in a program that compiles: its frames are none to compile."""

    @classmethod
    def _should_skip_dynamo(cls):
        """True: as other modes."""
        return True

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        return super().__torch_dispatch__(function, types, arguments, named)


def _mode():
    kind = _ModeBesideCompiler if 'torch._dynamo' in sys.modules else _Mode
    mode = getattr(_local, 'mode', None)
    if mode is None or (type(mode) is not kind and mode.is_idle()):
        _local.mode = kind()
    return _local.mode


def _wrap(name):
    method = getattr(torch.Tensor, name)

    @functools.wraps(method)
    def look_and_call(self, *arguments, **named):
        if _outstanding:
            mode = getattr(_local, 'mode', None)
            if mode is not None and mode.pending and not mode.paused and _enabled:
                mode.look_at(self, False)
        return method(self, *arguments, **named)
    setattr(torch.Tensor, name, look_and_call)


def _wrap_methods():
    global _wrapped
    _wrapped = True
    for name in _WITHOUT_OPERATORS:
        _wrap(name)


def begin(work, written, read):
    """An operation was called that the program has to wait for."""
    if _enabled:
        if not _wrapped:
            _wrap_methods()
        mode = _mode()
        _outstanding[id(work)] = None
        mode.pending[id(work)] = _Pending(work, written, read)
        mode.settle()


def end(work):
    """It has been waited for, or has ended."""
    _outstanding.pop(id(work), None)
    mode = getattr(_local, 'mode', None)
    if mode is not None and mode.pending.pop(id(work), None) is not None:
        mode.settle()


def pass_messages_by():
    """Calls of messages do not go through the mode, where they take some 15 us more."""
    for name in ('send', 'recv', 'recv_anysource'):
        def call(self, *arguments, _call=getattr(dist.ProcessGroup, name), **named):
            mode = getattr(_local, 'mode', None)
            if mode is None or _top() is not mode:
                return _call(self, *arguments, **named)
            mode.running += 1
            try:
                with _dispatch._pop_mode_temporarily():
                    return _call(self, *arguments, **named)
            finally:
                mode.running -= 1
        setattr(dist.ProcessGroup, name, call)


@contextlib.contextmanager
def pause():
    """The operators of the block are the backend's own."""
    mode = _mode()
    mode.paused += 1
    try:
        yield
    finally:
        mode.paused -= 1
