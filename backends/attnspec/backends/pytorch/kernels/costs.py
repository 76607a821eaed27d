"""What a call of each path takes, by instruction set and dtype: a model whose constants `python -m benchmarks calibrate` fits.

Nothing is measured in a user's process: the same call takes the same path in every run.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch


class Cost(NamedTuple):
    """Microseconds of a call, and nanoseconds of each unit of its work on one thread.

    ``pair`` counts what is done for each query and key (terms, or multiply-adds), ``row`` what is done for each number
    of a query, key or value.
    """

    call: float
    pair: float
    row: float

    def microseconds(self, pairs: float, rows: float, threads: int) -> float:
        """The time of a call whose work is divided among threads."""
        return self.call + (self.pair * pairs + self.row * rows) / 1e3 / threads


Costs = Mapping[tuple[str, str, bool], Cost]
"""By path, dtype (the half dtypes share one name) and whether gradients are taken too."""


@lru_cache(maxsize=1)
def instruction_set() -> str:
    """``avx512``, ``avx2`` or ``neon``: by the width of the registers."""
    try:
        from attnspec.backends.pytorch.kernels.llvm.machine_code import register_bytes
    except ImportError:  # without llvmlite there is one path
        return "neon"
    return {64: "avx512", 32: "avx2"}.get(register_bytes(), "neon")


def kind(dtype: torch.dtype) -> str:
    """The name of a dtype among the costs."""
    return {torch.float64: "float64", torch.float32: "float32"}.get(dtype, "half")
