"""Errors that terms of a sum have in common because the terms were made of equal numbers."""

from typing import NamedTuple

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.spec.contract.precision import Precision

FEW = 8
"""Terms with equal errors that are taken as terms with independent ones."""


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
