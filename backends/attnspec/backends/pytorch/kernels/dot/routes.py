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
    by_llvm, by_pytorch = (
        microseconds(cost_of("dot", path, dtype, tracked), *work(path, b * h, n, m, d, d_v, dtype)) for path in PATHS
    )
    return "llvm" if by_llvm <= by_pytorch + EXCLUDING * excludes else "pytorch"


def work(path: str, entries: int, n: int, m: int, d: int, d_v: int, dtype: torch.dtype) -> tuple[int, int]:
    """Multiply-adds of all pairs of a query and a key, and numbers of all rows; ``llvm`` fills the lanes of queries."""
    lanes = width(64 if dtype is torch.float64 else 32) if path == "llvm" else 1
    return entries * -(-n // lanes) * lanes * m * (d + d_v), entries * (n + m) * (d + d_v)
