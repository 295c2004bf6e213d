"""What can go wrong. Every error says in one line what failed, on which rank, why, and what to do."""

from __future__ import annotations


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
