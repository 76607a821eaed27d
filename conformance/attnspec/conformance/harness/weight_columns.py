"""Softmax weights of a few keys in every row, with their errors.

The errors are those of :func:`~attnspec.reference.budget.softmax.statistical_weights`. Its sums over all keys of a row
are replaced by bounds from the largest weight, since the other keys' weights are never computed. With unit roundoff u,
the standard deviation is 0.6 u for one rounding (u/√3 if uniform), and 0.5 u √n for a sum of n numbers.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnspec.conformance.harness.normalizers import BLOCK_ROWS, Attendance, Scores, blocks, normalizers
from attnspec.conformance.harness.sum_variances import EqualGroups, equal_groups
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import UNKNOWN, WIDTH
from attnspec.reference.budget.numbers import longest_runs
from attnspec.reference.budget.softmax import EQUAL, SCORE_GRID
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

SAMPLED_ROWS = 8
"""Rows in which equal scores are counted."""


@dataclass(frozen=True)
class Columns:
    """Weights of n rows at c keys, (n, c).

    ``scores`` carry their errors. Per row, ``log_sums`` is log Σ exp of all scores, ``max_scores`` the largest score.
    ``repeats`` is the largest number of equal scores in a row. ``running_sums`` is the relative variance that a running
    maximum adds to a row's sum of exponentials.
    """

    scores: Statistical
    allowed: Numbers
    log_sums: Numbers
    max_scores: Numbers
    repeats: float
    running_sums: Numbers | float
    keys: int
    features: int

    @property
    def precision(self) -> Precision:
        """The precision class."""
        return self.scores.precision

    @cached_property
    def alpha(self) -> Numbers:
        """The weights, 0 for pairs that do not attend."""
        weights: Numbers = np.where(self.allowed, np.exp(self.scores.value - self.log_sums), 0.0)
        return weights

    @cached_property
    def largest_weight(self) -> Numbers:
        """The largest weight of every row, which bounds the sum of squared weights."""
        return np.where(np.isfinite(self.log_sums), np.exp(self.max_scores - self.log_sums), 0.0)

    @cached_property
    def score_error(self) -> Numbers:
        """The largest known score error per row."""
        largest: Numbers = np.where(self.allowed, self.scores.error, 0.0).max(-1, keepdims=True, initial=0.0)
        return largest

    @cached_property
    def common_error(self) -> Numbers:
        """The relative error that all weights of a row share, and similar rows with it."""
        # Equal exponentials added one by one round alike; a rounded log Σ exp moves all weights.
        u, logarithm = self.precision.accumulation, np.where(np.isfinite(self.log_sums), self.log_sums, 0.0)
        error: Numbers = np.sqrt(u**2 * ((EQUAL * self.repeats) ** 2 + (0.6 * logarithm) ** 2) + self.running_sums)
        return error

    @cached_property
    def sum_error(self) -> Numbers:
        """The relative error of a row's sum of exponentials.

        It covers kernels that recompute a weight as exp(score − log sum), with scores summed in another order.
        """
        u = self.precision.accumulation
        largest_shift = WIDTH * np.sqrt(self.score_error**2 + u**2)
        of_weights = (self.largest_weight * np.expm1(largest_shift) / WIDTH) ** 2
        largest = np.maximum(np.abs(self.scores.value).max(-1, keepdims=True), np.abs(self.max_scores))
        largest = np.where(np.isfinite(largest), largest, 0.0)
        # Roundings of an exponential, of the sum, and of scores that are summed in another order.
        summing = u**2 * (1 + self.keys / 4 + (1 + 0.5 * self.features) * largest**2)
        error: Numbers = np.sqrt(of_weights * np.exp(2 * largest_shift) + summing + self.common_error**2)
        return error

    @cached_property
    def relative_error(self) -> Numbers:
        """Relative error of every weight; ``UNKNOWN`` if score errors are too large for first order."""
        u, drop = self.precision.accumulation, np.where(self.allowed, self.scores.value - self.max_scores, 0.0)
        largest_shift = WIDTH * np.minimum(np.sqrt(self.scores.error**2 + u**2 * (1 + drop**2)), 1.0)
        of_score = np.expm1(largest_shift) / WIDTH * (1 - self.alpha)
        # As in ``statistical_weights``, first order fails for a score whose 8σ exceeds ½.
        beyond_first_order = (WIDTH * self.score_error > 0.5) & (self.alpha < 1)
        return np.where(beyond_first_order & self.allowed, UNKNOWN, np.hypot(of_score, self.sum_error))

    @cached_property
    def weights(self) -> Statistical:
        """The weights with their errors."""
        largest = np.maximum(self.alpha, 1 - self.alpha)
        error = np.minimum(self.alpha * self.relative_error, largest) + self.precision.weights_smallest
        error = np.where(self.relative_error < UNKNOWN, error, UNKNOWN)
        return type(self.scores)(self.alpha, np.where(self.allowed, error, 0.0), self.precision)

    def without_error(self, x: Numbers) -> Statistical:
        """Return exact numbers in the arithmetic of the scores."""
        return type(self.scores)(x.astype(np.float64), 0.0, self.precision, is_input=True)

    def common_variance(self, factors: Numbers, rows: Numbers) -> Numbers:
        """Return the variance of Σᵢ factorᵢ rowᵢ, (c, d), from weight errors that rows share.

        Rows with equal weights or equal scores have equal errors, which add linearly. Errors of the rows' sums of
        exponentials add linearly too, since the scores of all rows may be similar.
        """
        variance = ((self.common_error * factors).T @ rows) ** 2
        weight_errors = np.hypot(self.relative_error, 0.6 * self.precision.operand) * factors
        score_errors = self.scores.error * factors
        for j, (weights, scores) in enumerate(self.equal_groups):
            variance[j] += weights.variance(weight_errors[:, j], rows) + scores.variance(score_errors[:, j], rows)
        return variance

    @cached_property
    def equal_groups(self) -> list[tuple[EqualGroups, EqualGroups]]:
        """Per key, the groups of rows with equal weights and those with equal scores."""
        marks = (np.where(self.allowed, x, np.nan).T for x in (np.log(self.alpha), self.scores.value))
        return [(equal_groups(w, self.precision), equal_groups(s, self.precision)) for w, s in zip(*marks, strict=True)]


def columns(
    scores: Scores,
    query: Numbers,
    key: Numbers,
    chosen: Numbers,
    attendance: Attendance,
    precision: Precision,
    kind: type[Statistical] = Statistical,
) -> Columns:
    """Return the weight columns of the chosen keys; ``kind`` carries their errors."""
    # Single-precision products err by less than a 16-bit class can resolve.
    wide = np.float32 if precision.dtype in ("bfloat16", "float16") else np.float64
    q, k = query.astype(wide), key.astype(wide)
    log_sums, max_scores = normalizers(scores, q, k, attendance)
    inputs = [kind(x.astype(np.float64), 0.0, precision, is_input=True) for x in (query, key[chosen])]
    sampled = np.unique(np.linspace(0, len(query) - 1, SAMPLED_ROWS).astype(np.intp))
    allowed = attendance.of_rows(sampled)
    grid = np.sort(np.where(allowed, np.round(scores(q[sampled], k) * SCORE_GRID), np.nan), axis=-1)
    return Columns(
        scores=scores(*inputs),
        allowed=attendance.of_keys(chosen),
        log_sums=log_sums[:, None],
        max_scores=max_scores[:, None],
        repeats=float(longest_runs(grid).max()),
        running_sums=0.0
        if kind is Statistical
        else _running_sums(kind, scores, (q, k), log_sums, attendance, precision),
        keys=len(key),
        features=query.shape[-1],
    )


def _running_sums(
    kind: type[Statistical],
    scores: Scores,
    operands: tuple[Numbers, Numbers],
    log_sums: Numbers,
    attendance: Attendance,
    precision: Precision,
) -> Numbers:
    """Relative variance that a running maximum adds to every row's sum of exponentials, (n, 1)."""
    query, key = operands
    variance = np.zeros((len(query), 1))
    for rows in blocks(len(query), BLOCK_ROWS):
        weights = np.exp(scores(query[rows], key) - log_sums[rows, None])
        allowed = attendance.block(rows, slice(0, len(key)))
        weights = weights if allowed is None else np.where(allowed, weights, 0.0)
        variance[rows] = kind(weights, 0.0, precision).variance_of_running_sums
    return variance
