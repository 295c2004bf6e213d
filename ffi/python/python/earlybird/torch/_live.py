"""The trainings of this process that have pending rounds."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from .._errors import UsageError

if TYPE_CHECKING:
    from ._average import ModelAverage
    from ._gradients import Gradients
    from ._group import EarlybirdProcessGroup

# Maps each training to whether all ranks wait for each other in each round.
_LIVE: weakref.WeakKeyDictionary[Gradients | ModelAverage, bool] = weakref.WeakKeyDictionary()


def refuse_another(training: Gradients | ModelAverage, is_synchronous: bool) -> None:
    """Refuses a second training with rounds, unless ranks have the rounds of both trainings in the same order."""
    if any(other is not training and not (is_synchronous and its) for other, its in _LIVE.items()):
        raise UsageError(
            "another Gradients, or ModelAverage, has live rounds, and ranks would wait in the one for ranks in the other: use "
            "one for both models, Gradients(nn.ModuleList([a, b]), ...), or finish() the other first"
        )


def begin(training: Gradients | ModelAverage, is_synchronous: bool, group: EarlybirdProcessGroup) -> None:
    """Records that a training has rounds from here on."""
    _LIVE[training] = is_synchronous
    group.partial.append(training)


def end(training: Gradients | ModelAverage, group: EarlybirdProcessGroup) -> None:
    """Records that a training has no more rounds."""
    _LIVE.pop(training, None)
    group.partial.remove(training)
