"""The persistent partial allreduce."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from . import _earlybird
from ._dtypes import DTYPES, Array, array_of
from ._errors import UsageError, reason


class Entry(NamedTuple):
    """A rank's part in a round."""

    rank: int
    part: Literal["carried", "fresh", "leaving"]
    age: int
    """The number of rounds that it is late."""
    weight: int
    computed: float | None = None
    """How long the rank computed the contribution, in seconds by its own clock; ``None`` where that is not known:
    steps below a millisecond are measured once in 16 rounds, and contributions with weights never."""
    waited: float | None = None
    """How long the rank waited in a call for its round before this one, in seconds."""


class SlowSpell(NamedTuple):
    """A time in which a rank was slow."""

    since: int
    """The first round for which the rank made a contribution slowly."""
    until: int | None
    """The first round for which it was as fast as the others again; ``None`` if it still is slow."""
    factor: float
    """How many times as long as a fast rank it took."""
    cost: float
    """What waiting for it costs, or would have cost, in seconds of each waiting rank."""


class RankLateness(NamedTuple):
    """What is known of the lateness of a rank."""

    rank: int
    contributions: int
    late: int
    """The contributions that came too late for their own round."""
    mean_age: float
    """The rounds by which contributions were late, in the mean of all."""
    measured: int
    """The steps that were measured."""
    slow: int
    """Of these, the steps that took 15 % longer than those of a fast rank."""
    computed: float
    """Seconds in the steps that were measured."""
    waited: float
    would_wait: float
    """Seconds that it would have waited in these steps if each had waited for all ranks."""
    spells: list[SlowSpell]
    """When the rank was slow for long. Empty for a rank whose slow steps are jitter."""


