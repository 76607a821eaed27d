"""Which of the kernels for CPUs a call of additive attention takes: those that cost least."""

import torch

from attnspec.backends.pytorch.kernels.costs import cost_of, microseconds
from attnspec.backends.pytorch.runtime.forcing import forced

PATHS = "direct", "llvm"


def by_cost(batch: torch.Size, n: int, m: int, h: int, d: int, dtype: torch.dtype, *, tracked: bool) -> str:
    """``direct`` or ``llvm``, for operands of these sizes whose gradients are taken if ``tracked``."""
    entries = batch.numel()
    if not entries * n * m:
        return "llvm"
    wish = forced()
    if wish in PATHS:
        return wish
    pairs, rows = entries * n * m * h, entries * ((n + m) * h + m * d)
    return min(PATHS, key=lambda path: microseconds(cost_of("additive", path, dtype, tracked), pairs, rows))
