"""Schedules that step once for each round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler


def by_round(schedule: LRScheduler, may_step: Callable[[], bool]) -> None:
    """Makes ``step()`` of a schedule do nothing unless ``may_step`` allows it, and stop at the last value of
    ``total_steps``.

    Beyond ``total_steps`` a schedule would raise its rate again, then fail. Its class is replaced, because an
    attribute would be in its ``state_dict``.
    """
    for part in getattr(schedule, "_schedulers", ()):
        by_round(part, lambda: True)
    kind = type(schedule)

    def step(self: Any, *arguments: Any, **named: Any) -> None:
        is_over = getattr(self, "last_epoch", -1) >= getattr(self, "total_steps", float("inf")) - 1
        if may_step() and not is_over:
            kind.step(self, *arguments, **named)

    names = {"step": step, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    schedule.__class__ = type(kind.__name__, (kind,), names)
