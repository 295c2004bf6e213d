"""The bytes of tensors, and reductions of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp

from .._earlybird import World, collectives
from .._errors import UsageError
from . import _cuda

Tensor = torch.Tensor

NAMES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
}

_REDUCTIONS = {"SUM": "sum", "AVG": "sum", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}


def bytes_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of a contiguous tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def contiguous(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it on the host that is contiguous."""
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
        raise UsageError(f"earlybird moves dense tensors on CPUs and GPUs; this one is {tensor.layout} on {tensor.device}")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return _cuda.to_host(dense) if dense.is_cuda else dense


def result_of(tensor: Tensor) -> Tensor:
    """What is to be written: the tensor, or memory of the host for as much."""
    return _cuda.room(tensor) if tensor.is_cuda else contiguous(tensor)


def keep(tensor: Tensor, result: Tensor) -> Tensor:
    """Puts a result where it belongs, if it is not there yet."""
    if tensor.data_ptr() != result.data_ptr() or tensor.shape != result.shape or not tensor.is_contiguous():
        tensor.detach().copy_(result.view(tensor.shape), non_blocking=result.is_pinned())
    return tensor


def same(tensors: Iterable[Tensor]) -> None:
    """Checks that tensors have one type and size."""
    if len({(tensor.dtype, tensor.numel()) for tensor in tensors}) > 1:
        raise UsageError("the tensors of such a call have one type and one size")


def op_name(op: Any) -> str:
    """The name of a reduction."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(ReduceOp, name):
            return name
    raise UsageError("earlybird has no such reduction; it has SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR")


_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _native(tensor: Tensor, name: str) -> tuple[Tensor, tuple[str, str]] | None:
    """The elements that the library reduces by itself, and what it is to do; none if it has no such elements."""
    if name == "AVG" and not (tensor.is_floating_point() or tensor.is_complex()):
        raise UsageError("a mean of integers is no integer; use a sum")
    if tensor.is_complex() and name in ("SUM", "AVG"):
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in NAMES and name in _REDUCTIONS:
        return tensor, (NAMES[tensor.dtype], _REDUCTIONS[name])
    return None


def _mean(tensor: Tensor, name: str, size: int) -> None:
    if name == "AVG":
        tensor.div_(size)


def _gathered(world: World, tensor: Tensor, timeout: float | None) -> list[Tensor]:
    all = torch.empty((world.size, *tensor.shape), dtype=tensor.dtype, device="cpu")
    collectives.all_gather(world, bytes_of(tensor), bytes_of(all), timeout)
    return list(all)


def _fold(tensors: list[Tensor], name: str) -> Tensor:
    fold = _FOLDS[name]
    if tensors[0].dtype == torch.bool and name in ("SUM", "PRODUCT", "MIN", "MAX"):
        fold = torch.logical_or if name in ("SUM", "MAX") else torch.logical_and
    return functools.reduce(fold, tensors).to(tensors[0].dtype)


def _sum_sparse(world: World, tensor: Tensor, name: str, timeout: float | None) -> Tensor:
    """Sums tensors of coordinates and values: those of all ranks together, which are then coalesced."""
    if name != "SUM":
        raise UsageError("sparse tensors are summed, and not reduced otherwise")
    mine = tensor.detach().coalesce().cpu()
    indices, values = mine.indices(), mine.values()
    shape = torch.tensor([indices.shape[1], *tensor.shape, *values.shape[1:]], device="cpu")
    shapes = _gathered(world, shape, timeout)
    if any(not torch.equal(shape[1:], other[1:]) for other in shapes):
        raise UsageError("the sparse tensors of all ranks have one shape")
    counts = [int(other[0]) for other in shapes]

    def all_of(part: Tensor) -> Tensor:
        # Ranks have different numbers of coordinates: each gives as many as the largest has.
        padded = part.new_zeros((max(counts), *part.shape[1:]))
        padded[: part.shape[0]] = part
        parts = _gathered(world, padded, timeout)
        return torch.cat([other[:count] for other, count in zip(parts, counts, strict=True)])

    places, values = all_of(indices.t().contiguous()).t(), all_of(values.contiguous())
    all = torch.sparse_coo_tensor(places, values, tensor.shape, check_invariants=False)
    # The caller's mode is not that of the thread that makes its call.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(all.coalesce())
    return tensor


def all_reduce(world: World, tensor: Tensor, name: str, timeout: float | None) -> Tensor:
    """Reduces in place, on all ranks."""
    if tensor.layout == torch.sparse_coo:
        return _sum_sparse(world, tensor, name, timeout)
    source = contiguous(tensor)
    native = _native(source, name)
    if native is None:
        result = _fold(_gathered(world, source, timeout), name)
    else:
        elements, kinds = native
        collectives.all_reduce(world, bytes_of(elements), kinds, timeout)
        result = source
    _mean(result, name, world.size)
    return keep(tensor, result)


def reduce(world: World, tensor: Tensor, name: str, root: int, timeout: float | None) -> Tensor:
    """Reduces in place on the root; the tensors of others stay what they are."""
    source = contiguous(tensor)
    native = _native(source, name)
    is_root = world.rank == root
    result = torch.empty_like(source) if is_root else None
    if native is None:
        folded = _fold(_gathered(world, source, timeout), name)
        result = folded if is_root else None
    else:
        elements, kinds = native
        out = None if result is None else bytes_of(result)
        collectives.reduce(world, bytes_of(elements), out, kinds, root, timeout)
    if result is not None:
        _mean(result, name, world.size)
        keep(tensor, result)
    return tensor


def reduce_scatter(world: World, out: Tensor, all: Tensor, name: str, timeout: float | None) -> Tensor:
    """Reduces all blocks; this rank gets its own."""
    if all.numel() != out.numel() * world.size or all.dtype != out.dtype:
        raise UsageError(f"{all.numel()} elements are not {world.size} times the {out.numel()} of the result")
    source, result = contiguous(all), result_of(out)
    native = _native(source, name)
    if native is None:
        blocks = (gathered.reshape(world.size, -1)[world.rank] for gathered in _gathered(world, source, timeout))
        result = _fold(list(blocks), name)
    else:
        elements, kinds = native
        collectives.reduce_scatter(world, bytes_of(elements), bytes_of(result), kinds, timeout)
    _mean(result, name, world.size)
    return keep(out, result)
