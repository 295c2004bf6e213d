"""The processes of a job."""

from __future__ import annotations

import atexit
import contextlib
import math
import operator
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from . import _earlybird, _log
from ._allreduce import Allreduce
from ._arrays import Given, data, kinds, result, rows, source, view, written
from ._buckets import BucketedAllreduce
from ._dtypes import DTYPES, Array, dtype_name, numpy_dtype
from ._earlybird import collectives
from ._errors import UsageError, reason


# The worlds that were not closed.
_OPEN: weakref.WeakSet[World] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    # A program that ends by an exception has not left in good order: the other ranks would wait for it.
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for world in list(_OPEN) if error is not None else ():
        with contextlib.suppress(UsageError):
            world.abort(reason(error))


class Copies(NamedTuple):
    """The bytes of callers' data that synchronous collectives have copied."""

    into_boards: int
    """Copied into memory that other ranks read."""
    out_of_boards: int
    """Copied out of such memory, which may be another rank's."""


def _whole(name: str, given: SupportsIndex, least: int, most: int) -> int:
    try:
        number = operator.index(given)
    except TypeError:
        raise UsageError(f"{name} is a whole number, and no {type(given).__name__}") from None
    if not least <= number <= most:
        raise UsageError(f"{name} is {number}; use {least} to {most}, where each rank gets the world of its color")
    return number


def _texts(choices: Mapping[str, str | int]) -> list[tuple[str, str]]:
    # The preset comes first, because the other choices change it.
    return sorted(((name, str(value)) for name, value in choices.items()), key=lambda choice: choice[0] != "preset")


