"""The gradients of some keys and of their values, with budgets: sums over all rows, of pairs with these keys alone.

For a key j they are dvⱼ = Σᵢ αᵢⱼ gᵢ and dkⱼ = Σᵢ αᵢⱼ (gᵢ·vⱼ − Dᵢ) qᵢ/√d, with the cotangent g and Dᵢ = gᵢ·oᵢ of the
output that was handed over. Errors are those of :mod:`attnspec.reference.budget.derivative`, but for two that it makes
larger than these sums need: that of Dᵢ, which in a sum over the keys of a row adds linearly, and all of them where
scores of a row are equal. Here those add linearly that rows with equal weights have in common.
"""

from dataclasses import dataclass

import numpy as np

from attnspec.conformance.harness.columns import Columns, columns
from attnspec.conformance.harness.normalizers import Attendance, Scores
from attnspec.conformance.harness.tiles import of_query_tiles
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.reference.budget.error_array import WIDTH
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

Gradient = tuple[Numbers, Numbers]
"""Numbers and their budgets."""


@dataclass(frozen=True)
class Element:
    """One element of the batch: its arrays, the cotangent, the output, and which pairs attend."""

    query: Numbers
    key: Numbers
    value: Numbers
    cotangent: Numbers
    output: Numbers
    attendance: Attendance

    def behind(self, row: int) -> "Element":
        """The element without the rows before this one."""
        attendance = self.attendance.behind(row)
        return Element(self.query[row:], self.key, self.value, self.cotangent[row:], self.output[row:], attendance)


def gradients_at(keys: Numbers, of: Element, scores: Scores, precision: Precision) -> tuple[Gradient, Gradient]:
    """The gradients of these keys and of their values."""
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
    """The error of Σⱼ αⱼ dαⱼ of every row, in which each key has an error of its own, and all have one in common.

    The mean square of dα over the keys of a row is taken as that over all keys, or of the sum, where few weigh.
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
