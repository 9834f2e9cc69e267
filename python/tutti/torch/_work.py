"""What the calls of the backend return: torch.distributed.Work."""
import copy
import inspect
import os
import sys
import threading

import torch
import torch.distributed as dist

_PASSED_OVER = (*(os.path.dirname(each) + os.sep for each in (torch.__file__, __file__)), copy.__file__)


def place_of(frame):
    """The program's line of a frame: "train.py:12 (step)"; frames of PyTorch, of this package and of copy.py
    are not."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        frame = frame.f_back
    return '%s:%d (%s)' % (os.path.basename(frame.f_code.co_filename), frame.f_lineno, frame.f_code.co_name)


def caller():
    """The program's line that called."""
    return place_of(sys._getframe(1))


_BLOCKING = {inspect.unwrap(each).__code__ for each in (dist.send, dist.recv)}


def waits_at_once():
    """True if the message that is being called is that of a call that waits for it: the program cannot use
    its tensor before."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PASSED_OVER):
        if frame.f_code in _BLOCKING:
            return True
        frame = frame.f_back
    return False


_asked = threading.local()
_nothing = torch.futures.Future()
_nothing.set_result(None)


def _own(work):
    """The Work behind what C++ has made of it; None: it is another backend's. C++ passes on get_future()."""
    _asked.for_work, _asked.work = True, None
    try:
        work.get_future()
    except RuntimeError:
        pass
    finally:
        _asked.for_work = False
    return _asked.work


def pass_on_questions():
    """PyTorch passes wait() and get_future() of works on to Python, and answers everything else itself."""
    for name in ('is_completed', 'is_success', 'exception', 'result', 'synchronize', 'source_rank',
                 '_source_rank'):
        def ask(self, *arguments, _name=name, _else=getattr(dist.Work, name)):
            own = self if isinstance(self, Work) else _own(self)
            return _else(self, *arguments) if own is None else getattr(own, _name)(*arguments)
        setattr(dist.Work, name, ask)


class Work(dist.Work):
    """An operation that was called. Its results exist after wait(), or once is_completed() is true."""

    def __init__(self, group, call, outputs, tensors, finish=None, source=None):
        super().__init__()
        self.group, self.call, self.outputs = group, call, outputs
        self.tensors = tensors  # live as long as the operation
        self.finish, self.source = finish, source
        self.event = None  # None: not yet on the stream
        self.ended, self.error, self.waited = False, None, False
        self.place = None  # of an asynchronous call or a message: the line that called
        self.on_end = None  # called with the work
        self.queue = self.comm = None  # the works of its stream; the communicator of a message
        self.name = self.peer = self.tag = self.stored = None  # of a message, see _messages.py
        self._future = None

    def end(self, error=None):
        """The stream has passed the operation, or will not."""
        if self.ended:
            return
        self.ended, self.error = True, error
        if self.on_end is not None:
            self.on_end(self)
        if self.finish is not None and error is None:
            self.finish()
        self.tensors = self.finish = None

    # ---- what torch.distributed calls

    def wait(self, timeout=None):
        """Waits for the result; DistBackendError with the library's sentence if there will be none."""
        self.waited = True
        if not self.ended:
            self.group.wait_for(self, timeout)
        if self.error is not None:
            raise self.error
        return True

    def synchronize(self):
        """As wait()."""
        self.wait()

    def is_completed(self):
        """True once the result exists, or the operation has failed."""
        if not self.ended:
            self.group.look_at(self)
        self.waited = self.waited or self.ended
        return self.ended

    def is_success(self):
        """True if it has ended without an error."""
        return self.ended and self.error is None

    def exception(self):
        """The error that it ended with, or None."""
        return self.error

    def result(self):
        """The tensors that hold the result."""
        return self.outputs

    def source_rank(self):
        """The rank that a message came from."""
        return self.source

    _source_rank = source_rank

    def get_future(self):
        """A future that has ended: the call waits, because nothing moves while no thread waits."""
        if getattr(_asked, 'for_work', False):
            _asked.work = self
            return _nothing
        if self._future is None:
            self._future = torch.futures.Future()
            try:
                self.wait()
                self._future.set_result(self.outputs)
            except dist.DistBackendError as error:
                self._future.set_exception(error)
        return self._future
