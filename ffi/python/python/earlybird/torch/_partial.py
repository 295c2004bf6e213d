"""Partial collectives of the gradients of ``DistributedDataParallel``."""
# Annotations stay objects here: torch looks at those of the hook.

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._allreduce import Allreduce, Outcome
from .._errors import UsageError
from ._group import EarlybirdProcessGroup, group_of
from ._tensors import NAMES, bytes_of

Future = torch.futures.Future[torch.Tensor]

# The buckets of DDP are those of all later steps from the second step on.
_SYNCHRONOUS_STEPS = 2


class PartialHook:
    """A communication hook that sums gradients in partial rounds: one cut a step, over all buckets.

    The first two steps are synchronous, because DDP arranges its buckets in them. From then on a rank that is late for a
    round gets its outcome later, and its gradient is in one of the next rounds. It then gets several outcomes at once.
    Without an :meth:`optimizer`, their sum is its gradient: that is exact for plain SGD only.
    """

    def __init__(self, group: EarlybirdProcessGroup | None = None, timeout: float | None = None, **choices: str | int) -> None:
        # torch asks a hook for its names.
        self.__name__ = self.__qualname__ = "partial_hook"
        self._group = group_of(group, "partial gradients")
        self._timeout = timeout if timeout is not None else self._group._seconds(None)
        self._choices: dict[str, str | int] = {"scale": "world"} | choices
        self._group.world.check_choices(**self._choices)
        self._steps = 0
        self._lengths: list[int] = []
        self._sum: Allreduce | None = None
        self._filled: list[tuple[dist.GradBucket, Future]] = []
        self._optimizer: PartialOptimizer | None = None
        self.rounds = 0
        """Rounds whose outcomes this rank has."""
        self.contributions = 0
        """Gradients of all ranks that are in these outcomes: the same number on all ranks after the same round."""

    def optimizer(self, optimizer: torch.optim.Optimizer) -> "PartialOptimizer":
        """An optimizer that steps once for each outcome: for momentum and all else that has a state."""
        self._optimizer = PartialOptimizer(optimizer)
        return self._optimizer

    def register(self, model: DistributedDataParallel) -> "PartialHook":
        """Makes a model use this hook. Its buffers are not broadcast: that would be synchronous."""
        if model.broadcast_buffers and any(True for _ in model.module.buffers()):
            raise UsageError("DistributedDataParallel(..., broadcast_buffers=False): a broadcast waits for all ranks")
        model.register_comm_hook(None, self)
        return self

    def __call__(self, state: Any, bucket: dist.GradBucket) -> Future:
        if self._sum is None:
            return self._synchronous(bucket)
        device = bucket.buffer().device
        future: Future = torch.futures.Future(devices=[device] if device.type == "cuda" else [])
        gradient = torch.from_numpy(self._sum.tensors()[bucket.index()])
        gradient.view(bucket.buffer().dtype).copy_(bucket.buffer())
        self._filled.append((bucket, future))
        if bucket.is_last():
            self._finish_step(self._sum)
        return future

    def _synchronous(self, bucket: dist.GradBucket) -> Future:
        size = self._group.size()
        lengths = [*self._lengths, bucket.buffer().numel()]
        self._lengths = [] if bucket.is_last() else lengths
        opts = dist.AllreduceOptions()
        opts.reduceOp = dist.ReduceOp.AVG
        work = self._group.allreduce([bucket.buffer()], opts)
        if bucket.is_last():
            self._steps += 1
            self.rounds += 1
            self.contributions += size
            if self._steps == _SYNCHRONOUS_STEPS:
                work.wait()
                dtype = NAMES.get(bucket.buffer().dtype)
                if dtype is None:
                    raise UsageError(f"there are no partial sums of {bucket.buffer().dtype}")
                self._sum = self._group.world.allreduce(lengths, dtype=dtype, **self._choices)

        return work.get_future().then(lambda future: future.value()[0])

    def _finish_step(self, sum: Allreduce) -> None:
        filled, self._filled = self._filled, []
        try:
            sum.arrive()
            outcomes = sum.wait(self._timeout)
            self._count(outcomes)
            self._hand_out(filled, outcomes)
        except Exception as error:
            for _, future in filled:
                if not future.done():
                    future.set_exception(error)
            raise
        sum.release()

    def _count(self, outcomes: list[Outcome]) -> None:
        self.rounds += len(outcomes)
        for outcome in outcomes:
            self.contributions += len(outcome.fresh) + len(outcome.carried)

    def _hand_out(self, filled: list[tuple[dist.GradBucket, Future]], outcomes: list[Outcome]) -> None:
        if self._optimizer is not None:
            self._optimizer._begin()
        for bucket, future in filled:
            buffer = bucket.buffer()
            parts = [outcome.tensors()[bucket.index()] for outcome in outcomes]
            if buffer.is_cuda:
                buffer.copy_(torch.from_numpy(parts[-1].copy()).view(buffer.dtype))
            else:
                bytes_of(buffer)[:] = parts[-1].view(np.uint8)
            for index, part in enumerate(parts[:-1]):
                missed = torch.from_numpy(part.copy()).view(buffer.dtype).to(buffer.device)
                if self._optimizer is None:
                    buffer.add_(missed)
                else:
                    self._optimizer._keep(bucket, missed, index)
            del parts
            future.set_result(buffer)

    def finish(self, timeout: float | None = None) -> None:
        """Leaves in good order: the last gradient of this rank enters a round of those that go on."""
        if self._sum is not None:
            self._sum.finish(self._timeout if timeout is None else timeout)
            self._sum = None


class PartialOptimizer:
    """Steps once for each outcome of a step, the oldest first."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # For each outcome that was missed: parameters and their gradients.
        self._missed: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def _begin(self) -> None:
        """A backward pass has outcomes."""
        if self._missed:
            raise UsageError("call step() after each backward pass that is not under no_sync()")

    def _keep(self, bucket: dist.GradBucket, outcome: torch.Tensor, index: int) -> None:
        if index == len(self._missed):
            self._missed.append([])
        parameters = bucket.parameters()
        parts = outcome.split([parameter.numel() for parameter in parameters])
        self._missed[index] += zip(parameters, parts, strict=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        newest = {
            parameter: parameter.grad.clone()
            for gradients in self._missed[:1]
            for parameter, _ in gradients
            if parameter.grad is not None
        }
        for gradients in self._missed:
            for parameter, gradient in gradients:
                if parameter.grad is not None:
                    # DDP lays a dense parameter out in a bucket as it lies in memory.
                    dense = gradient.numel() == parameter.numel() and not parameter.is_contiguous()
                    shaped = gradient.as_strided(parameter.size(), parameter.stride()) if dense else gradient.view_as(parameter)
                    parameter.grad.copy_(shaped)
            self._optimizer.step()
        for parameter, gradient in newest.items():
            parameter.grad.copy_(gradient)
        self._optimizer.step()
        self._missed = []


def partial_hook(
    group: EarlybirdProcessGroup | None = None, *, timeout: float | None = None, **choices: str | int
) -> PartialHook:
    """A hook for ``DistributedDataParallel`` that sums gradients in partial rounds.

    Choices are those of ``World.allreduce``: ``fire="quorum=3"``, ``fire="solo,full=10"``, ``preset="quorum"``,
    ``absent="decay=0.5"``. Gradients are divided by the number of ranks; ``scale="contributions"`` divides by those that
    are in a round instead. ``timeout`` is in seconds, for each step: by default that of the group.
    """
    return PartialHook(group, timeout, **choices)
