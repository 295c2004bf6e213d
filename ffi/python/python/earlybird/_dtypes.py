"""Element types, and arrays over memory that is lent."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _earlybird
from ._errors import ConfigError

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    # NumPy has no bfloat16: these are its bits.
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "bool": np.dtype(np.bool_),
}


def numpy_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Returns the NumPy type, from the library's name of an element type or from anything that NumPy takes for a type.
    """
    if isinstance(dtype, str):
        if dtype in DTYPES:
            return DTYPES[dtype]
        # NumPy counts bytes, and the library counts bits: as "u2" NumPy would accept a type of 16 bits.
        if re.fullmatch(r"[a-z]+[0-9]+", dtype) and not hasattr(np, dtype):
            raise ConfigError(f"dtype: {dtype} is none of {', '.join(DTYPES)}, and no name such as float32")
    return np.dtype(dtype)


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Returns the library's name of an element type, from that name or from anything that NumPy takes for a type."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    wanted = numpy_dtype(dtype)
    if wanted.name == "bfloat16":
        # The bfloat16 of ml_dtypes.
        return "bf16"
    for name, known in DTYPES.items():
        if known == wanted and name != "bf16":
            return name
    raise ConfigError(f"dtype: {wanted} is none of {', '.join(DTYPES)}")


def array_of(memory: _earlybird.Memory, dtype: np.dtype[Any]) -> Array:
    """Returns an array over the memory itself. The array keeps the loan alive."""
    return np.frombuffer(memoryview(memory), dtype=dtype)
