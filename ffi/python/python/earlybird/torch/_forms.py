"""What has no partial form, and how ranks that would compute different bits are found."""

from __future__ import annotations

import platform
from itertools import zip_longest

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .._errors import Mismatch, UsageError
from ._agreement import Agreement
from ._replica import Replica

# The flags of optimizers that select the order of their operations.
_FLAGS = ("foreach", "fused", "capturable", "amsgrad", "nesterov", "maximize")


def refuse_forms(model: nn.Module) -> None:
    """Refuses models whose ranks wait for each other outside of rounds."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(
                f"{name} is a SyncBatchNorm, whose forward pass waits for all ranks: take BatchNorm, whose buffers are averaged "
                "at meetings"
            )
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh") or hasattr(parameter, "_is_flat_param"):
            raise UsageError(
                f"{name} is sharded (FSDP, tensor parallelism), and shards of one replica would be in different rounds: take a "
                "whole model on each rank"
            )
        if is_lazy(parameter):
            raise UsageError(f"{name} has no shape yet: make one forward pass before")
    for name, buffer in model.named_buffers():
        if buffer.layout != torch.strided:
            raise UsageError(f"{name} is a sparse buffer, which ranks cannot compare: keep it as an attribute, or dense")


def ways(replica: Replica, device: torch.device) -> dict[str, str]:
    """Returns what determines the bits that this rank computes from a gradient."""
    optimizers = [
        (type(optimizer).__name__, [{flag: group.get(flag) for flag in _FLAGS} for group in optimizer.param_groups])
        for optimizer in replica.optimizers
    ]
    return {
        "torch": torch.__version__,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads of torch": str(torch.get_num_threads()),
        "device": device.type,
        "optimizers": str(optimizers),
    }


def compare(agreement: Agreement, place: str, mine: dict[str, str], problem: str) -> None:
    """Refuses ranks that differ in one of these values; ``problem`` says what that means, and what to do."""
    first, *others = agreement.gather(mine, place)
    for rank, theirs in enumerate(others, 1):
        for name, value in theirs.items():
            if value != first[name]:
                raise Mismatch(problem.format(name=name, first=first[name], rank=rank, value=value))


def compare_ways(agreement: Agreement, mine: dict[str, str]) -> None:
    """Refuses ranks that would compute different bits from the same gradients."""
    compare(
        agreement,
        "the first step()",
        mine,
        "ranks compute differently: {name} of rank 0 is {first}, and of rank {rank} {value}; make them equal, or take "
        'unequal="copy"',
    )


def compare_choices(agreement: Agreement, mine: dict[str, str]) -> None:
    """Refuses ranks that chose differently where the collective does not compare."""
    compare(agreement, "the construction", mine, "{name} is {first} on rank 0 and {value} on rank {rank}: all ranks pass the same")


def _order_of(tensor: torch.Tensor) -> str:
    """Returns how a tensor's elements lie in memory, if not row by row."""
    return "" if tensor.layout != torch.strided or tensor.is_contiguous() else f", strides {tensor.stride()}"


def compare_kinds(agreement: Agreement, replica: Replica) -> None:
    """Refuses ranks whose models or states have different tensors."""
    modules = [item for item in replica.state if isinstance(item, nn.Module)]
    named = [
        *replica.model.named_parameters(),
        *replica.model.named_buffers(),
        *((f"{name} of {type(module).__name__}", tensor) for module in modules for name, tensor in module.state_dict().items()
          if isinstance(tensor, torch.Tensor)),
    ]
    mine = [f"{name} ({tensor.dtype}, {tuple(tensor.shape)}{_order_of(tensor)})" for name, tensor in named]
    mine += [name for extra in replica.extra() for name in extra]
    mine += [f"{type(item).__name__} in state" for item in replica.state]
    first, *others = agreement.gather(mine, "the construction, or rebuild()")
    for rank, theirs in enumerate(others, 1):
        for one, other in zip_longest(first, theirs, fillvalue="nothing"):
            if one != other:
                raise Mismatch(f"ranks have different models: rank 0 has {one}, and rank {rank} {other}")
