"""The persistent allreduce in buckets."""

from __future__ import annotations

from collections.abc import Iterator

from . import _earlybird
from ._allreduce import _Handle, _Round
from ._arrays import Given, data, kinds, source
from ._dtypes import Array, array_of


class BucketOutcome(_Round):
    """The outcome of one round in all buckets: tensors, round and cut. Valid until its allreduce goes on."""

    __slots__ = ()

    _of: BucketedAllreduce

    def tensor(self, index: int) -> Array:
        """The reduced elements of a tensor, read in place."""
        return array_of(self._of._tensor(self.round, index), self._of.dtype)

    def tensors(self) -> list[Array]:
        """Those of all tensors."""
        return [self.tensor(index) for index in range(len(self._of.lengths))]


class BucketedAllreduce(_earlybird.BucketedAllreduce, _Handle):
    """A persistent allreduce in buckets: *begin*, *fill* for each tensor, *wait*, step after step, and *finish*.

    The tensors of a bucket are handed in together, with the last of them, and move while the next ones are computed. All
    buckets of a step have one cut, that of the first one. Lengths are in the order in which tensors become ready: of gradients,
    from the last layer to the first.

    One thread at a time may use it. Leaving a ``with`` block finishes it; an exception in the block aborts the job instead,
    because the others would wait for this rank.
    """

    def fill(self, index: int, array: Given) -> None:
        """Copies a tensor, which is complete with it. With the last one of its bucket, the bucket is handed in."""
        own = source(array)
        kinds(own, self._dtype, "sum")
        self._fill(index, data(own))

    def wait(self, timeout: float | None = None) -> list[BucketOutcome]:
        """Waits for the outcomes of the step: the same rounds of all buckets, and all that were missed, oldest first. Ctrl-C ends
        the wait.

        After :class:`Timeout` nothing is lost: call again to go on.
        """
        first, last = self._wait(timeout)
        return [BucketOutcome(self, round) for round in range(first, last + 1)]

    def leave(self, timeout: float | None = None) -> Iterator[BucketOutcome]:
        """Leaves and gives the outcomes that were not taken, as ``Allreduce.leave``."""
        while (rounds := self._leave(timeout)) is not None:
            for round in range(rounds[0], rounds[1] + 1):
                yield BucketOutcome(self, round)
