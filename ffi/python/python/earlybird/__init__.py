"""Partial collectives: the first process to arrive triggers, late processes are carried, nothing is lost.

>>> import earlybird
>>> with earlybird.World() as world:
...     with world.allreduce(4, scale="world") as mean:
...         mean.contribution()[:] = world.rank
...         mean.arrive()
...         for outcome in mean.wait(timeout=30):
...             print(outcome.round, outcome.data)
1 [0. 0. 0. 0.]

Arrays are registered memory, written and read in place. The array of a contribution is read-only from ``arrive`` on.
Drop the arrays of outcomes before the next ``contribution`` or ``arrive``, which reuses their memory; copy what you
keep.

A :class:`World` also has synchronous collectives, from ``all_gather`` to ``all_to_all``, and messages. They take any
arrays.

A ``timeout`` is in seconds; ``None`` sets no limit.
"""

from __future__ import annotations

from ._allreduce import Allreduce, Entry, Outcome, RankLateness, SlowSpell
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
    "RankLateness",
    "SlowSpell",
    "SystemFailure",
    "Timeout",
    "TransportError",
    "UsageError",
    "World",
    "__version__",
]
