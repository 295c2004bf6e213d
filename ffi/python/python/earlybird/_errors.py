"""The errors of the library. Each says in one line what failed, on which rank, why, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def reason(error: BaseException | None) -> str:
    """Returns what an exception says, for ranks that did not see it."""
    return f"{type(error).__name__}: {error}"


class Error(RuntimeError):
    """A failure of the library."""

    rank: int | None = None
    """The rank that reports."""
    peer: int | None = None
    """The other rank that the failure concerns: the dead rank, the first missing rank, or the rank that aborted."""


class Timeout(Error, TimeoutError):
    """The deadline passed. After ``wait`` and ``finish`` nothing is lost: call again to continue."""


class PeerDied(Error, ConnectionError):
    """A process ended without leaving its collectives. Every later call fails the same way."""


class PeerLeft(Error, ConnectionError):
    """A rank that had left in good order was still needed."""


class Aborted(Error):
    """A rank called ``abort``. Every later call fails the same way."""


class Mismatch(Error, ValueError):
    """Ranks disagree on something that must be the same everywhere."""


class TransportError(Error, ConnectionError):
    """A transport failed after the world had been joined."""


class JoinError(Error, ConnectionError):
    """The world could not be set up: a rank did not come, or passed other values."""


class OutOfMemory(Error, MemoryError):
    """The call needs more memory than is available, or than this process may lock."""


class SystemFailure(Error, OSError):
    """The operating system returned an error."""


class ConfigError(Error, ValueError):
    """An invalid choice, variable or file."""


class UsageError(Error):
    """A call that is not allowed, or not now."""

    misuse: str | None = None
    """What is wrong: a ``choice`` or an ``argument``; the ``order`` of calls; the rank has ``finished``, or the child was
    ``forked``; what the call needs is ``unavailable`` or ``exhausted``; or the ranks are ``out of step``. ``None`` if the call was
    refused before it reached the library."""


class Failure:
    """The error after which every call of a world fails, once it has occurred."""

    def __init__(self) -> None:
        self._error: Error | None = None

    @contextlib.contextmanager
    def noted(self, *also: type[Error]) -> Iterator[None]:
        """Records such an error of the calls within, or an error of one of these kinds."""
        kinds: tuple[type[Error], ...] = (PeerDied, PeerLeft, Aborted, TransportError, *also)
        try:
            yield
        except kinds as error:
            self._error = error
            raise

    def check(self) -> None:
        """Raises the recorded error again: later errors have the same cause."""
        if self._error is not None:
            raise self._error
