"""A barrier that names the ranks that did not come, as ``torch.distributed.monitored_barrier`` requires."""

from __future__ import annotations

import time

import numpy as np

from .._earlybird import World, collectives
from .._errors import Timeout

# Beyond the tags of torch, which are 32-bit numbers.
_TAGS = 1 << 40

# The time that rank 0 gives to each rank after the deadline if it must name all missing ranks.
_LAST_LOOK = 0.01

_NOTHING = np.empty(0, np.uint8)


def monitored_barrier(world: World, number: int, timeout: float, wait_all_ranks: bool) -> None:
    """Waits until all ranks have called it: each tells rank 0, which tells all others once it knows of all.

    `number` counts these barriers, so that a rank that comes too late is not mistaken for one that comes to the next
    barrier. The texts of failures are those of gloo, because programs search for them.
    """
    began, rank, tag = time.monotonic(), world.rank, _TAGS + number
    if rank == 0:
        missing = []
        for peer in range(1, world.size):
            left = began + timeout - time.monotonic()
            if left <= 0 and not wait_all_ranks:
                raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {timeout * 1e3:.0f} ms.")
            try:
                collectives.receive(world, _NOTHING.copy(), peer, tag, max(left, _LAST_LOOK))
            except Timeout:
                missing.append(str(peer))
                if not wait_all_ranks:
                    break
        if missing:
            ranks = "Ranks" if wait_all_ranks and len(missing) > 1 else "Rank"
            raise RuntimeError(f"{ranks} {', '.join(missing)} failed to pass monitoredBarrier in {timeout * 1e3:.0f} ms")
        for peer in range(1, world.size):
            collectives.send(world, _NOTHING, peer, tag, timeout)
        return
    try:
        collectives.send(world, _NOTHING, 0, tag, timeout)
        # Rank 0 needs this long to notice that another rank is missing.
        collectives.receive(world, _NOTHING.copy(), 0, tag, timeout + world.size * _LAST_LOOK)
    except RuntimeError as error:
        raise RuntimeError(
            f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
            f"Please check rank 0 logs for faulty rank. {error}"
        ) from error
