"""Floating dtypes and their accumulation dtypes: float32 for half dtypes, otherwise the same."""

from math import isfinite

import torch
from torch import Tensor
from torch.nn.functional import linear

HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (torch.float64, torch.float32, *HALF_DTYPES)


def widened(x: Tensor) -> Tensor:
    """x in the dtype in which its sums are accumulated."""
    return x.to(torch.float32) if x.dtype in HALF_DTYPES else x


def projected(x: Tensor, w: Tensor) -> Tensor:
    """x Wᵀ with W (out, in), rounded once to the dtype of x."""
    return linear(widened(x), widened(w)).to(x.dtype)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product, rounded once to the dtype of ``left``; batches broadcast."""
    return (widened(left) @ widened(right)).to(left.dtype)


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix products (*batch, n, m) of one dtype; only batches that broadcast cost extra time."""
    if left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0]:
        return torch.bmm(left, right)
    return left @ right


def times_vector(x: Tensor, vector: Tensor) -> Tensor:
    """x (…, d) times a vector (d), made contiguous: MKL misreads float32 vectors with gigabyte strides."""
    return x @ vector.contiguous()


def finite(x: Tensor) -> bool:
    """Return whether all numbers are finite. False if a sum of finite numbers overflows, which only costs time."""
    return isfinite(x.detach().sum(dtype=torch.float32 if x.dtype in HALF_DTYPES else None))
