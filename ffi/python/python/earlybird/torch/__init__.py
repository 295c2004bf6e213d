"""A backend for ``torch.distributed``, and partial collectives for ``DistributedDataParallel``.

>>> import earlybird.torch, torch.distributed as dist     # the import: for torch before 2.15
>>> dist.init_process_group("earlybird")

Start the program with torchrun, as for any backend. Tensors are on CPUs or on GPUs; GPU tensors go through pinned
memory of the host. Each process group is a world of its own. Its collectives are synchronous. They run one after the
other in the order of their calls; asynchronous calls run on a thread of the group.

:class:`Gradients` sums the gradients of a model in partial rounds that all ranks apply alike; :func:`partial_hook` is
the same as a hook of ``DistributedDataParallel``. :class:`ModelAverage` averages models of ranks in groups.
:func:`empty` makes tensors that are reduced in place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from ._agreement import Agreement
from ._average import ModelAverage
from ._compiler import never_compiled
from ._gradients import Gradients
from ._group import EarlybirdProcessGroup, group_of
from ._handin import HandIn
from ._hook import PartialHook, partial_hook
from ._queue import MadeCall
from ._rounds import Round

__all__ = ["EarlybirdProcessGroup", "Gradients", "ModelAverage", "PartialHook", "Round", "empty", "partial_hook", "register"]


def register() -> None:
    """Registers the backend with torch. Importing this module does so already."""
    if "EARLYBIRD" not in dist.Backend._plugins:
        dist.Backend.register_backend("earlybird", EarlybirdProcessGroup.create, devices=["cpu", "cuda"])


def empty(
    *size: int | Sequence[int], dtype: torch.dtype | None = None, group: EarlybirdProcessGroup | None = None
) -> torch.Tensor:
    """Creates a tensor in memory that the other ranks of a group read in place: ``all_reduce`` over it copies nothing.

    All ranks of the group call this in the same order, with the same size and type. They then all reduce this tensor,
    or the same parts of it; a rank cannot reduce another tensor meanwhile. It begins as zeros.

    Reductions between several hosts, and reductions of a few KiB, still copy; ``dist.group.WORLD.world.copies``
    counts.
    """
    chosen = dtype if dtype is not None else torch.get_default_dtype()
    dimensions = [operator.index(part) for given in size for part in (given if isinstance(given, Iterable) else [given])]
    return group_of(group, "such tensors").empty(dimensions, chosen)


register()
never_compiled(EarlybirdProcessGroup, MadeCall, Gradients, HandIn, Agreement, ModelAverage)
