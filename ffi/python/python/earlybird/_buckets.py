"""The persistent allreduce in buckets."""

from __future__ import annotations

from collections.abc import Iterator

from . import _earlybird
from ._allreduce import _Handle, _Round
from ._arrays import Given, data, kinds, source
from ._dtypes import Array, array_of


class BucketOutcome(_Round):
    """The outcome of one round in all buckets: tensors, round and cut. Valid until a later call releases the round."""

    __slots__ = ()

    _of: BucketedAllreduce

    def tensor(self, index: int) -> Array:
        """Returns the reduced elements of a tensor, read in place."""
        return array_of(self._of._tensor(self.round, index), self._of.dtype)

    def tensors(self) -> list[Array]:
        """Returns the reduced elements as one array for each tensor."""
        return [self.tensor(index) for index in range(len(self._of.lengths))]


class BucketedAllreduce(_earlybird.BucketedAllreduce, _Handle):
    """A persistent allreduce in buckets: *begin*, *fill* for each tensor, *wait*, step after step, and then *finish*.

    The tensors of a bucket are handed in together, with the last of them, and move while the caller computes the next
    ones. All buckets of a step have one cut, that of the first bucket. The lengths are in the order in which tensors
    become ready: for gradients from the last layer to the first.

    One thread at a time may use it. Leaving a ``with`` block finishes it. An exception in the block aborts the job
    instead, because the others would wait for this rank.
    """

    def fill(self, index: int, array: Given) -> None:
        """Copies a tensor into its memory, which completes it. The last tensor of a bucket hands in the bucket."""
        own = source(array)
        kinds(own, self._dtype, "sum")
        self._fill(index, data(own))

    def wait(self, timeout: float | None = None) -> list[BucketOutcome]:
        """Waits for the outcomes of the step: the same rounds in all buckets. Returns them with all outcomes that this
        rank missed, oldest first. Ctrl-C ends the wait.

        After :class:`Timeout` nothing is lost: call again to continue.
        """
        first, last = self._wait(timeout)
        return [BucketOutcome(self, round) for round in range(first, last + 1)]

    def leave(self, timeout: float | None = None) -> Iterator[BucketOutcome]:
        """Leaves, and yields the outcomes that were not taken, as ``Allreduce.leave`` does."""
        while (rounds := self._leave(timeout)) is not None:
            for round in range(rounds[0], rounds[1] + 1):
                yield BucketOutcome(self, round)
