"""Which of the kernels for CPUs a call of scaled dot-product attention takes: those that cost least."""

import torch

from attnspec.backends.pytorch.kernels.costs import cost_of, microseconds
from attnspec.backends.pytorch.kernels.dot.tiles import width
from attnspec.backends.pytorch.runtime.forcing import forced

PATHS = "llvm", "pytorch"

EXCLUDING = 25.0
"""Microseconds that the kernel of PyTorch takes longer where keys are excluded: what it gives must be checked."""


def by_cost(b: int, h: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype, *, tracked: bool,
            excludes: bool) -> str:  # fmt: skip
    """``llvm`` or ``pytorch``, for operands of these sizes whose gradients are taken if ``tracked``."""
    wish = forced()
    if wish in PATHS:
        return wish
    lanes = width(64 if dtype is torch.float64 else 32)
    products, rows = b * h * m * (d + d_v), b * h * (n + m) * (d + d_v)
    by_llvm = microseconds(cost_of("dot", "llvm", dtype, tracked), products * -(-n // lanes) * lanes, rows)
    by_pytorch = microseconds(cost_of("dot", "pytorch", dtype, tracked), products * n, rows)
    return "llvm" if by_llvm <= by_pytorch + EXCLUDING * excludes else "pytorch"
