"""Errors that terms of a sum have in common because the terms were made of equal numbers."""

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers
from attnspec.spec.contract.precision import Precision

FEW = 8
"""Terms with equal errors that are taken as terms with independent ones."""


def of_equals(marks: Numbers, factors: Numbers, rows: Numbers, precision: Precision) -> Numbers:
    """The variance of Σᵢ factorᵢ rowᵢ, of shape (d,), in which factors are errors, equal where marks are nearly equal.

    Equal errors add linearly, those of different marks in quadrature. What has NaN as its mark is left out.
    """
    # Numbers that differ by less than a rounding are rounded alike.
    steps = np.round(marks * (4 / max(precision.operand, precision.accumulation)))
    order = np.argsort(steps)
    order = order[: np.count_nonzero(np.isfinite(steps))]
    starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
    counts = np.diff(starts, append=len(order))
    many = counts > FEW
    if not many.any():
        return np.zeros(rows.shape[-1])
    order, counts = order[np.repeat(many, counts)], counts[many]
    sums = np.add.reduceat(factors[order, None] * rows[order], np.cumsum(counts) - counts, axis=0)
    found: Numbers = (sums**2).sum(0)
    return found
