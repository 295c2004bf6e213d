"""The processes of a job."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _earlybird
from ._allreduce import Allreduce
from ._dtypes import DTYPES, Array, dtype_name
from ._earlybird import collectives
from ._errors import UsageError


def _bytes(array: Array) -> memoryview:
    """The memory of an array."""
    if not array.flags.c_contiguous:
        raise UsageError("a call needs contiguous arrays; use numpy.ascontiguousarray")
    return array.reshape(-1).view(np.uint8).data


class World(_earlybird.World):
    """The processes of a job, as one of them sees them: rank and size come from the launcher's environment.

    Threads may share it. A forked child gets an error from each call.
    """

    @classmethod
    def from_env(cls, **choices: Any) -> World:
        """The same as ``World()``."""
        return cls(**choices)

    @classmethod
    def join(cls, rank: int, size: int, store: str, **choices: Any) -> World:
        """Joins a world of ``size`` ranks as ``rank``, whatever the environment says.

        All ranks name the same store, a new one for each world: ``unix:NAME`` on one machine, or ``tcp:HOST:PORT`` with a
        free port on the host of rank 0.
        """
        return cls(place=(rank, size, store), **choices)

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = "f32", timeout: float | None = None) -> Array:
        """An array in memory that the other ranks read in place: ``all_reduce`` over it copies nothing.

        All ranks call this in the same order, with the same shape and type, and then reduce the same parts. Over a network,
        and for a few KiB, a reduction copies all the same. ``copies`` counts. After a reduction that failed other ranks may
        still read the array, so do not write it any more.
        """
        chosen = DTYPES[dtype] if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype)
        dimensions = list(map(operator.index, shape if isinstance(shape, Iterable) else [shape]))
        memory = collectives.symmetric(self, math.prod(dimensions) * chosen.itemsize, timeout)
        return np.ndarray(dimensions, chosen, memoryview(memory))

    def barrier(self, timeout: float | None = None) -> None:
        """Waits until all ranks have called it."""
        collectives.barrier(self, timeout)

    def broadcast(self, array: Array, root: int = 0, timeout: float | None = None) -> Array:
        """Copies an array of rank ``root`` to all ranks, in place. No other thread may use the array meanwhile."""
        collectives.broadcast(self, _bytes(array), root, timeout)
        return array

    def all_gather(self, array: Array, out: Array | None = None, timeout: float | None = None) -> Array:
        """Gives the array of every rank to every rank: one more dimension, the ranks, comes first."""
        out = np.empty((self.size, *array.shape), array.dtype) if out is None else out
        collectives.all_gather(self, _bytes(array), _bytes(out), timeout)
        return out

    def gather(
        self, array: Array, root: int = 0, out: Array | None = None, timeout: float | None = None
    ) -> Array | None:
        """Gives the array of every rank to rank ``root``; the others get nothing."""
        if self.rank == root and out is None:
            out = np.empty((self.size, *array.shape), array.dtype)
        collectives.gather(self, _bytes(array), None if out is None else _bytes(out), root, timeout)
        return out

    def scatter(self, out: Array, array: Array | None = None, root: int = 0, timeout: float | None = None) -> Array:
        """Gives each rank its part of the array of rank ``root``, whose first dimension is the ranks."""
        collectives.scatter(self, None if array is None else _bytes(array), _bytes(out), root, timeout)
        return out

    def all_to_all(self, array: Array, out: Array | None = None, timeout: float | None = None) -> Array:
        """Gives row i of each rank's array to rank i, which has them in the order of ranks."""
        out = np.empty_like(array) if out is None else out
        collectives.all_to_all(self, _bytes(array), _bytes(out), None, timeout)
        return out

    def all_to_all_of(
        self,
        array: Array,
        lengths: Sequence[int],
        out: Array,
        out_lengths: Sequence[int],
        timeout: float | None = None,
    ) -> Array:
        """As ``all_to_all`` with any lengths: so many rows of the array go to each rank, and so many of ``out`` come."""
        size = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        scaled = ([length * size for length in lengths], [length * size for length in out_lengths])
        collectives.all_to_all(self, _bytes(array), _bytes(out), scaled, timeout)
        return out

    def all_reduce(self, array: Array, reduce: str = "sum", timeout: float | None = None) -> Array:
        """Reduces the arrays of all ranks, element by element, in place: ``sum``, ``min``, ``max`` or ``prod``.

        For a reduction that is made again and again, ``allreduce`` is faster: it reads and writes in place. So does this one
        if the array is of :meth:`empty`, or a part of such an array.
        """
        collectives.all_reduce(self, _bytes(array), (dtype_name(array.dtype), reduce), timeout)
        return array

    def reduce(
        self,
        array: Array,
        root: int = 0,
        reduce: str = "sum",
        out: Array | None = None,
        timeout: float | None = None,
    ) -> Array | None:
        """As ``all_reduce``, for rank ``root``; the others get nothing, and no array changes."""
        if self.rank == root and out is None:
            out = np.empty_like(array)
        result = None if out is None else _bytes(out)
        collectives.reduce(self, _bytes(array), result, (dtype_name(array.dtype), reduce), root, timeout)
        return out

    def reduce_scatter(
        self, array: Array, reduce: str = "sum", out: Array | None = None, timeout: float | None = None
    ) -> Array:
        """Reduces the arrays of all ranks, and gives row i of the result to rank i."""
        out = np.empty(array.shape[1:], array.dtype) if out is None else out
        collectives.reduce_scatter(self, _bytes(array), _bytes(out), (dtype_name(array.dtype), reduce), timeout)
        return out

    def send(self, array: Array, to: int, tag: int = 0, timeout: float | None = None) -> None:
        """Sends an array to another rank. The first message of a world waits for that of all other ranks."""
        collectives.send(self, _bytes(array), to, tag, timeout)

    def receive(self, out: Array, source: int | None = None, tag: int = 0, timeout: float | None = None) -> int:
        """Receives an array of another rank, or of any; returns that rank."""
        return collectives.receive(self, _bytes(out), source, tag, timeout)

    def open_messages(self, timeout: float | None = None) -> None:
        """Prepares messages, on all ranks at once."""
        collectives.open_messages(self, timeout)

    def allreduce(
        self, lengths: int | Sequence[int], *, dtype: npt.DTypeLike = "f32", model: Array | None = None, **choices: str | int
    ) -> Allreduce:
        """Begins a collective over tensors of these lengths. All ranks make the same choices.

        Choices are those of the command line: ``fire="quorum=5"``, ``grace="50us"``, ``absent="carry"``, ``reduce="max"``,
        ``scale="contributions"``, ``group="butterfly=8"``, ``preset="wagma"``, ``mover="cut"``, ``executor="thread"``,
        ``depth=8``. ``model`` is what all ranks begin with, if contributions are updates of a model.
        """
        chosen: Iterable[int] = [lengths] if isinstance(lengths, int) else lengths
        name = dtype_name(dtype)
        bytes_of_model = None if model is None else np.ascontiguousarray(model, dtype=DTYPES[name]).tobytes()
        # The preset first: the others change it.
        texts = sorted(((name, str(value)) for name, value in choices.items()), key=lambda choice: choice[0] != "preset")
        return Allreduce(self, list(chosen), name, bytes_of_model, texts)

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
