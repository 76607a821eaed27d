"""Which of the kernels for CPUs a call of additive attention takes: those that cost least."""

import torch

from attnspec.backends.pytorch.kernels.costs import cost_of, microseconds
from attnspec.backends.pytorch.runtime.forcing import forced

PATHS = "direct", "llvm"


def by_cost(entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, *, tracked: bool) -> str:
    """``direct`` or ``llvm``, for as many elements of a batch and these sizes; ``tracked`` if gradients are taken."""
    if not entries * n * m:
        return "llvm"
    wish = forced()
    if wish in PATHS:
        return wish
    terms = work(entries, n, m, h, d)
    return min(PATHS, key=lambda path: microseconds(cost_of("additive", path, dtype, tracked), *terms))


def work(entries: int, n: int, m: int, h: int, d: int) -> tuple[int, int]:
    """Hidden units of all pairs of a query and a key, and numbers of all rows: what time is proportional to."""
    return entries * n * m * h, entries * ((n + m) * h + m * d)
