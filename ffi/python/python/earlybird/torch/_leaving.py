"""How ranks that have left wait for those that continue."""

from __future__ import annotations

import time

import numpy as np

from .._allreduce import Outcome
from .._buckets import BucketOutcome
from .._earlybird import collectives
from .._errors import Timeout
from .._world import World

# Beyond the tags of torch, which are 32-bit numbers, and of its barriers.
_TAG = 1 << 41

# The seconds between two messages about rounds to ranks that have left.
_OFTEN = 1.0

_ROUND, _END = 0, 1


class Leaving:
    """Knows which ranks have left, from the cuts that this rank has applied.

    A rank that has left sees no further rounds. The lowest rank that continues tells it from time to time that there
    are rounds, and one of the last ranks tells it that all have left. So it waits as long as there are rounds.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: list[list[int]] = []
        self._told = 0.0
        self._is_over = False

    def note(self, outcome: Outcome | BucketOutcome) -> bool:
        """Records which ranks leave in a round. Returns whether any rank has left by now."""
        leaving = [entry.rank for entry in outcome.entries if entry.part == "leaving"]
        if leaving:
            self._left.append(leaving)
        return bool(self._left)

    def tell_of_rounds(self, timeout: float) -> None:
        """Tells the ranks that have left that there are still rounds."""
        gone = [rank for ranks in self._left for rank in ranks]
        goes_on = [rank for rank in range(self._world.size) if rank not in gone]
        now = time.monotonic()
        if gone and goes_on[:1] == [self._world.rank] and now >= self._told + _OFTEN:
            self._told = now
            self._tell(gone, _ROUND, timeout)

    def wait_for_all(self, timeout: float) -> None:
        """Waits until all ranks have left, after this one has.

        :raises Timeout: no round was completed for this time. Nothing is lost: call again to continue.
        """
        if self._is_over:
            return
        if sum(map(len, self._left)) == self._world.size:
            # This rank is one of the last ranks, all of which know that.
            last = self._left[-1]
            if self._world.rank == min(last):
                self._tell([rank for ranks in self._left[:-1] for rank in ranks], _END, timeout)
        else:
            said = np.array([_ROUND], np.uint8)
            while said[0] != _END:
                try:
                    collectives.receive(self._world, said.data, None, _TAG, timeout)
                except Timeout as error:
                    raise Timeout(
                        f"rank {self._world.rank}: finish: no rank that goes on has completed a round for {timeout} s; "
                        "a rank has to call finish, or is very late; call finish again to go on waiting"
                    ) from error
        self._is_over = True

    def _tell(self, ranks: list[int], what: int, timeout: float) -> None:
        for rank in ranks:
            collectives.send(self._world, np.array([what], np.uint8).data, rank, _TAG, timeout)
