"""What a call of each path takes, by instruction set and dtype: a model, whose constants `measured` holds.

Nothing is timed in a user's process: the same call takes the same path in every run.
"""

from functools import lru_cache

import torch

from attnspec.backends.pytorch.kernels.measured import COSTS, Cost
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """``avx512``, ``avx2`` or ``neon``: by the width of the registers that kernels use."""
    from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes

    return {64: "avx512", 32: "avx2"}.get(register_bytes(), "neon")


def cost_of(operation: str, path: str, dtype: torch.dtype, tracked: bool) -> Cost:
    """The constants of a path of ``additive`` or ``dot``; the half dtypes share theirs."""
    kind = "half" if dtype in HALF_DTYPES else "float64" if dtype is torch.float64 else "float32"
    return COSTS[instruction_set()][operation, path, kind, "gradients" if tracked else "forward"]


def microseconds(cost: Cost, pairs: float, rows: float) -> float:
    """The time of a call whose work is divided among all threads, where it is worth waking them."""
    work = (cost.pair * pairs + cost.row * rows) / 1e3
    threads = torch.get_num_threads()
    return cost.call + (work / threads if threads > 1 and work > WORTH_WAKING else work)


WORTH_WAKING = 50.0
"""Microseconds of work from which threads share it."""
