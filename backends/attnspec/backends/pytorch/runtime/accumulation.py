"""Floating dtypes and their accumulation dtypes: float32 for half dtypes, otherwise the same."""

from math import isfinite

import torch
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (torch.float64, torch.float32, *HALF_DTYPES)


def upcast(x: Tensor) -> Tensor:
    """Return x in its accumulation dtype: float32 for half dtypes, else unchanged."""
    return x.to(torch.float32) if x.dtype in HALF_DTYPES else x


def times_vector(x: Tensor, vector: Tensor) -> Tensor:
    """Return x (…, d) times a vector (d)."""
    return x @ vector.contiguous()  # MKL misreads float32 vectors with strides of gigabytes


def finite(x: Tensor) -> bool:
    """Return whether all numbers are finite; False, which is only slower, if their sum overflows."""
    return isfinite(x.detach().sum(dtype=torch.float32 if x.dtype in HALF_DTYPES else None))
