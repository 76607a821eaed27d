"""The PyTorch backend with compiled kernels for all matrix products, and batches in pieces.

Without this only large calls do either, and the suite seldom makes them.
"""

from typing import Any

from attnspec.backends.pytorch.kernels.additive.llvm import pointwise_plan, small
from attnspec.backends.pytorch.kernels.llvm import bfloat16_pairs, matmul, projection
from attnspec.backends.pytorch.runtime import paths

matmul.LEAST_WORK, projection.ROWS, pointwise_plan.PIECE, pointwise_plan.PIECE_OF_WEIGHTS, small.MOST_WORK = (
    1,
    1,
    1,
    1,
    0,
)
bfloat16_pairs.LEAST_WORK_OF_TILES, pointwise_plan.PARTS_REALS = 1, True

name = "pytorch by products of its own"
notes = {**paths.pointwise.notes, "products": "by compiled kernels, in pieces of a batch"}
vjp, pullback = paths.pointwise.vjp, paths.pointwise.pullback


def __getattr__(attribute: str) -> Any:
    return getattr(paths.pointwise, attribute)
