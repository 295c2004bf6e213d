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
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.bool: "bool",
}

_REDUCTIONS = {"SUM": "sum", "AVG": "mean", "MIN": "min", "MAX": "max", "PRODUCT": "prod"}


class _Memory:
    """Bytes at an address, in the form that NumPy expects. An array of them keeps their owner alive."""

    def __init__(self, owner: Any, address: int, length: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (length,), "data": (address, False)}


def bytes_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns the memory of a contiguous tensor. After `tensor.numpy()` the program could no longer resize its tensor."""
    return np.asarray(_Memory(tensor, tensor.data_ptr(), tensor.numel() * tensor.element_size()))


def lent(array: np.ndarray[Any, Any]) -> Tensor:
    """Returns the bytes of a read-only array as a tensor. torch has no read-only tensors, and warns of such arrays."""
    return torch.from_numpy(np.asarray(_Memory(array, array.ctypes.data, array.nbytes)))


def contiguous(tensor: Tensor) -> Tensor:
    """Returns the tensor, or a contiguous copy of it on the host."""
    if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
        raise UsageError(f"earlybird moves dense tensors on CPUs and GPUs; this one is {tensor.layout} on {tensor.device}")
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return _cuda.to_host(dense) if dense.is_cuda else dense


def result_of(tensor: Tensor) -> Tensor:
    """Returns the memory for a result: the tensor, or memory of the host of the same size."""
    return _cuda.room(tensor) if tensor.is_cuda else contiguous(tensor)


def keep(tensor: Tensor, result: Tensor) -> Tensor:
    """Copies a result into its tensor, unless it is there already."""
    if tensor.data_ptr() != result.data_ptr() or tensor.shape != result.shape or not tensor.is_contiguous():
        place, result = tensor.detach(), result.view(tensor.shape)
        for dimension, stride in enumerate(place.stride()):
            # An expanded tensor has one element for all indices of this dimension.
            if stride == 0 and place.shape[dimension] > 1:
                place, result = place.narrow(dimension, 0, 1), result.narrow(dimension, 0, 1)
        place.copy_(result, non_blocking=result.is_pinned())
    return tensor


def same(tensors: Iterable[Tensor]) -> None:
    """Checks that tensors have the same type and size."""
    if len({(tensor.dtype, tensor.numel()) for tensor in tensors}) > 1:
        raise UsageError("the tensors of such a call have one type and one size")


def op_name(op: Any) -> str:
    """Returns the name of a reduction."""
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if op == getattr(ReduceOp, name):
            return name
    raise UsageError("earlybird has no such reduction; it has SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR")


_FOLDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def _native(tensor: Tensor, name: str) -> tuple[Tensor, tuple[str, str]] | None:
    """Returns elements that the library can reduce by itself, and how it must reduce them; ``None`` if there are none."""
    if tensor.is_complex() and name in ("SUM", "AVG"):
        tensor = torch.view_as_real(tensor)
    if name == "AVG" and (tensor.dtype not in NAMES or tensor.dtype == torch.bool):
        raise UsageError(f"there is no mean of {tensor.dtype}")
    if tensor.dtype in NAMES and name in _REDUCTIONS:
        return tensor, (NAMES[tensor.dtype], _REDUCTIONS[name])
    return None


def _gathered(world: World, tensor: Tensor, timeout: float | None) -> list[Tensor]:
    all = torch.empty((world.size, *tensor.shape), dtype=tensor.dtype, device="cpu")
    collectives.all_gather(world, bytes_of(tensor), bytes_of(all), timeout)
    return list(all)


def _fold(tensors: list[Tensor], name: str) -> Tensor:
    return functools.reduce(_FOLDS[name], tensors)


def _sum_sparse(world: World, tensor: Tensor, name: str, timeout: float | None) -> Tensor:
    """Sums tensors of coordinates and values. The result holds the coordinates of all ranks, coalesced."""
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
        # Ranks have different numbers of coordinates. Each passes the number that the largest has.
        padded = part.new_zeros((max(counts), *part.shape[1:]))
        padded[: part.shape[0]] = part
        parts = _gathered(world, padded, timeout)
        return torch.cat([other[:count] for other, count in zip(parts, counts, strict=True)])

    places, values = all_of(indices.t().contiguous()).t(), all_of(values.contiguous())
    all = torch.sparse_coo_tensor(places, values, tensor.shape, check_invariants=False)
    # The thread that makes the call does not have the caller's mode.
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
    return keep(tensor, result)


def reduce(world: World, tensor: Tensor, name: str, root: int, timeout: float | None) -> Tensor:
    """Reduces in place on the root; the tensors of other ranks stay unchanged."""
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
        keep(tensor, result)
    return tensor


def reduce_scatter(world: World, out: Tensor, all: Tensor, name: str, timeout: float | None) -> Tensor:
    """Reduces all blocks; this rank gets its own block."""
    if all.numel() != out.numel() * world.size or all.dtype != out.dtype:
        raise UsageError(f"{all.numel()} elements are not {world.size} times the {out.numel()} of the result")
    source = contiguous(all)
    result = result_of(out)
    native = _native(source, name)
    if native is None:
        blocks = (gathered.reshape(world.size, -1)[world.rank] for gathered in _gathered(world, source, timeout))
        result = _fold(list(blocks), name)
    else:
        elements, kinds = native
        collectives.reduce_scatter(world, bytes_of(elements), bytes_of(result), kinds, timeout)
    return keep(out, result)


def reduce_scatter_blocks(world: World, out: Tensor, blocks: list[Tensor], name: str, timeout: float | None) -> Tensor:
    """Reduces blocks that may have different lengths, which are the same on all ranks."""
    if len(blocks) != world.size:
        raise UsageError(f"{len(blocks)} blocks are not those of {world.size} ranks")
    lengths = [block.numel() for block in blocks]
    mine = blocks[world.rank]
    if (out.numel(), out.dtype) != (mine.numel(), mine.dtype):
        raise UsageError(f"{mine.numel()} elements of {mine.dtype} are not the {out.numel()} of {out.dtype} of the result")
    all = torch.cat([contiguous(block).reshape(-1) for block in blocks])
    if len(set(lengths)) == 1:
        return reduce_scatter(world, out, all, name, timeout)
    return keep(out, all_reduce(world, all, name, timeout).split(lengths)[world.rank])
