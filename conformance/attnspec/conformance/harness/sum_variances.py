"""Variances of sums whose terms have equal errors, and of sums stored after every tile.

The standard deviation of one rounding is 0.6 times the unit roundoff: 1/√3 if it is uniform.
"""

from typing import NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.spec.contract.precision import Precision

MAX_INDEPENDENT = 8
"""Largest group of terms with equal errors that are still treated as independent."""

QUERY_TILE, SMALL_QUERY_TILE, LARGE_CALL = 256, 32, 768
"""Assumed queries per tile of large and of small calls; queries from which calls are large."""

KEY_TILE = 512
"""Keys per tile."""


class EqualGroups(NamedTuple):
    """Groups of terms with equal errors: the terms' indices, and each group's start."""

    places: Numbers
    starts: Numbers

    def variance(self, factors: Numbers, rows: Numbers) -> Numbers:
        """Return the variance of Σᵢ factorᵢ rowᵢ, (d,), if a group's factors share one error.

        Errors within a group add linearly, those of different groups in quadrature. Terms without a group are left out.
        """
        if not len(self.starts):
            return np.zeros(rows.shape[-1])
        sums = np.add.reduceat(factors[self.places, None] * rows[self.places], self.starts, axis=0)
        total: Numbers = (sums**2).sum(0)
        return total


def equal_groups(marks: Numbers, precision: Precision) -> EqualGroups:
    """Group terms whose marks agree to a quarter of the unit roundoff: they round alike.

    A mark is a logarithm of a weight, or a score. Terms marked NaN, and those of small groups, get no group.
    """
    steps = np.round(marks * (4 / max(precision.operand, precision.accumulation)))
    order = np.argsort(steps)
    order = order[: np.count_nonzero(np.isfinite(steps))]
    starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
    counts = np.diff(starts, append=len(order))
    large = counts > MAX_INDEPENDENT
    places, counts = order[np.repeat(large, counts)], counts[large]
    return EqualGroups(places, np.cumsum(counts) - counts)


def variance_of_query_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """Return the variance of factorsᵀ rows if sums are stored after every query tile."""
    return _variance_of_tiles(factors, rows, QUERY_TILE if len(rows) >= LARGE_CALL else SMALL_QUERY_TILE, precision)


def variance_of_key_tiles(factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """Return the variance of factorsᵀ rows if sums are stored after every key tile."""
    return _variance_of_tiles(factors, rows, KEY_TILE, precision)


def _variance_of_tiles(factors: Numbers, rows: Numbers, tile: int, precision: Precision) -> Numbers:
    sums = np.zeros((factors.shape[1], rows.shape[1]))
    squares = np.zeros(sums.shape)
    # The sum after the last tile is the result, whose rounding is counted elsewhere.
    for start in range(0, len(rows) - tile if precision.output else 0, tile):
        sums += factors[start : start + tile].T @ rows[start : start + tile]
        squares += (0.6 * precision.output * sums) ** 2 + precision.output_smallest**2
    return squares