class _Round:
    """The cut of a round, and its number."""

    __slots__ = ("_cut", "_of", "round")

    round: int
    """The round's number, counted from 1."""

    def __init__(self, of: Any, round: int) -> None:
        self._of = of
        self._cut: tuple[int | None, list[Entry]] | None = None
        self.round = round

    def _read_cut(self) -> tuple[int | None, list[Entry]]:
        if self._cut is None:
            initiator, entries = self._of._cut(self.round)
            self._cut = (initiator, [Entry(*entry) for entry in entries])
        return self._cut

    @property
    def entries(self) -> list[Entry]:
        """The contributions of the round and the ranks that leave in it, in the order of reduction."""
        return self._read_cut()[1]

    @property
    def initiator(self) -> int | None:
        """The rank that closed the round; ``None`` in a synchronous round."""
        return self._read_cut()[0]

    @property
    def fresh(self) -> list[int]:
        """The ranks whose contribution entered the round that it was made for."""
        return [entry.rank for entry in self.entries if entry.part == "fresh"]

    @property
    def carried(self) -> list[int]:
        """The ranks whose contribution was late."""
        return [entry.rank for entry in self.entries if entry.part == "carried"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of round {self.round}>"


class Outcome(_Round):
    """The outcome of one round: data, round and cut. Valid until a later call of its allreduce releases it."""

    __slots__ = ()

    _of: Allreduce

    @property
    def data(self) -> Array:
        """The reduced elements of all tensors, read in place."""
        return array_of(self._of._outcome(self.round), self._of.dtype)

    def tensors(self) -> list[Array]:
        """Returns the reduced elements as one array for each tensor, read in place."""
        return self._of._split(self.data)


class _Handle:
    """The common methods of the handles of collectives."""

    _dtype_of_arrays: np.dtype[Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the arrays; for ``bf16`` the 16-bit integer type that holds its bits."""
        if self._dtype_of_arrays is None:
            self._dtype_of_arrays = DTYPES[self._dtype]
        return self._dtype_of_arrays

    def lateness(self) -> list[RankLateness]:
        """Returns which ranks were late, since when, and what that costs, in the rounds whose outcomes this rank has
        released. It follows from the cuts, so all ranks know the same of the same rounds.
        """
        ranks = []
        for rank, account in enumerate(self._lateness()):
            contributions, late, age, measured, slow, computed, waited, would_wait, spells = account
            known = [SlowSpell(*spell) for spell in spells]
            times = (computed, waited, would_wait)
            ranks.append(RankLateness(rank, contributions, late, age, measured, slow, *times, known))
        return ranks

    def finish(self, timeout: float | None = None) -> None:
        """Leaves in good order: what is carried enters a round, and no other rank depends on this one afterwards.

        Drops outcomes that were not taken; ``leave`` returns them.
        """
        self._finish(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.finish()
        else:
            self._abort(reason(error))

    @property
    def _dtype(self) -> str:
        raise NotImplementedError

    def _lateness(self) -> list[Any]:
        raise NotImplementedError

    def _finish(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _abort(self, reason: str) -> None:
        raise NotImplementedError


class Allreduce(_earlybird.Allreduce, _Handle):
    """A persistent partial allreduce: *contribution, arrive, wait*, round after round, and then *finish*.

    One thread at a time may use it. Leaving a ``with`` block finishes it. An exception in the block aborts the job
    instead, because the others would wait for this rank.
    """

    _open: Array | None = None
    _is_awaited = False

    def _split(self, array: Array) -> list[Array]:
        ends = np.cumsum(self.lengths)
        return np.split(array, ends[:-1]) if len(ends) else []

    def contribution(self) -> Array:
        """Returns the memory of the next contribution, with the content of an earlier one. Write it in place before
        ``arrive``.
        """
        if self._open is None:
            self._open = array_of(self._contribution(), self.dtype)
        return self._open

    def tensors(self) -> list[Array]:
        """Returns the contribution as one array for each tensor."""
        return self._split(self.contribution())

    def arrive(self) -> None:
        """Hands in the contribution and returns at once. The array from ``contribution`` is read-only from here on."""
        self._arrive()
        if self._open is not None:
            self._open.flags.writeable = False
            self._open = None

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Waits for the outcome of the last arrival. Returns it with all outcomes that this rank missed, oldest first.
        Ctrl-C ends the wait.

        After :class:`Timeout` nothing is lost: call again to continue.
        """
        first, last = self._wait(timeout)
        return [Outcome(self, round) for round in range(first, last + 1)]

    def try_wait(self) -> list[Outcome] | None:
        """As ``wait``, without blocking: returns ``None`` if the outcome is not available yet."""
        rounds = self._try_wait()
        return None if rounds is None else [Outcome(self, round) for round in range(rounds[0], rounds[1] + 1)]

    async def outcomes(self) -> list[Outcome]:
        """As ``wait``, for asyncio: the loop runs other tasks meanwhile. It needs the executor ``"thread"``."""
        if self._is_awaited:
            raise UsageError("another task waits for these outcomes")
        loop = asyncio.get_running_loop()
        descriptor = self.fileno()
        self._is_awaited = True
        try:
            while (taken := self.try_wait()) is None:
                readable = asyncio.Event()
                loop.add_reader(descriptor, readable.set)
                await readable.wait()
        finally:
            loop.remove_reader(descriptor)
            self._is_awaited = False
        return taken

    def leave(self, timeout: float | None = None) -> Iterator[Outcome]:
        """Leaves like ``finish``, and yields the outcomes that were not taken, oldest first. With them, this rank has
        all that it contributed.

        Other ranks may wait until the loop over the outcomes ends. Do not keep arrays of an outcome. ``timeout``
        applies to each outcome. After :class:`Timeout`, or after leaving the loop early, call ``leave`` or ``finish``
        again. To wait until all ranks have left, call ``World.barrier`` afterwards, with a timeout that covers the
        time for which other ranks may continue.
        """
        while (rounds := self._leave(timeout)) is not None:
            for round in range(rounds[0], rounds[1] + 1):
                yield Outcome(self, round)
