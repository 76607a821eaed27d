"""Gradients that are added up in the dtype of the result, tile after tile, as PyTorch's kernels on the CPU do."""

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.spec.contract.precision import Precision

QUERIES, FEW_QUERIES, MANY = 256, 32, 768
"""Queries of a tile where there are many, and where there are fewer than so many."""

KEYS = 512
"""Keys of a tile."""


def of_query_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """The variance of Σᵢ factorᵢ rowᵢ, with (n, c) factors and (n, d) rows, by storing sums over tiles of queries."""
    return _of_tiles(factors, rows, QUERIES if len(rows) >= MANY else FEW_QUERIES, precision)


def of_key_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """The same over tiles of keys."""
    return _of_tiles(factors, rows, KEYS, precision)


def _of_tiles(factors: Numbers, rows: Numbers, tile: int, precision: Precision) -> Numbers:
    sums = np.zeros((factors.shape[1], rows.shape[1]))
    squares = np.zeros(sums.shape)
    # The last sum is the result, whose rounding is counted as such.
    for start in range(0, len(rows) - tile if precision.output else 0, tile):
        sums += factors[start : start + tile].T @ rows[start : start + tile]
        squares += (0.6 * precision.output * sums) ** 2 + precision.output_smallest**2
    return squares
