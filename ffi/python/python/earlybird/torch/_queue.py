"""Calls of a process group, one after the other."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from .._earlybird import end_waits, wait_until_end
from .._errors import Timeout, UsageError, reason
from ._waits import Entry, explained, make_calls_of_others, waiting

Call = Callable[[], list[torch.Tensor]]


class MadeCall(Work):
    """A call that was made or will be made; torch waits for it."""

    def __init__(self, calls: Calls, call: Call, devices: Sequence[torch.device] = ()) -> None:
        super().__init__()
        self._calls = calls
        self._call: Call | None = call
        self.entry: Entry | None = None
        """What ranks that wait for the call are told."""
        # Its results may lie only on these devices.
        self._devices = list(devices)
        self._result: list[torch.Tensor] = []
        self._error: Exception | None = None
        self.interrupt: BaseException | None = None
        """An exception that ends the program and not only this call: Ctrl-C."""
        self._is_done = False
        # Held until the call is made. A wait for it ends at Ctrl-C; a wait for a future does not.
        self._going_on = threading.Lock()
        self._going_on.acquire()
        self.source: int | None = None
        """The rank that sent the message."""
        # Its number in the queue, which maintains these fields.
        self.number = 0
        self.is_waiting = False
        """Whether it was handed in and no thread makes it yet."""
        self.is_over = False
        """Whether it was made and its callbacks have begun, or it has none."""
        self.is_behind = False
        """Whether its callbacks come after calls that were handed in later."""
        self.future: torch.futures.Future[Any] | None = None
        # The future that this one follows; :meth:`tell` completes it.
        self._made: torch.futures.Future[Any] | None = None

    def make(self) -> None:
        """Makes the call."""
        call, self._call = self._call, None
        try:
            self._result = call() if call is not None else []
        except BaseException as error:
            # An exception that leaves a thread is lost, so it goes to whatever waits for this call.
            if isinstance(error, Exception):
                self._error = explained(self.entry, error)
            else:
                self._error, self.interrupt = RuntimeError(reason(error)), error
        self._is_done = True
        self._going_on.release()

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._is_done:
            self._calls.check_process()
            self._calls.hurry(self)
            # torch passes 0 for "no limit".
            seconds = timeout.total_seconds() if timeout else -1
            try:
                with waiting(self.entry):
                    is_done = self._going_on.acquire(timeout=seconds)
                if not is_done:
                    raise Timeout(f"the call is not done after {seconds} s; it goes on until its own deadline")
            except KeyboardInterrupt:
                # The call cannot be undone.
                self._calls.abort("a wait for a call was interrupted")
                raise
            self._going_on.release()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._is_done

    def is_success(self) -> bool:
        return self._is_done and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        return self._calls.future_of(self)

    def open(self) -> torch.futures.Future[Any]:
        """Creates the future."""
        self._made = torch.futures.Future(devices=self._devices)
        # A failure that a callback raises also reaches waiters in C++.
        self.future = self._made.then(self._outcome)
        return self.future

    def _outcome(self, made: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return made.value()

    def tell(self) -> None:
        """Completes the future: its callbacks run now."""
        made, self._made = self._made, None
        if made is not None:
            made.set_result(self._result)

    def _source_rank(self) -> int:
        if self.source is None:
            raise ValueError("only a message of any rank has a source, once it has come")
        return self.source


class _Thread(threading.local):
    def __init__(self) -> None:
        self.callbacks: list[Calls] = []
        """The queues whose callbacks the thread is running; the innermost is the last."""


_THREAD = _Thread()


class Calls:
    """A thread that makes calls in the order in which they are handed in, without the interpreter's lock.

    Callbacks have a place in this order, so that the calls that they make come in the same order on all ranks: after
    the call whose future it is, and after what was handed in before the program asked for the future. The queue waits
    there until the callbacks return. Calls that they hand in are made when they wait for them, or else when they
    return, before all later calls. Threads that run a callback make these calls themselves, so none of them waits for
    a queue that waits for it.
    """

    def __init__(self, name: str, abort: Callable[[str], None]) -> None:
        self._name = name
        # Ends all calls of all ranks.
        self.abort = abort
        self._waiting: deque[MadeCall] = deque()
        # The calls that running callbacks have handed in; the innermost callback is the last.
        self._inner: list[deque[MadeCall]] = []
        self._handed_in = 0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # Signals that a call waits, that a callback has returned, or that the queue ends.
        self._changed = threading.Condition(self._lock)
        # One call at a time, taken in its turn by any thread.
        self._making = threading.Lock()
        self._maker: int | None = None
        self._pending = 0
        self._idle = threading.Condition(self._lock)
        self._ended = False
        self._process = os.getpid()
        with _ALL_LOCK:
            _ALL.add(self)

    def make(
        self,
        call: Call,
        asynchronous: bool = True,
        devices: Sequence[torch.device] = (),
        entry: Entry | None = None,
    ) -> MadeCall:
        """Makes a call: at once, if the caller waits for it anyway and no other call is before it."""
        made = MadeCall(self, call, devices)
        made.entry = entry
        self.check_process()
        if self._maker == threading.get_ident():
            raise UsageError("a signal handler must not make a call of a group in the middle of one of the same thread")
        with self._lock:
            self.check()
            direct = not asynchronous and self._pending == 0
            if direct:
                self._pending += 1
            else:
                self._put(made)
        if direct:
            try:
                with self._making:
                    self._maker = threading.get_ident()
                    with waiting(entry):
                        made.make()
            finally:
                self._maker = None
                made.is_over = True
                self._count()
            if made.interrupt is not None:
                raise made.interrupt
        return made

    def add(self, made: MadeCall) -> None:
        """Adds a call after all others."""
        self.check_process()
        with self._lock:
            self.check()
            self._put(made)

    def check_process(self) -> None:
        """Raises an error in a forked child. It lacks the thread that makes calls, and its copy of a lock may be held
        for ever.
        """
        if os.getpid() != self._process:
            raise UsageError("a forked child must not use a process group of its parent; start processes by spawn")

    def check(self) -> None:
        """Raises an error after the end, except in a callback, which was begun before it."""
        if self._ended and self not in _THREAD.callbacks:
            raise RuntimeError("the process group was shut down")

    def _put(self, made: MadeCall) -> None:
        self._pending += 1
        self._handed_in += 1
        made.number = self._handed_in
        made.is_waiting = True
        if self in _THREAD.callbacks:
            self._inner[-1].append(made)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._waiting.append(made)
        self._changed.notify_all()

    def future_of(self, made: MadeCall) -> torch.futures.Future[Any]:
        """Returns the future of a call. Its callbacks come after all that was handed in before the first call of this
        method.
        """
        self.check_process()
        self.hurry(made, made.future is not None)
        with self._lock:
            if made.future is not None:
                return made.future
            future, is_over = made.open(), made.is_over
            if not is_over and made.number < self._handed_in:
                made.is_behind = True
                self._put(made)
        if is_over:
            made.tell()
        return future

    def hurry(self, made: MadeCall, over: bool = False) -> None:
        """Makes a call and all earlier ones, if this thread is in a callback for which its queue may wait. With
        ``over`` it also runs the callbacks of the call.
        """
        while self._inner and _THREAD.callbacks and (made.is_waiting or (over and made.is_behind and not made.is_over)):
            if not self._step():
                return

    def _run(self) -> None:
        wait_until_end()
        make_calls_of_others()
        while True:
            with self._lock:
                # The calls that a callback hands in come before waiting ones, whichever thread runs it.
                self._changed.wait_for(lambda: not self._inner and (self._waiting or self._ended))
                if not self._waiting:
                    return
            self._step()

    def _step(self, inner: deque[MadeCall] | None = None) -> bool:
        """Makes the next call and runs its callbacks; if the call was made before, it only runs them. Returns whether
        there was one, among those that a callback has handed in, or else among all.
        """
        with self._making:
            with self._lock:
                full = [each for each in (self._inner if inner is None else [inner]) if each]
                source = full[-1] if full else self._waiting if inner is None else inner
                if not source:
                    return False
                made = source.popleft()
                made.is_waiting = False
            if not made.is_completed():
                made.make()
                with self._lock:
                    made.is_over = not made.is_behind
            else:
                made.is_over = True
        try:
            if made.is_over and made.future is not None:
                self._tell(made)
        finally:
            self._count()
        return True

    def _tell(self, made: MadeCall) -> None:
        inner: deque[MadeCall] = deque()
        with self._lock:
            self._inner.append(inner)
        _THREAD.callbacks.append(self)
        try:
            made.tell()
            while self._step(inner):
                pass
        finally:
            _THREAD.callbacks.pop()
            with self._lock:
                self._inner = [other for other in self._inner if other is not inner]
                self._changed.notify_all()

    def _count(self) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._idle.notify_all()

    def end(self, patience: float | None = None) -> None:
        """Ends the thread after the calls that were handed in, and waits for its end, ``patience`` seconds at most if
        given. In a forked child there is no thread.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._ended:
                return
            self._ended = True
            self._changed.notify_all()
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            is_idle = self._idle.wait_for(lambda: self._pending == 0, patience)
        if is_idle:
            thread.join()

    def drop(self) -> None:
        """Drops the waiting calls, and waits a while for the thread to return from the call that it makes."""
        if self._thread is not None:
            with self._lock:
                self._waiting.clear()
                self._ended = True
                self._changed.notify_all()
            self._thread.join(PATIENCE)


# The queues that are used, or have a thread.
_ALL: weakref.WeakSet[Calls] = weakref.WeakSet()
_ALL_LOCK = threading.Lock()
_PROCESS = os.getpid()

PATIENCE = 1.0
"""The seconds after which an unfinished call may never finish, such as a wait for a message that does not come."""


def end_all(ended: Iterable[Calls]) -> None:
    """Ends several queues, and waits a while for all of them together."""
    until = time.monotonic() + PATIENCE
    for calls in ended:
        calls.end(max(0.0, until - time.monotonic()))


@atexit.register
def _end() -> None:
    # An interpreter that ends while one of its threads is inside torch aborts the process. A forked child lacks these
    # threads.
    if os.getpid() == _PROCESS:
        with _ALL_LOCK:
            left = list(_ALL)
        end_all(left)
        end_waits()
        for calls in left:
            calls.drop()
