"""A backend for ``torch.distributed``, and partial collectives for ``DistributedDataParallel``.

>>> import earlybird.torch, torch.distributed as dist     # the import: for torch before 2.15
>>> dist.init_process_group("earlybird")

started by torchrun as any backend is. Tensors are on the CPU. Each process group is a world of its own; its collectives are
synchronous, and run one after the other in the order of their calls, on a thread of the group where they are asynchronous.

:func:`partial_hook` makes a partial collective of the gradients of ``DistributedDataParallel``.
"""

from __future__ import annotations

import torch.distributed as dist

from ._group import EarlybirdProcessGroup
from ._partial import PartialHook, partial_hook

__all__ = ["EarlybirdProcessGroup", "PartialHook", "partial_hook", "register"]


def register() -> None:
    """Makes the backend known to torch; the import has done it."""
    if "EARLYBIRD" not in dist.Backend._plugins:
        dist.Backend.register_backend("earlybird", EarlybirdProcessGroup.create, devices=["cpu"])


register()
