"""Calls of a process group, one after the other."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from .._errors import Timeout, UsageError, reason

Call = Callable[[], list[torch.Tensor]]


class MadeCall(Work):
    """A call that was made, or will be: what torch waits for."""

    def __init__(self, call: Call, abort: Callable[[str], None], devices: Sequence[torch.device] = ()) -> None:
        super().__init__()
        self._call: Call | None = call
        self._abort = abort
        self._error: Exception | None = None
        self.interrupt: BaseException | None = None
        """What ends the program and not only this call: Ctrl-C."""
        # Held until the call is made. A wait for it ends at Ctrl-C, one for a future does not.
        self._going_on = threading.Lock()
        self._going_on.acquire()
        self.source: int | None = None
        """The rank that a message came from."""
        # What it results in may lie on these devices only.
        self._made: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
        # A failure that a callback raises reaches what waits in C++, too.
        self._future = self._made.then(self._result)

    def _result(self, made: torch.futures.Future[Any]) -> Any:
        if self._error is not None:
            raise self._error
        return made.value()

    def make(self) -> None:
        """Makes the call."""
        call, self._call, result = self._call, None, []
        try:
            result = call() if call is not None else []
        except BaseException as error:
            # What leaves a thread is lost: what waits for this gets it.
            if isinstance(error, Exception):
                self._error = error
            else:
                self._error, self.interrupt = RuntimeError(reason(error)), error
        # What waits must not wait for callbacks of the future.
        self._going_on.release()
        self._made.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._made.done():
            # torch says "no limit" by 0.
            seconds = timeout.total_seconds() if timeout else -1
            try:
                if not self._going_on.acquire(timeout=seconds):
                    raise Timeout(f"the call is not done after {seconds} s; it goes on until its own deadline")
            except KeyboardInterrupt:
                # It cannot be taken back.
                self._abort("a wait for a call was interrupted")
                raise
            self._going_on.release()
            self._made.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._made.done()

    def is_success(self) -> bool:
        return self._made.done() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._made.value()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future

    def _source_rank(self) -> int:
        if self.source is None:
            raise ValueError("only a message of any rank has a source, once it has come")
        return self.source


class Calls:
    """A thread that makes calls in the order in which they are handed in, without the interpreter's lock."""

    def __init__(self, name: str, abort: Callable[[str], None]) -> None:
        self._name = name
        # Ends all calls of all ranks.
        self.abort = abort
        self._waiting: queue.SimpleQueue[MadeCall | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # One call at a time, whichever thread makes it.
        self._making = threading.Lock()
        self._maker: int | None = None
        self._pending = 0
        self._idle = threading.Condition(self._lock)
        self._ended = False
        with _ALL_LOCK:
            _ALL.add(self)

    def make(self, call: Call, asynchronous: bool = True, devices: Sequence[torch.device] = ()) -> MadeCall:
        """Makes a call: now, if the caller will wait for it anyway and no other is before it."""
        made = MadeCall(call, self.abort, devices)
        if self._maker == threading.get_ident():
            raise UsageError("a signal handler must not make a call of a group in the middle of one of the same thread")
        with self._lock:
            self.check()
            direct = not asynchronous and self._pending == 0
            self._pending += int(direct)
        if direct:
            try:
                with self._making:
                    self._maker = threading.get_ident()
                    made.make()
            finally:
                self._maker = None
                self._count()
            if made.interrupt is not None:
                raise made.interrupt
        else:
            self.add(made)
        return made

    def add(self, made: MadeCall) -> None:
        """Makes a call after all others."""
        with self._lock:
            self.check()
            self._pending += 1
            self._start()
            self._waiting.put(made)

    def check(self) -> None:
        """Raises an error after the end."""
        if self._ended:
            raise RuntimeError("the process group was shut down")

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (made := self._waiting.get()) is not None:
            try:
                with self._making:
                    made.make()
            finally:
                self._count()

    def _count(self) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._idle.notify_all()

    def end(self, patience: float | None = None) -> None:
        """Ends the thread after the calls that were handed in, and waits for that: so many seconds, or until it has happened."""
        with _ALL_LOCK:
            _ALL.discard(self)
        with self._lock:
            self._ended = True
            self._waiting.put(None)
            thread = self._thread
            if thread is None or thread is threading.current_thread():
                return
            is_idle = self._idle.wait_for(lambda: self._pending == 0, patience)
        if is_idle:
            thread.join()


_ALL: weakref.WeakSet[Calls] = weakref.WeakSet()
_ALL_LOCK = threading.Lock()
_PROCESS = os.getpid()

PATIENCE = 1.0
"""A call that has not ended after so many seconds may never do: a message that does not come."""


def end_all(ended: Iterable[Calls]) -> None:
    """Ends several, and waits a while for all of them together."""
    until = time.monotonic() + PATIENCE
    for calls in ended:
        calls.end(max(0.0, until - time.monotonic()))


@atexit.register
def _end() -> None:
    # An interpreter that ends while a thread of its is inside torch aborts the process. A forked child has no such threads.
    if os.getpid() == _PROCESS:
        with _ALL_LOCK:
            left = list(_ALL)
        end_all(left)
