"""Gradients of some keys, values and queries, with budgets, for dot-product scores.

For a key j they are dvⱼ = Σᵢ αᵢⱼ gᵢ and dkⱼ = Σᵢ αᵢⱼ (gᵢ·vⱼ − Dᵢ) qᵢ/√d, with the cotangent g and Dᵢ = gᵢ·oᵢ of the
caller's output. For a query i, dqᵢ = Σⱼ αᵢⱼ (gᵢ·vⱼ − Dᵢ) kⱼ/√d with Dᵢ = Σⱼ αᵢⱼ gᵢ·vⱼ.

Errors follow :mod:`attnspec.reference.budget.derivative`, with two tighter bounds: for Dᵢ, which adds linearly there in
sums over a row's keys, and for all errors if scores of a row are equal. Here, errors add linearly only among rows with
equal weights (for keys) or keys with equal scores (for queries). The error of Dᵢ moves the gradient of a query along Σⱼ
αᵢⱼ kⱼ.
"""

from dataclasses import dataclass

import numpy as np

from attnspec.conformance.harness.columns import Columns, columns
from attnspec.conformance.harness.normalizers import Attendance, Scores
from attnspec.conformance.harness.summing import equals, of_key_tiles, of_query_tiles
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import WIDTH
from attnspec.reference.budget.numbers import attendable_softmax
from attnspec.reference.budget.softmax import statistical_weights
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

Gradient = tuple[Numbers, Numbers]
"""Numbers and their budgets."""


@dataclass(frozen=True)
class Element:
    """One element of the batch: its arrays, cotangent, output, and attending pairs."""

    query: Numbers
    key: Numbers
    value: Numbers
    cotangent: Numbers
    output: Numbers
    attendance: Attendance

    def behind(self, row: int) -> "Element":
        """Return the element without the rows before ``row``."""
        attendance = self.attendance.behind(row)
        return Element(self.query[row:], self.key, self.value, self.cotangent[row:], self.output[row:], attendance)


def gradients_at(keys: Numbers, of: Element, scores: Scores, precision: Precision) -> tuple[Gradient, Gradient]:
    """Return the gradients of these keys and of their values."""
    with np.errstate(all="ignore"):
        chosen = columns(scores, of.query, of.key, keys, of.attendance, precision)
        return _of_keys(keys, of, scores, chosen), _of_values(of, chosen)


def _of_values(of: Element, chosen: Columns) -> Gradient:
    g = _exact(of.cotangent, chosen.precision)
    found = chosen.weights.swapaxes(-1, -2) @ g
    together = chosen.together(chosen.alpha, g.value)
    return _budgeted(found, together + of_query_tiles(chosen.alpha, g.value, chosen.precision))


def _of_keys(keys: Numbers, of: Element, scores: Scores, chosen: Columns) -> Gradient:
    p = chosen.precision
    query, value, g = (_exact(x, p) for x in (of.query, of.value[keys], of.cotangent))
    output = np.where(np.isneginf(chosen.logarithms), 0.0, of.output.astype(np.float64))
    inner = (g.value * output).sum(-1, keepdims=True)
    stored = (g.value**2 * ((0.6 * p.output * output) ** 2 + p.output_smallest**2)).sum(-1, keepdims=True)
    of_weights = g @ value.swapaxes(-1, -2)
    of_weights = Statistical(of_weights.value, np.sqrt(of_weights.error**2 + stored), p)
    difference = of_weights - Statistical(inner, np.zeros(inner.shape), p)
    error = np.hypot(difference.error, _of_inner(of, chosen, inner, of_weights.error))
    of_scores = chosen.weights * Statistical(difference.value, error, p)
    unit = np.eye(1, query.shape[-1])
    scale = float(scores(unit, unit)[0, 0])
    found = (query.swapaxes(-1, -2) @ (of_scores / np.float64(1 / scale))).swapaxes(-1, -2)
    together = chosen.together(of_scores.value, scale * query.value)
    together = together + of_query_tiles(of_scores.value, scale * query.value, p)
    if p.operand:
        # Where weights are rounded alike, so is Σ α·dα.
        together = together + chosen.together(chosen.alpha * inner, scale * query.value)
    return _budgeted(found, together)


