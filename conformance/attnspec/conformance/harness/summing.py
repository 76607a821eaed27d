"""Variances of sums: of terms with equal errors, and of sums that are stored tile after tile."""

from typing import NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.spec.contract.precision import Precision

FEW = 8
"""Size up to which a group of terms with equal errors is treated as independent."""

QUERIES, FEW_QUERIES, MANY = 256, 32, 768
"""Queries per tile: ``QUERIES`` if there are at least ``MANY``, else ``FEW_QUERIES``."""

KEYS = 512
"""Keys of a tile."""


class Equals(NamedTuple):
    """Groups of terms with equal errors: their indices, group by group, and each group's start."""

    places: Numbers
    starts: Numbers

    def variance(self, factors: Numbers, rows: Numbers) -> Numbers:
        """Return the variance of Σᵢ factorᵢ rowᵢ, of shape (d,), where a group's factors share one error.

        Equal errors add linearly, those of different groups in quadrature; terms without a group are left out.
        """
        if not len(self.starts):
            return np.zeros(rows.shape[-1])
        sums = np.add.reduceat(factors[self.places, None] * rows[self.places], self.starts, axis=0)
        found: Numbers = (sums**2).sum(0)
        return found


def equals(marks: Numbers, precision: Precision) -> Equals:
    """Group terms whose marks differ by less than a rounding: they are rounded alike. NaN equals no mark."""
    steps = np.round(marks * (4 / max(precision.operand, precision.accumulation)))
    order = np.argsort(steps)
    order = order[: np.count_nonzero(np.isfinite(steps))]
    starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
    counts = np.diff(starts, append=len(order))
    many = counts > FEW
    places, counts = order[np.repeat(many, counts)], counts[many]
    return Equals(places, np.cumsum(counts) - counts)


def of_query_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """Return the variance of Σᵢ factorᵢ rowᵢ, (n, c) and (n, d), from storing sums over tiles of queries."""
    return _of_tiles(factors, rows, QUERIES if len(rows) >= MANY else FEW_QUERIES, precision)


def of_key_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """Return the variance from storing sums over tiles of keys."""
    return _of_tiles(factors, rows, KEYS, precision)


def _of_tiles(factors: Numbers, rows: Numbers, tile: int, precision: Precision) -> Numbers:
    sums = np.zeros((factors.shape[1], rows.shape[1]))
    squares = np.zeros(sums.shape)
    # The last sum is the result, whose rounding is counted separately.
    for start in range(0, len(rows) - tile if precision.output else 0, tile):
        sums += factors[start : start + tile].T @ rows[start : start + tile]
        squares += (0.6 * precision.output * sums) ** 2 + precision.output_smallest**2
    return squares
