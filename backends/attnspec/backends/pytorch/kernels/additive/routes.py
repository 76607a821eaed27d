"""Which of the kernels for CPUs a call of additive attention takes: the one that costs least."""

import torch

from attnspec.backends.pytorch.kernels.costs import Cost, Costs, instruction_set, kind
from attnspec.backends.pytorch.runtime.forcing import forced

COSTS: dict[str, Costs] = {
    "avx512": {
        ("direct", "float32", False): Cost(12.0, 0.36, 0.3),
        ("llvm", "float32", False): Cost(230.0, 0.05, 1.0),
        ("direct", "float32", True): Cost(110.0, 0.9, 1.0),
        ("llvm", "float32", True): Cost(900.0, 0.2, 3.0),
    },
}


def attention(
    batch: torch.Size, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool
) -> str:
    """``direct`` or ``llvm``, for operands of these sizes whose gradients are taken if ``tracked``."""
    entries = batch.numel()
    if not entries * n * m:
        return "llvm"
    wish = forced()
    if wish in ("direct", "llvm"):
        return wish
    return min(("direct", "llvm"), key=lambda path: cost(path, entries, n, m, h, d, dtype, tracked))


def cost(path: str, entries: int, n: int, m: int, h: int, d: int, dtype: torch.dtype, tracked: bool) -> float:
    """Microseconds that the kernels of a path take."""
    threads = torch.get_num_threads()
    found = COSTS["avx512"]["" + path, "float32", tracked]
    return found.microseconds(entries * n * m * h, entries * ((n + m) * h + m * d), threads)
