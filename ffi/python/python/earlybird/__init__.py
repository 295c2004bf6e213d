"""Partial collectives: the first process to arrive triggers, late ones are carried, nothing is lost.

>>> import earlybird
>>> with earlybird.World() as world:
...     with world.allreduce(4, scale="world") as mean:
...         mean.contribution()[:] = world.rank
...         mean.arrive()
...         for outcome in mean.wait(timeout=30):
...             print(outcome.round, outcome.data)
1 [0. 0. 0. 0.]

Arrays are registered memory, written and read in place. That of a contribution is read-only from ``arrive`` on. Those of
outcomes must be gone before the next ``contribution`` or ``arrive``, which gives their memory away: copy what you keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _earlybird
from ._earlybird import __version__
from ._errors import (
    Aborted,
    ConfigError,
    Error,
    Mismatch,
    PeerDied,
    PeerLeft,
    Timeout,
    TransportError,
    UsageError,
)

__all__ = [
    "Aborted",
    "Allreduce",
    "ConfigError",
    "Entry",
    "Error",
    "Mismatch",
    "Outcome",
    "PeerDied",
    "PeerLeft",
    "Timeout",
    "TransportError",
    "UsageError",
    "World",
    "__version__",
]

Array = npt.NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    # NumPy has no such type: these are its bits.
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
}


def _dtype_name(dtype: npt.DTypeLike) -> str:
    """The library's name of an element type, from that name or from what NumPy takes for one."""
    if isinstance(dtype, str) and dtype in _DTYPES:
        return dtype
    wanted = np.dtype(dtype)
    for name, known in _DTYPES.items():
        if known == wanted and name != "bf16":
            return name
    raise ConfigError(f"dtype: {wanted} is none of {', '.join(_DTYPES)}")


def _array(memory: _earlybird.Memory, dtype: np.dtype[Any]) -> Array:
    """The memory itself. The array keeps its loan."""
    return np.frombuffer(memoryview(memory), dtype=dtype)


class Entry(NamedTuple):
    """What a rank has in a round."""

    rank: int
    part: Literal["carried", "fresh", "leaving"]
    age: int
    """How many rounds late it is."""
    weight: int


class Outcome:
    """The outcome of one round: data, round and cut. Valid until its allreduce goes on."""

    __slots__ = ("_cut", "_of", "round")

    round: int
    """Counted from 1."""

    def __init__(self, of: Allreduce, round: int) -> None:
        self._of = of
        self._cut: tuple[int | None, list[Entry]] | None = None
        self.round = round

    @property
    def data(self) -> Array:
        """The reduced elements of all tensors, read in place."""
        return _array(self._of._outcome(self.round), self._of.dtype)

    def tensors(self) -> list[Array]:
        """The same, tensor by tensor."""
        return self._of._split(self.data)

    def _read_cut(self) -> tuple[int | None, list[Entry]]:
        if self._cut is None:
            initiator, entries = self._of._read_cut(self.round)
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
        return f"<Outcome of round {self.round}>"


class Allreduce(_earlybird.Allreduce):
    """A persistent partial allreduce: *contribution, arrive, wait*, round after round, and *finish*.

    One thread at a time may use it. Leaving a ``with`` block finishes it; an exception in the block aborts the job instead,
    because the others would wait for this rank.
    """

    _open: Array | None = None
    _dtype_of_arrays: np.dtype[Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of arrays; for ``bf16`` that of its bits."""
        if self._dtype_of_arrays is None:
            self._dtype_of_arrays = _DTYPES[self._dtype]
        return self._dtype_of_arrays

    def _split(self, array: Array) -> list[Array]:
        ends = np.cumsum(self.lengths)
        return np.split(array, ends[:-1]) if len(ends) else []

    def _read_cut(self, round: int) -> tuple[int | None, list[tuple[int, Any, int, int]]]:
        return self._cut(round)

    def contribution(self) -> Array:
        """The memory of the next contribution, with the content of an earlier one. Written in place until ``arrive``."""
        if self._open is None:
            self._open = _array(self._contribution(), self.dtype)
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

    def test(self) -> list[Outcome] | None:
        """As ``wait`` without waiting: none if the outcome is not there yet."""
        rounds = self._test()
        return None if rounds is None else [Outcome(self, round) for round in range(rounds[0], rounds[1] + 1)]

    async def outcomes(self) -> list[Outcome]:
        """As ``wait`` for asyncio, whose loop runs other tasks meanwhile. It needs the executor ``"thread"``."""
        loop = asyncio.get_running_loop()
        descriptor = self.fileno()
        while (taken := self.test()) is None:
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
        return taken

    def finish(self, timeout: float | None = None) -> None:
        """Leaves in good order: what is carried enters a round, and no other rank counts on this one."""
        self._finish(timeout)

    def __enter__(self) -> Allreduce:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.finish()
        else:
            self._abort(f"{type(error).__name__}: {error}")


class World(_earlybird.World):
    """The processes of a job, as one of them sees them: rank and size come from the launcher's environment.

    Threads may share it. A forked child gets an error from each call.
    """

    @classmethod
    def from_env(cls, **choices: Any) -> World:
        """The same as ``World()``."""
        return cls(**choices)

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all ranks have called it."""
        self._barrier(timeout)

    def broadcast(self, array: Array, root: int = 0, timeout: float | None = None) -> Array:
        """Copies an array of rank ``root`` to all ranks, in place. No other thread may use the array meanwhile."""
        if not array.flags.c_contiguous:
            raise UsageError("a broadcast needs a contiguous array; use numpy.ascontiguousarray")
        self._broadcast(array.reshape(-1).view(np.uint8).data, root, timeout)
        return array

    def allreduce(
        self, lengths: int | Sequence[int], *, dtype: npt.DTypeLike = "f32", model: Array | None = None, **choices: str | int
    ) -> Allreduce:
        """Begins a collective over tensors of these lengths. All ranks make the same choices.

        Choices are those of the command line: ``fire="quorum=5"``, ``grace="50us"``, ``absent="carry"``, ``reduce="max"``,
        ``scale="contributions"``, ``group="butterfly=8"``, ``preset="wagma"``, ``mover="cut"``, ``executor="thread"``,
        ``depth=8``. ``model`` is what all ranks begin with, if contributions are updates of a model.
        """
        chosen: Iterable[int] = [lengths] if isinstance(lengths, int) else lengths
        name = _dtype_name(dtype)
        bytes_of_model = None if model is None else np.ascontiguousarray(model, dtype=_DTYPES[name]).tobytes()
        # The preset first: the others change it.
        texts = sorted(((name, str(value)) for name, value in choices.items()), key=lambda choice: choice[0] != "preset")
        return Allreduce(self, list(chosen), name, bytes_of_model, texts)

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
