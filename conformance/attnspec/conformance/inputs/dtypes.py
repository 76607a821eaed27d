"""Dtypes by name, bfloat16 included."""

from typing import Any

import ml_dtypes
import numpy as np

NARROW = frozenset({"bfloat16", "float16"})
"""The dtypes of 16 bits."""

SMALLEST_NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}

LARGEST = {"float64": 2.0**1023, "float32": 2.0**127, "bfloat16": 2.0**127, "float16": 65504.0}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def is_float(x: Any) -> bool:
    """Return whether an array is floating point; bfloat16's NumPy kind is not ``f``."""
    return isinstance(x, np.ndarray) and x.dtype.kind not in "biuOUS"


def half_to_single(x: Any) -> Any:
    """Convert half precision to float32 and leave everything else unchanged."""
    if is_float(x) and x.dtype.itemsize == 2:
        return x.astype(np.float32)
    return x


def with_quiet_nans(x: Any) -> Any:
    """Replace NaNs of an array by quiet ones, if it has any.

    Memory that a kernel did not write may hold others, which warn in every cast.
    """
    if isinstance(x, np.ndarray) and np.issubdtype(x.dtype, np.floating) and np.isnan(x).any():
        return np.where(np.isnan(x), x.dtype.type(np.nan), x)
    return x


def exact_in(x: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The numbers rounded to the dtype."""
    with np.errstate(over="ignore"):
        return np.asarray(x, dtype=np.float64).astype(numpy_dtype(dtype))
