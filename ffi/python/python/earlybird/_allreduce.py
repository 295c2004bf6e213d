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
    """What a rank has in a round."""

    rank: int
    part: Literal["carried", "fresh", "leaving"]
    age: int
    """How many rounds late it is."""
    weight: int


class _Round:
    """The cut of a round, and its number."""

    __slots__ = ("_cut", "_of", "round")

    round: int
    """Counted from 1."""

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
        """The contributions in it, and the ranks that leave, in the order of reduction."""
        return self._read_cut()[1]

    @property
    def initiator(self) -> int | None:
        """The rank that closed the round; none in a synchronous one."""
        return self._read_cut()[0]

    @property
    def fresh(self) -> list[int]:
        """Ranks whose contribution entered the round that it was made for."""
        return [entry.rank for entry in self.entries if entry.part == "fresh"]

    @property
    def carried(self) -> list[int]:
        """Ranks whose contribution was late."""
        return [entry.rank for entry in self.entries if entry.part == "carried"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of round {self.round}>"


class Outcome(_Round):
    """The outcome of one round: data, round and cut. Valid until its allreduce goes on."""

    __slots__ = ()

    _of: Allreduce

    @property
    def data(self) -> Array:
        """The reduced elements of all tensors, read in place."""
        return array_of(self._of._outcome(self.round), self._of.dtype)

    def tensors(self) -> list[Array]:
        """The same, tensor by tensor."""
        return self._of._split(self.data)


class _Handle:
    """What the handles of collectives have in common."""

    _dtype_of_arrays: np.dtype[Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of arrays; for ``bf16`` that of its bits."""
        if self._dtype_of_arrays is None:
            self._dtype_of_arrays = DTYPES[self._dtype]
        return self._dtype_of_arrays

    def finish(self, timeout: float | None = None) -> None:
        """Leaves in good order: what is carried enters a round, and no other rank counts on this one.

        Outcomes that were not taken are dropped; ``leave`` gives them.
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

    def _finish(self, timeout: float | None) -> None:
        raise NotImplementedError

    def _abort(self, reason: str) -> None:
        raise NotImplementedError


class Allreduce(_earlybird.Allreduce, _Handle):
    """A persistent partial allreduce: *contribution, arrive, wait*, round after round, and *finish*.

    One thread at a time may use it. Leaving a ``with`` block finishes it; an exception in the block aborts the job instead,
    because the others would wait for this rank.
    """

    _open: Array | None = None
    _is_awaited = False

    def _split(self, array: Array) -> list[Array]:
        ends = np.cumsum(self.lengths)
        return np.split(array, ends[:-1]) if len(ends) else []

    def contribution(self) -> Array:
        """The memory of the next contribution, with the content of an earlier one. Written in place until ``arrive``."""
        if self._open is None:
            self._open = array_of(self._contribution(), self.dtype)
        return self._open

    def tensors(self) -> list[Array]:
        """The contribution, tensor by tensor."""
        return self._split(self.contribution())

    def arrive(self) -> None:
        """Hands the contribution in and returns at once. The array that ``contribution`` gave is read-only from here on."""
        self._arrive()
        if self._open is not None:
            self._open.flags.writeable = False
            self._open = None

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Waits for the outcome of the last arrival: it, and all that were missed, oldest first. Ctrl-C ends the wait.

        After :class:`Timeout` nothing is lost: call again to go on.
        """
        first, last = self._wait(timeout)
        return [Outcome(self, round) for round in range(first, last + 1)]

    def try_wait(self) -> list[Outcome] | None:
        """As ``wait`` without waiting: none if the outcome is not there yet."""
        rounds = self._try_wait()
        return None if rounds is None else [Outcome(self, round) for round in range(rounds[0], rounds[1] + 1)]

    async def outcomes(self) -> list[Outcome]:
        """As ``wait`` for asyncio, whose loop runs other tasks meanwhile. It needs the executor ``"thread"``."""
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
        """Leaves as ``finish`` does, and gives the outcomes that were not taken, oldest first: with them this rank has all that
        it contributed.

        Other ranks may wait until the loop over them ends. Do not keep arrays of an outcome. ``timeout`` is for each outcome.
        After :class:`Timeout`, or a loop that was left early, call ``leave`` or ``finish`` again. To wait until all have left, call
        ``World.barrier`` after it, with a timeout for as long as others may go on.
        """
        while (rounds := self._leave(timeout)) is not None:
            for round in range(rounds[0], rounds[1] + 1):
                yield Outcome(self, round)
