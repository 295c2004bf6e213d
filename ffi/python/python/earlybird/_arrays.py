"""The arrays of programs: NumPy arrays and others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._dtypes import DTYPES, Array, dtype_name
from ._errors import UsageError

Given = Any
"""A NumPy array, or an object with the buffer protocol or DLPack: jax and torch arrays on the host, ``array.array``,
ctypes, bytes.
"""


def view(given: Given) -> Array:
    """Returns the same memory as a NumPy array."""
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "__dlpack__"):
        try:
            return np.from_dlpack(given)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"a {type(given).__name__} gives no memory of the host: {error}") from error
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(given, np.generic):
            return np.asarray(memoryview(given))
    raise UsageError(
        f"a call needs an array (of NumPy, or with the buffer protocol or DLPack), and no {type(given).__name__}"
    )


def source(given: Given) -> Array:
    """Returns an array for reading, whose elements are contiguous: a copy if the elements of ``given`` are not."""
    return np.asarray(view(given), order="C")


@contextlib.contextmanager
def written(given: Given) -> Iterator[Array]:
    """Lends an array for reading and writing, whose elements are contiguous. If the elements of ``given`` are not, it
    is a copy, which is copied back.
    """
    array = view(given)
    if not array.flags.writeable:
        raise UsageError(f"this {type(given).__name__} may only be read, and the call writes to it")
    dense = np.asarray(array, order="C")
    yield dense
    if dense is not array:
        array[...] = dense


def result(out: Given, like: Array, elements: int) -> Given:
    """Checks that an array for a result has the element type of ``like`` and this number of elements."""
    array = view(out)
    if array.dtype != like.dtype or array.size != elements:
        raise UsageError(f"{elements} elements of {like.dtype} are needed here, and not {array.size} of {array.dtype}")
    return out


def rows(array: Array, count: int) -> Array:
    """Checks that the rows of an array can be divided equally among this number of ranks."""
    if array.ndim == 0 or array.shape[0] % count != 0:
        raise UsageError(f"the rows of an array of shape {array.shape} cannot be divided among {count} ranks")
    return array


def kinds(array: Array, dtype: str | None, reduce: str) -> tuple[str, str]:
    """Returns the name of the element type, and the reduction."""
    name = dtype_name(array.dtype if dtype is None else dtype)
    # NumPy has no bfloat16; ml_dtypes adds one.
    if DTYPES[name] != array.dtype and not (name == "bf16" and array.dtype.name == "bfloat16"):
        raise UsageError(f"an array of {array.dtype} has no elements of {name}")
    return name, reduce


def data(array: Array) -> memoryview:
    """Returns the memory of an array with contiguous elements."""
    return array.reshape(-1).view(np.uint8).data
