"""The PyTorch backend whose products of matrices are all taken by compiled kernels, and whose batches go in pieces.

Only large calls do either, which the suite seldom makes.
"""

from typing import Any

from attnspec.backends.pytorch.kernels.additive.llvm import direct_plan, few
from attnspec.backends.pytorch.kernels.llvm import matmul, pairs, projection
from attnspec.backends.pytorch.runtime import paths

matmul.LEAST, projection.ROWS, direct_plan.PIECE, direct_plan.PIECE_OF_WEIGHTS, few.FEW = 1, 1, 1, 1, 0
pairs.LEAST_OF_TILES, direct_plan.PARTS_REALS = 1, True

name = "pytorch by products of its own"
notes = {**paths.direct.notes, "products": "by compiled kernels, in pieces of a batch"}
vjp, pullback = paths.direct.vjp, paths.direct.pullback


def __getattr__(attribute: str) -> Any:
    return getattr(paths.direct, attribute)
