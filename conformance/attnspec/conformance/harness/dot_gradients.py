"""Right gradients of some keys, values and queries, with their budgets, for dot-product scores.

With the cotangent g and weights α, a key j has the gradients dvⱼ = Σᵢ αᵢⱼ gᵢ and dkⱼ = Σᵢ αᵢⱼ (gᵢ·vⱼ − Dᵢ) qᵢ/√d, where
Dᵢ = gᵢ·oᵢ uses the caller's output o. A query i has dqᵢ = Σⱼ αᵢⱼ (gᵢ·vⱼ − Dᵢ) kⱼ/√d, where Dᵢ = Σⱼ αᵢⱼ gᵢ·vⱼ.

Budgets follow :mod:`attnspec.reference.budget.derivative`, but are tighter in two points. There, errors of Dᵢ add
linearly in sums over a row's keys; here, they move a query's gradient along Σⱼ αᵢⱼ kⱼ. There, all errors add linearly
if scores of a row are equal; here, only those of rows with equal weights (for keys) or keys with equal scores (for
queries).

With unit roundoff u, the standard deviation is 0.6 u for one rounding (u/√3 if uniform), and 0.5 u √n for a sum of n.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attnspec.conformance.harness.normalizers import Attendance, Scores
from attnspec.conformance.harness.sum_variances import equal_groups, variance_of_key_tiles, variance_of_query_tiles
from attnspec.conformance.harness.weight_columns import Columns, columns
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import WIDTH
from attnspec.reference.budget.numbers import attendable_softmax
from attnspec.reference.budget.ordered import Ordered
from attnspec.reference.budget.softmax import EQUAL, statistical_weights
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

Gradient = tuple[Numbers, Numbers]
"""Numbers and their budgets."""


@dataclass(frozen=True)
class Element:
    """One batch element: its arrays, cotangent, output, and attending pairs."""

    query: Numbers
    key: Numbers
    value: Numbers
    cotangent: Numbers
    output: Numbers
    attendance: Attendance

    def from_row(self, row: int) -> "Element":
        """Return the element without the rows before ``row``."""
        attendance = self.attendance.from_row(row)
        return Element(self.query[row:], self.key, self.value, self.cotangent[row:], self.output[row:], attendance)


def gradients_at(
    keys: Numbers, element: Element, scores: Scores, precision: Precision, *, ordered: bool = False
) -> tuple[Gradient, Gradient]:
    """Return the gradients of these keys and of their values; ``ordered`` ones have budgets from partial sums."""
    kind = Ordered if ordered else Statistical
    with np.errstate(all="ignore"):
        chosen = columns(scores, element.query, element.key, keys, element.attendance, precision, kind)
        return _key_gradients(keys, element, scores, chosen), _value_gradients(element, chosen)


def _value_gradients(element: Element, chosen: Columns) -> Gradient:
    g = chosen.without_error(element.cotangent)
    gradient = chosen.weights.swapaxes(-1, -2) @ g
    common = chosen.common_variance(chosen.alpha, g.value)
    return _budgeted(gradient, common + variance_of_query_tiles(chosen.alpha, g.value, chosen.precision))


def _key_gradients(keys: Numbers, element: Element, scores: Scores, chosen: Columns) -> Gradient:
    p, kind = chosen.precision, type(chosen.scores)
    query, value, g = (chosen.without_error(x) for x in (element.query, element.value[keys], element.cotangent))
    # Rows without keys contribute nothing, whatever their output is by the declared choice.
    output = np.where(np.isneginf(chosen.log_sums), 0.0, element.output.astype(np.float64))
    weighted_sum = (g.value * output).sum(-1, keepdims=True)
    output_rounding = (g.value**2 * ((0.6 * p.output * output) ** 2 + p.output_smallest**2)).sum(-1, keepdims=True)
    weight_gradients = g @ value.swapaxes(-1, -2)
    weight_gradients = kind(weight_gradients.value, np.sqrt(weight_gradients.error**2 + output_rounding), p)
    difference = weight_gradients - kind(weighted_sum, np.zeros(weighted_sum.shape), p)
    error = np.hypot(difference.error, _error_of_weighted_sum(element, chosen, weighted_sum, weight_gradients.error))
    score_gradients = chosen.weights * kind(difference.value, error, p)
    unit = np.eye(1, query.shape[-1])
    scale = float(scores(unit, unit)[0, 0])  # 1, or 1/√d, by whose inverse the formula divides
    gradient = (query.swapaxes(-1, -2) @ (score_gradients / np.float64(1 / scale))).swapaxes(-1, -2)
    common = chosen.common_variance(score_gradients.value, scale * query.value)
    common = common + variance_of_query_tiles(score_gradients.value, scale * query.value, p)
    if p.operand:
        # Rows with equally rounded weights also have equally rounded sums Σ α·dα.
        common = common + chosen.common_variance(chosen.alpha * weighted_sum, scale * query.value)
    return _budgeted(gradient, common)


def _error_of_weighted_sum(element: Element, chosen: Columns, weighted_sum: Numbers, errors: Numbers) -> Numbers:
    """Return each row's error of Σⱼ αⱼ dαⱼ, from separate and common errors of keys.

    The weighted mean square of dα is estimated by the larger of two numbers: its mean square over all keys, and the
    square of the sum, which is larger if few keys have weight.
    """
    p = chosen.precision
    value, cotangent = element.value.astype(np.float64), element.cotangent.astype(np.float64)
    squares = ((cotangent @ (value.T @ value / max(len(value), 1))) * cotangent).sum(-1, keepdims=True)
    squares = np.maximum(squares, weighted_sum**2)
    separate = chosen.score_error**2 + p.accumulation**2 + 2 * (0.6 * p.operand) ** 2
    separate = chosen.largest_weight * (separate * squares + (errors**2).mean(-1, keepdims=True))
    summing = (0.5 * p.accumulation) ** 2 * len(value) * (weighted_sum**2 + chosen.largest_weight * squares)
    if isinstance(chosen.scores, Ordered):
        # Equal terms round in one direction, at partial sums of up to Σ α |dα|.
        summing = summing + (EQUAL * p.accumulation * chosen.repeats) ** 2 * squares
    error: Numbers = np.sqrt(separate + summing + (chosen.sum_error * weighted_sum) ** 2)
    return error


def _budgeted(gradient: Statistical, common_variance: Numbers) -> Gradient:
    p = gradient.precision
    sigma = np.sqrt(gradient.error**2 + common_variance + (0.6 * p.output * gradient.value) ** 2) + p.output_smallest
    return gradient.value, WIDTH * sigma


def query_gradients(
    operands: Iterable[Numbers],
    allowed: Numbers | None,
    scores: Scores,
    precision: Precision,
    *,
    ordered: bool = False,
) -> Gradient:
    """Return the gradient of a batch element's queries.

    ``operands`` are query, key, value and cotangent; ``allowed`` marks the attending pairs. ``ordered`` ones have
    budgets from partial sums.
    """
    p, u, kind = precision, precision.accumulation, Ordered if ordered else Statistical
    with np.errstate(all="ignore"):
        q, k, v, g = (kind(x.astype(np.float64), 0.0, p, is_input=True) for x in operands)
        d = q.value.shape[-1]
        scored = scores(q, k)
        softmax = attendable_softmax(scored.value, allowed)
        # ``common``: variance of the relative error that all weights of a row share.
        alpha, sigma, _, common = statistical_weights(softmax, scored.error, p)
        # Kernels recompute weights as exp(score − log sum); the scores in the log sum were added in another order.
        largest = np.where(softmax.attendable, np.abs(scored.value), 0.0).max(-1, keepdims=True, initial=0.0)
        sigma = np.hypot(sigma, alpha * np.sqrt(1 + 0.5 * d) * u * largest)
        weights = kind(alpha, sigma, p)

        weight_gradients = g @ v.swapaxes(-1, -2)
        terms = alpha * weight_gradients.value
        weighted_sum = terms.sum(-1, keepdims=True)
        score_gradients = weights * (weight_gradients - kind(weighted_sum, np.zeros(weighted_sum.shape), p))
        scale = float(scores(np.eye(1, d), np.eye(1, d))[0, 0])
        gradient = (score_gradients / np.float64(1 / scale)) @ k

        # Kernels sum Σ α·dα over the keys, or dO·O over the features.
        common = common + weights.variance_of_running_sums
        over_keys, output = (weights * weight_gradients).sum(-1, keepdims=True), weights @ v
        over_features = (g.value**2 * output.error**2).sum(-1, keepdims=True)
        stored = (0.6 * p.output * g.value * output.value) ** 2 + (p.output_smallest * g.value) ** 2
        rounded = 2 * (0.6 * p.operand * terms) ** 2
        sum_variance = np.maximum(over_keys.error**2 + rounded.sum(-1, keepdims=True), over_features)
        sum_variance = sum_variance + stored.sum(-1, keepdims=True)
        sum_variance = sum_variance + (common + (0.6 * p.operand) ** 2) * weighted_sum**2

        variance = gradient.error**2 + sum_variance * (scale * (alpha @ k.value)) ** 2 + common * gradient.value**2
        variance = variance + variance_of_key_tiles(scale * score_gradients.value.T, k.value, p)
        relative = np.hypot(np.where(alpha > 0, sigma / alpha, 0.0), 0.6 * p.operand)
        log_weights = np.where(softmax.attendable, np.log(alpha), np.nan)
        for i, row in enumerate(relative * score_gradients.value * scale):
            variance[i] += equal_groups(log_weights[i], p).variance(row, k.value)
        budget = WIDTH * (np.sqrt(variance + (0.6 * p.output * gradient.value) ** 2) + p.output_smallest)
        return gradient.value, budget
