"""Columns of softmax weights: those of some keys in all rows, with their errors, without the weights of other keys.

The errors are those of :func:`~attnspec.reference.budget.softmax.statistical_weights`; what it sums over the keys of a
row is bounded here by the greatest weight.
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

    ``scores`` have their errors; ``logarithms`` and ``greatest`` are log Σ exp and the greatest score of every row, and
    ``repeats`` is how many scores of a row are equal.
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
        """The weights, 0 where a row does not attend."""
        found: Numbers = np.where(self.allowed, np.exp(self.scores.value - self.logarithms), 0.0)
        return found

    @cached_property
    def heaviest(self) -> Numbers:
        """The greatest weight of every row, which the sum of the squares of all does not exceed."""
        return np.where(np.isfinite(self.logarithms), np.exp(self.greatest - self.logarithms), 0.0)

    @cached_property
    def of_scores(self) -> Numbers:
        """The error of a score of every row, of those that are known the largest."""
        found: Numbers = np.where(self.allowed, self.scores.error, 0.0).max(-1, keepdims=True, initial=0.0)
        return found

    @cached_property
    def shared(self) -> Numbers:
        """The relative error that all weights of a row have in common, and those of rows that are alike."""
        u, logarithm = self.precision.accumulation, np.where(np.isfinite(self.logarithms), self.logarithms, 0.0)
        return u * np.sqrt((0.5 * self.repeats) ** 2 + (0.6 * logarithm) ** 2)

    @cached_property
    def of_sum(self) -> Numbers:
        """The relative error of the sum of a row, and of weights that are exp(e − L) of scores in another order."""
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
        """The relative error of every weight; unknown where a score errs by so much that the first order fails."""
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
        """The variance of Σᵢ factorᵢ rowᵢ, of shape (c, d), by errors of the weights that rows have in common.

        Rows with equal weights, or equal scores, have equal errors, and these add linearly; so do those of their sums
        where the scores of all rows are alike.
        """
        variance = ((self.shared * factors).T @ rows) ** 2
        of_weights = np.hypot(self.relative, 0.6 * self.precision.operand) * factors
        of_scores = self.scores.error * factors
        for j, (weights, scores) in enumerate(self.equals):
            variance[j] += weights.variance(of_weights[:, j], rows) + scores.variance(of_scores[:, j], rows)
        return variance

    @cached_property
    def equals(self) -> list[tuple[Equals, Equals]]:
        """For every key, the rows with equal weights, and those with equal scores."""
        both = (np.where(self.allowed, x, np.nan).T for x in (np.log(self.alpha), self.scores.value))
        return [(equals(w, self.precision), equals(s, self.precision)) for w, s in zip(*both, strict=True)]


def columns(
    scores: Scores, query: Numbers, key: Numbers, chosen: Numbers, attendance: Attendance, precision: Precision
) -> Columns:
    """The columns of the chosen keys."""
    # Products in single precision err by less than a class of 16 bits can tell.
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
