"""The PyTorch backend with compiled kernels for all matrix products, and batches in pieces.

Without this only large calls do either, and the suite seldom makes them.
"""

from typing import Any

from attnspec.backends.pytorch.kernels.additive.llvm import pointwise_plan, small
from attnspec.backends.pytorch.kernels.llvm import bfloat16_pairs, matmul, projection
from attnspec.backends.pytorch.runtime import paths

matmul.LEAST_WORK = projection.ROWS = bfloat16_pairs.LEAST_WORK_OF_TILES = 1
pointwise_plan.PIECE, pointwise_plan.PIECE_OF_WEIGHTS, pointwise_plan.PARTS_REALS = 1, 1, True
small.MOST_WORK = 0  # no call is left to the kernels of small calls, which multiply themselves

name = "pytorch by products of its own"
notes = {**paths.pointwise.notes, "products": "by compiled kernels, in pieces of a batch"}
vjp, pullback = paths.pointwise.vjp, paths.pointwise.pullback


def __getattr__(attribute: str) -> Any:
    return getattr(paths.pointwise, attribute)
