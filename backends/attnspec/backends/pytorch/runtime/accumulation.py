"""Floating dtypes, and the dtype in which sums are accumulated: float32 for the half dtypes, else their own."""

import torch
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (torch.float64, torch.float32, *HALF_DTYPES)


def widened(x: Tensor) -> Tensor:
    """x in the dtype in which its sums are accumulated."""
    return x.to(torch.float32) if x.dtype in HALF_DTYPES else x


def product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product, rounded once to the dtype of ``left``; batches broadcast."""
    return (widened(left) @ widened(right)).to(left.dtype)
