"""Partial rounds of gradients as a communication hook."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ._gradients import Gradients
from ._group import EarlybirdProcessGroup


class PartialHook:
    """The result of :func:`partial_hook`."""

    def __init__(self, choices: dict[str, Any]) -> None:
        self._choices = choices

    def register(self, model: DistributedDataParallel) -> Gradients:
        """Makes a model give its buckets to partial rounds. Its buffers are not broadcast, because that would wait for
        all ranks.
        """
        return Gradients(model, by_hook=True, **self._choices)


def partial_hook(group: EarlybirdProcessGroup | None = None, **choices: Any) -> PartialHook:
    """Creates :class:`Gradients` as a communication hook of ``DistributedDataParallel``, for scripts that use one.

    >>> partial = partial_hook(fire="quorum=3").register(model)
    >>> optimizer = partial.optimizer(optimizer)

    It takes the arguments of :class:`Gradients`.
    """
    return PartialHook({"group": group} | choices)
