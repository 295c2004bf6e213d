"""A model in ``DistributedDataParallel``, whose gradients go to partial rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._errors import UsageError


def _no_join(*_: Any, **__: Any) -> Any:
    """Replaces ``join`` of a model."""
    raise UsageError(
        "model.join() waits for all ranks in each step: partial.finish() takes ranks with different numbers of steps"
    )


def refuse_choices_of(wrapped: DistributedDataParallel, by_hook: bool) -> None:
    """Refuses choices by which ranks would wait for each other outside of rounds."""
    if wrapped.find_unused_parameters:
        by = "; that needs Gradients(model) in place of a hook, which DDP calls only if all have one" if by_hook else ""
        raise UsageError(
            f"DistributedDataParallel(find_unused_parameters=False): a parameter without a gradient contributes zeros{by}"
        )
    if wrapped.static_graph:
        raise UsageError("DistributedDataParallel(static_graph=False): its reducer would expect to be called")
    if by_hook and wrapped.broadcast_buffers and any(True for _ in wrapped.module.buffers()):
        raise UsageError("DistributedDataParallel(..., broadcast_buffers=False): a broadcast waits for all ranks")


def rest(wrapped: DistributedDataParallel, no_sync: Callable[[], Any]) -> Callable[[], None]:
    """Stops its reducer, as in its own ``no_sync``, which ``no_sync`` replaces. Returns a function that undoes this.
    """
    wrapped.require_backward_grad_sync = wrapped.require_forward_param_sync = False
    wrapped.no_sync, wrapped.join = no_sync, _no_join

    def wake() -> None:
        wrapped.require_backward_grad_sync = wrapped.require_forward_param_sync = True
        del wrapped.no_sync, wrapped.join

    return wake


def hook(wrapped: DistributedDataParallel, take: Callable[[dist.GradBucket], None]) -> Callable[[], None]:
    """Keeps its reducer running, and takes its buckets. Returns a function that undoes this, as far as torch can."""
    wrapped.join = _no_join

    # torch inspects the annotations of a hook, and here they are texts.
    def give(state, bucket):  # type: ignore[no-untyped-def]
        take(bucket)
        buffer = bucket.buffer()
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        future.set_result(buffer)
        return future

    wrapped.register_comm_hook(None, give)
    return lambda: delattr(wrapped, "join")
