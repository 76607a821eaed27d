"""Softmax weights of some keys in all rows, with their errors, without other keys' weights.

The errors follow :func:`~attnspec.reference.budget.softmax.statistical_weights`; its sums over the keys of a row are
bounded here by the greatest weight.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.conformance.harness.normalizers import Attendance, Scores, normalizers
from attnspec.conformance.harness.summing import Equals, equals
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import UNKNOWN, WIDTH
from attnspec.reference.budget.numbers import longest_runs
from attnspec.reference.budget.softmax import SCORE_GRID
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

LOOKED_AT = 8
"""Rows in which equal scores are counted."""


@dataclass(frozen=True)
class Columns:
    """Weights of (n, c) pairs.

    ``scores`` carry their errors; ``logarithms`` and ``greatest`` are log Σ exp and the greatest score per row, and
    ``repeats`` is the number of equal scores in a row.
    """

    scores: Statistical
    allowed: Numbers
    logarithms: Numbers
    greatest: Numbers
    repeats: float
    keys: int
    features: int

    @property
    def precision(self) -> Precision:
        """The precision class."""
        return self.scores.precision

    @cached_property
    def alpha(self) -> Numbers:
        """The weights, 0 for pairs that do not attend."""
        found: Numbers = np.where(self.allowed, np.exp(self.scores.value - self.logarithms), 0.0)
        return found

    @cached_property
    def heaviest(self) -> Numbers:
        """The greatest weight of every row, an upper bound of the sum of squares of all."""
        return np.where(np.isfinite(self.logarithms), np.exp(self.greatest - self.logarithms), 0.0)

    @cached_property
    def of_scores(self) -> Numbers:
        """The largest known score error per row."""
        found: Numbers = np.where(self.allowed, self.scores.error, 0.0).max(-1, keepdims=True, initial=0.0)
        return found

    @cached_property
    def shared(self) -> Numbers:
        """The relative error common to all weights of a row, and to those of similar rows."""
        u, logarithm = self.precision.accumulation, np.where(np.isfinite(self.logarithms), self.logarithms, 0.0)
        return u * np.sqrt((0.5 * self.repeats) ** 2 + (0.6 * logarithm) ** 2)

    @cached_property
    def of_sum(self) -> Numbers:
        """The relative error of a row's sum, including that of weights exp(e − L) with reordered scores."""
        u = self.precision.accumulation
        reach = WIDTH * np.sqrt(self.of_scores**2 + u**2)
        others = (self.heaviest * np.expm1(reach) / WIDTH) ** 2
        largest = np.maximum(np.abs(self.scores.value).max(-1, keepdims=True), np.abs(self.greatest))
        largest = np.where(np.isfinite(largest), largest, 0.0)
        summing = u**2 * (1 + self.keys / 4 + (1 + 0.5 * self.features) * largest**2)
        found: Numbers = np.sqrt(others * np.exp(2 * reach) + summing + self.shared**2)
        return found

    @cached_property
    def relative(self) -> Numbers:
        """The relative error of every weight; unknown where the first order fails for a score's error."""
        u, drop = self.precision.accumulation, np.where(self.allowed, self.scores.value - self.greatest, 0.0)
        reach = WIDTH * np.minimum(np.sqrt(self.scores.error**2 + u**2 * (1 + drop**2)), 1.0)
        own = np.expm1(reach) / WIDTH * (1 - self.alpha)
        unsure = (WIDTH * self.of_scores > 0.5) & (self.alpha < 1)
        return np.where(unsure & self.allowed, UNKNOWN, np.hypot(own, self.of_sum))

    @cached_property
    def weights(self) -> Statistical:
        """The weights with their errors."""
        most = np.maximum(self.alpha, 1 - self.alpha)
        error = np.minimum(self.alpha * self.relative, most) + self.precision.weights_smallest
        error = np.where(self.relative < UNKNOWN, error, UNKNOWN)
        return Statistical(self.alpha, np.where(self.allowed, error, 0.0), self.precision)

    def together(self, factors: Numbers, rows: Numbers) -> Numbers:
        """Return the variance of Σᵢ factorᵢ rowᵢ, of shape (c, d), from weight errors that rows share.

        Rows with equal weights, or equal scores, have equal errors, which add linearly. So do the errors of their sums
        if the scores of all rows are similar.
        """
        variance = ((self.shared * factors).T @ rows) ** 2
        of_weights = np.hypot(self.relative, 0.6 * self.precision.operand) * factors
        of_scores = self.scores.error * factors
        for j, (weights, scores) in enumerate(self.equals):
            variance[j] += weights.variance(of_weights[:, j], rows) + scores.variance(of_scores[:, j], rows)
        return variance

    @cached_property
    def equals(self) -> list[tuple[Equals, Equals]]:
        """For every key, the groups of rows with equal weights, and with equal scores."""
        both = (np.where(self.allowed, x, np.nan).T for x in (np.log(self.alpha), self.scores.value))
        return [(equals(w, self.precision), equals(s, self.precision)) for w, s in zip(*both, strict=True)]


def columns(
    scores: Scores, query: Numbers, key: Numbers, chosen: Numbers, attendance: Attendance, precision: Precision
) -> Columns:
    """Return the columns of the chosen keys."""
    # Single-precision products err by less than a 16-bit class can resolve.
    wide = np.float32 if precision.dtype in ("bfloat16", "float16") else np.float64
    q, k = query.astype(wide), key.astype(wide)
    logarithms, greatest = normalizers(scores, q, k, attendance)
    given = [Statistical(x.astype(np.float64), 0.0, precision, given=True) for x in (query, key[chosen])]
    some = np.unique(np.linspace(0, len(query) - 1, LOOKED_AT).astype(np.intp))
    allowed = attendance.of_rows(some)
    grid = np.sort(np.where(allowed, np.round(scores(q[some], k) * SCORE_GRID), np.nan), axis=-1)
    return Columns(
        scores=scores(*given),
        allowed=attendance.of_keys(chosen),
        logarithms=logarithms[:, None],
        greatest=greatest[:, None],
        repeats=float(longest_runs(grid).max()),
        keys=len(key),
        features=query.shape[-1],
    )
