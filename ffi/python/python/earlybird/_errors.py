"""What can go wrong. Every error says in one line what failed, on which rank, why, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def reason(error: BaseException | None) -> str:
    """What an exception says, for ranks that did not see it."""
    return f"{type(error).__name__}: {error}"


class Error(RuntimeError):
    """A failure of the library."""

    rank: int | None = None
    """The rank that reports."""
    peer: int | None = None
    """The rank that the failure concerns: the dead one, the first that is missing, the one that aborted."""


class Timeout(Error, TimeoutError):
    """The time was over. After ``wait`` and ``finish`` nothing is lost: call again to go on."""


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
    """The world could not be set up: a rank did not come, or told something else."""


class OutOfMemory(Error, MemoryError):
    """Less memory than is needed, or than may be locked."""


class SystemFailure(Error, OSError):
    """The operating system refused."""


class ConfigError(Error, ValueError):
    """An invalid choice, variable or file."""


class UsageError(Error):
    """A call that is not allowed now."""


class Failure:
    """The error after which every call of a world fails, once there was one."""

    def __init__(self) -> None:
        self._error: Error | None = None

    @contextlib.contextmanager
    def noted(self, *also: type[Error]) -> Iterator[None]:
        """Notes such an error of the calls within, or one of these kinds."""
        kinds: tuple[type[Error], ...] = (PeerDied, PeerLeft, Aborted, TransportError, *also)
        try:
            yield
        except kinds as error:
            self._error = error
            raise

    def check(self) -> None:
        """Fails with the same error again: what comes after it has no other cause."""
        if self._error is not None:
            raise self._error