class World(_earlybird.World):
    """The processes of a job, as one of them sees them. Rank and size come from the launcher's environment.

    Threads may share it. In a forked child, each call that needs other ranks raises an error. A program that ends by
    an exception while a world is open aborts the job, and so does an exception in a ``with`` block.

    ``World(fabric="shm", provider=..., secret=..., hw_config=..., deadline=..., levels=...)`` sets what the environment
    does not. With ``levels=1`` this rank is a host of its own, and uses no memory of others on its machine.
    After a failure, a rank must make a new world.
    """

    def __new__(cls, **choices: Any) -> Self:
        _log.start()
        return super().__new__(cls, **choices)

    def __init__(self, **choices: Any) -> None:
        super().__init__()
        _OPEN.add(self)

    @classmethod
    def from_env(cls, **choices: Any) -> World:
        """Same as ``World()``."""
        return cls(**choices)

    @classmethod
    def join(cls, rank: int, size: int, store: str, **choices: Any) -> World:
        """Joins a world of ``size`` ranks as ``rank``, whatever the environment says.

        All ranks pass the same store, and a new one for each world: ``unix:NAME`` on one machine, or ``tcp:HOST:PORT``
        with a free port on the host of rank 0.
        """
        return cls(place=(rank, size, store), **choices)

    def split(self, color: int, key: int = 0) -> World:
        """Creates a world of the ranks that pass the same ``color``. Their ranks there ascend with ``key``; ranks with
        the same key keep their order here.

        All ranks make this call, and each gets the world of its own color. A rank that needs no new world passes a
        color that no other rank passes. The ranks meet through this world, so they need no store. The new world
        outlives this one. It uses shared memory if all its ranks are on one of ``hosts``.
        """
        return World(place=(self, _whole("color", color, 0, 2**32 - 1), _whole("key", key, -(2**31), 2**31 - 1)))

    def empty(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = "f32",
        timeout: float | None = None,
    ) -> Array:
        """Creates an array in memory that the other ranks read in place: ``all_reduce`` over it copies nothing.

        All ranks call this in the same order, with the same shape and type, and then reduce the same parts. Over a
        network, and for a few KiB, a reduction still copies; :attr:`copies` counts it. After a failed reduction do not
        write the array any more, because other ranks may still read it.
        """
        chosen = numpy_dtype(dtype)
        dimensions = list(map(operator.index, shape if isinstance(shape, Iterable) else [shape]))
        if min(dimensions, default=0) < 0 or chosen.hasobject:
            raise UsageError(f"there is no shared array of shape {dimensions} and type {chosen}")
        memory = collectives.symmetric(self, math.prod(dimensions) * chosen.itemsize, timeout)
        return np.ndarray(dimensions, chosen, memoryview(memory))

    @property
    def copies(self) -> Copies:
        """The bytes that the synchronous collectives of this rank have copied."""
        return Copies(*super().copies)

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until all ranks have called it."""
        collectives.barrier(self, timeout)

    def broadcast(self, array: Given, root: int = 0, timeout: float | None = None) -> Given:
        """Copies the array of rank ``root`` to all ranks, in place, and returns it. No other thread may use the array
        meanwhile.
        """
        with written(array) as own:
            collectives.broadcast(self, data(own), root, timeout)
        return array

    def all_gather(self, array: Given, out: Given = None, timeout: float | None = None) -> Given:
        """Gives the array of every rank to every rank. The result has one more dimension, which comes first: the
        ranks.
        """
        own = source(array)
        out = np.empty((self.size, *own.shape), own.dtype) if out is None else out
        with written(result(out, own, self.size * own.size)) as all:
            collectives.all_gather(self, data(own), data(all), timeout)
        return out

    def gather(self, array: Given, root: int = 0, out: Given = None, timeout: float | None = None) -> Given:
        """Gives the array of every rank to rank ``root``, as ``all_gather`` does; the other ranks get ``None``."""
        own = source(array)
        if self.rank != root:
            collectives.gather(self, data(own), None, root, timeout)
            return None
        out = np.empty((self.size, *own.shape), own.dtype) if out is None else out
        with written(result(out, own, self.size * own.size)) as all:
            collectives.gather(self, data(own), data(all), root, timeout)
        return out

    def scatter(self, out: Given, array: Given = None, root: int = 0, timeout: float | None = None) -> Given:
        """Gives each rank its part of the array of rank ``root``. The first dimension of that array is the ranks."""
        all = None if array is None else rows(source(array), self.size)
        if all is not None:
            result(out, all, all.size // self.size)
        with written(out) as own:
            collectives.scatter(self, None if all is None else data(all), data(own), root, timeout)
        return out

    def all_to_all(self, array: Given, out: Given = None, timeout: float | None = None) -> Given:
        """Gives row i of each rank's array to rank i, which gets the rows in the order of the ranks that sent them.

        If an array has a multiple of ``size`` rows, each rank gets an equal number of consecutive rows.
        """
        all = rows(source(array), self.size)
        out = np.empty_like(all) if out is None else out
        with written(result(out, all, all.size)) as own:
            collectives.all_to_all(self, data(all), data(own), None, timeout)
        return out

    def all_to_all_of(
        self,
        array: Given,
        lengths: Sequence[int],
        out: Given,
        out_lengths: Sequence[int],
        timeout: float | None = None,
    ) -> Given:
        """As ``all_to_all`` with any lengths: ``lengths[i]`` rows of the array go to rank i, which sends
        ``out_lengths[i]``.
        """
        all = source(array)
        size = all.itemsize * int(np.prod(all.shape[1:], dtype=np.int64))
        scaled = ([length * size for length in lengths], [length * size for length in out_lengths])
        with written(result(out, all, view(out).size)) as own:
            collectives.all_to_all(self, data(all), data(own), scaled, timeout)
        return out

    def all_reduce(
        self, array: Given, reduce: str = "sum", timeout: float | None = None, *, dtype: str | None = None
    ) -> Given:
        """Reduces the arrays of all ranks, element by element, in place: ``sum``, ``min``, ``max``, ``prod`` or
        ``mean``.

        For a repeated reduction ``allreduce`` is faster, because it reads and writes in place. This call does so, too,
        if the array comes from :meth:`empty`, or is a part of such an array, the same on all ranks. ``dtype="bf16"``
        declares that an array of 16-bit integers holds the bits of bfloat16 elements.
        """
        with written(array) as own:
            collectives.all_reduce(self, data(own), kinds(own, dtype, reduce), timeout)
        return array

    def reduce(
        self,
        array: Given,
        root: int = 0,
        reduce: str = "sum",
        out: Given = None,
        timeout: float | None = None,
        *,
        dtype: str | None = None,
    ) -> Given:
        """As ``all_reduce``, but only rank ``root`` gets the result, in ``out``; the others get ``None``. ``array`` is
        unchanged.
        """
        own = source(array)
        chosen = kinds(own, dtype, reduce)
        if self.rank != root:
            collectives.reduce(self, data(own), None, chosen, root, timeout)
            return None
        out = np.empty_like(own) if out is None else out
        with written(result(out, own, own.size)) as reduced:
            collectives.reduce(self, data(own), data(reduced), chosen, root, timeout)
        return out

    def reduce_scatter(
        self,
        array: Given,
        reduce: str = "sum",
        out: Given = None,
        timeout: float | None = None,
        *,
        dtype: str | None = None,
    ) -> Given:
        """Reduces the arrays of all ranks, element by element, and gives row i of the result to rank i."""
        all = rows(source(array), self.size)
        chosen = kinds(all, dtype, reduce)
        out = np.empty(all.shape[1:], all.dtype) if out is None else out
        with written(result(out, all, all.size // self.size)) as own:
            collectives.reduce_scatter(self, data(all), data(own), chosen, timeout)
        return out

    def send(self, array: Given, to: int, tag: int = 0, timeout: float | None = None) -> None:
        """Sends an array to another rank. The first message of a world waits for the first message of all other ranks.
        """
        collectives.send(self, data(source(array)), to, tag, timeout)

    def receive(self, out: Given, source: int | None = None, tag: int = 0, timeout: float | None = None) -> int:
        """Receives an array from rank ``source``, or from any rank if it is ``None``. Returns the rank that sent it.
        """
        with written(out) as own:
            return collectives.receive(self, data(own), source, tag, timeout)

    def open_messages(self, timeout: float | None = None) -> None:
        """Prepares messages; all ranks must call it. Returns when all have done so."""
        collectives.open_messages(self, timeout)

    @overload
    def allreduce(
        self,
        lengths: SupportsIndex | Iterable[SupportsIndex],
        *,
        dtype: npt.DTypeLike = "f32",
        model: Array | None = None,
        buckets: None = None,
        **choices: str | int,
    ) -> Allreduce: ...

    @overload
    def allreduce(
        self,
        lengths: SupportsIndex | Iterable[SupportsIndex],
        *,
        dtype: npt.DTypeLike = "f32",
        model: None = None,
        buckets: str | int,
        **choices: str | int,
    ) -> BucketedAllreduce: ...

    def allreduce(
        self,
        lengths: SupportsIndex | Iterable[SupportsIndex],
        *,
        dtype: npt.DTypeLike = "f32",
        model: Array | None = None,
        buckets: str | int | None = None,
        **choices: str | int,
    ) -> Allreduce | BucketedAllreduce:
        """Creates a collective over tensors of these lengths. All ranks make the same choices.

        Choices are those of the command line: ``fire="quorum=5"``, ``grace="50us"``, ``absent="carry"``,
        ``reduce="max"``, ``scale="contributions"``, ``group="butterfly=8"``, ``preset="wagma"``, ``mover="cut"``,
        ``executor="thread"``, ``depth=8``. Pass ``model`` if contributions are updates of a model: it is the model
        with which all ranks begin.

        With ``buckets`` tensors are handed in as they become ready, and the tensors of a bucket share a message.
        Values are ``"each"``, ``"one"``, ``"measured"``, or a size: ``"25M"`` hands a bucket in when it has at least
        25 MiB.
        """
        chosen = map(operator.index, lengths if isinstance(lengths, Iterable) else [lengths])
        name = dtype_name(dtype)
        if buckets is not None:
            if model is not None:
                raise UsageError("models are not averaged in buckets; leave out the model, or the buckets")
            return BucketedAllreduce(self, list(chosen), name, str(buckets), _texts(choices))
        if choices.get("preset") == "mg-wfbp":
            raise UsageError('preset="mg-wfbp" hands tensors in one by one; add buckets="measured"')
        bytes_of_model = None if model is None else np.ascontiguousarray(model, dtype=DTYPES[name]).tobytes()
        return Allreduce(self, list(chosen), name, bytes_of_model, _texts(choices))

    def check_choices(
        self, *, dtype: npt.DTypeLike = "f32", buckets: str | int | None = None, **choices: str | int
    ) -> None:
        """Raises the error that :meth:`allreduce` would raise for such choices on this rank. Other ranks take no part.
        """
        if buckets is not None:
            BucketedAllreduce._check(str(buckets))
        Allreduce._check(self, [1], dtype_name(dtype), _texts(choices))

    def __enter__(self) -> World:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            with contextlib.suppress(UsageError):
                self.abort(reason(error))
        self.close()
