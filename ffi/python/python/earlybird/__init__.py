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

A :class:`World` also has synchronous collectives, from ``all_gather`` to ``all_to_all``, and messages. They take any arrays.
"""

from __future__ import annotations

from ._allreduce import Allreduce, Entry, Outcome
from ._buckets import BucketedAllreduce, BucketOutcome
from ._earlybird import __version__
from ._errors import (
    Aborted,
    ConfigError,
    Error,
    JoinError,
    Mismatch,
    OutOfMemory,
    PeerDied,
    PeerLeft,
    SystemFailure,
    Timeout,
    TransportError,
    UsageError,
)
from ._world import Copies, World

__all__ = [
    "Aborted",
    "Allreduce",
    "BucketOutcome",
    "BucketedAllreduce",
    "ConfigError",
    "Copies",
    "Entry",
    "Error",
    "JoinError",
    "Mismatch",
    "OutOfMemory",
    "Outcome",
    "PeerDied",
    "PeerLeft",
    "SystemFailure",
    "Timeout",
    "TransportError",
    "UsageError",
    "World",
    "__version__",
]