def _of_inner(of: Element, chosen: Columns, inner: Numbers, errors: Numbers) -> Numbers:
    """Return the error of Σⱼ αⱼ dαⱼ per row: from each key separately, and in common.

    The mean square of dα over a row's keys is taken over all keys, or of the sum if few keys have weight.
    """
    p = chosen.precision
    value, cotangent = of.value.astype(np.float64), of.cotangent.astype(np.float64)
    squares = ((cotangent @ (value.T @ value / max(len(value), 1))) * cotangent).sum(-1, keepdims=True)
    squares = np.maximum(squares, inner**2)
    own = chosen.of_scores**2 + p.accumulation**2 + 2 * (0.6 * p.operand) ** 2
    own = chosen.heaviest * (own * squares + (errors**2).mean(-1, keepdims=True))
    summing = (0.5 * p.accumulation) ** 2 * len(value) * (inner**2 + chosen.heaviest * squares)
    found: Numbers = np.sqrt(own + summing + (chosen.of_sum * inner) ** 2)
    return found


def _exact(x: Numbers, precision: Precision) -> Statistical:
    return Statistical(x.astype(np.float64), 0.0, precision, given=True)


def _budgeted(found: Statistical, together: Numbers) -> Gradient:
    p = found.precision
    sigma = np.sqrt(found.error**2 + together + (0.6 * p.output * found.value) ** 2) + p.output_smallest
    return found.value, WIDTH * sigma


def query_gradients(
    query: Numbers,
    key: Numbers,
    value: Numbers,
    cotangent: Numbers,
    allowed: Numbers | None,
    scores: Scores,
    precision: Precision,
) -> tuple[Numbers, Numbers]:
    """Return gradients and budgets of one batch element's queries; ``allowed`` are the attending pairs."""
    p, u = precision, precision.accumulation
    with np.errstate(all="ignore"):
        q, k, v, g = (Statistical(x.astype(np.float64), 0.0, p, given=True) for x in (query, key, value, cotangent))
        scored = scores(q, k)
        softmax = attendable_softmax(scored.value, allowed)
        alpha, sigma, repeats, level = statistical_weights(softmax, scored.error, p)
        # Kernels recompute the weights as exp(e − L), with scores summed in another order than in L.
        largest = np.where(softmax.attendable, np.abs(scored.value), 0.0).max(-1, keepdims=True, initial=0.0)
        sigma = np.hypot(sigma, alpha * np.sqrt(1 + 0.5 * query.shape[-1]) * u * largest)
        weights = Statistical(alpha, sigma, p)

        of_weights = g @ v.swapaxes(-1, -2)
        terms = alpha * of_weights.value
        inner = terms.sum(-1, keepdims=True)
        of_scores = weights * (of_weights - Statistical(inner, np.zeros(inner.shape), p))
        scale = float(scores(np.eye(1, query.shape[-1]), np.eye(1, query.shape[-1]))[0, 0])
        found = (of_scores / np.float64(1 / scale)) @ k

        output = alpha @ v.value
        stored = ((0.6 * p.output * g.value * output) ** 2 + (p.output_smallest * g.value) ** 2).sum(-1, keepdims=True)
        own = (sigma * of_weights.value) ** 2 + (alpha * of_weights.error) ** 2 + 2 * (0.6 * p.operand * terms) ** 2
        summing = (0.5 * u) ** 2 * alpha.shape[-1] * (inner**2 + (terms**2).sum(-1, keepdims=True))
        shared = np.hypot(level, 0.5 * u * repeats)
        alike = (np.hypot(shared, 0.6 * p.operand) * inner) ** 2
        of_inner = own.sum(-1, keepdims=True) + stored + summing + alike

        variance = found.error**2 + of_inner * (scale * (alpha @ k.value)) ** 2 + (shared * found.value) ** 2
        variance = variance + of_key_tiles(scale * of_scores.value.T, k.value, p)
        relative = np.hypot(np.where(alpha > 0, sigma / alpha, 0.0), 0.6 * p.operand)
        marks = np.where(softmax.attendable, np.log(alpha), np.nan)
        for i, row in enumerate(relative * of_scores.value * scale):
            variance[i] += equals(marks[i], p).variance(row, k.value)
        budget = WIDTH * (np.sqrt(variance + (0.6 * p.output * found.value) ** 2) + p.output_smallest)
        return found.value, budget
