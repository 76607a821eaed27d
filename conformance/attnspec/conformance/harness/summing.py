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
    """Terms with equal errors: their places, group after group, and where in these each group starts."""

    places: Numbers
    starts: Numbers

    def variance(self, factors: Numbers, rows: Numbers) -> Numbers:
        """The variance of Σᵢ factorᵢ rowᵢ, of shape (d,), in which the factors of a group are one error.

        Equal errors add linearly, those of different groups in quadrature; what is in no group is left out.
        """
        if not len(self.starts):
            return np.zeros(rows.shape[-1])
        sums = np.add.reduceat(factors[self.places, None] * rows[self.places], self.starts, axis=0)
        found: Numbers = (sums**2).sum(0)
        return found


def equals(marks: Numbers, precision: Precision) -> Equals:
    """The terms whose marks differ by less than a rounding: they are rounded alike. A mark that is NaN equals none."""
    steps = np.round(marks * (4 / max(precision.operand, precision.accumulation)))
    order = np.argsort(steps)
    order = order[: np.count_nonzero(np.isfinite(steps))]
    starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
    counts = np.diff(starts, append=len(order))
    many = counts > FEW
    places, counts = order[np.repeat(many, counts)], counts[many]
    return Equals(places, np.cumsum(counts) - counts)


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
