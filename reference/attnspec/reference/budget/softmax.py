"""Standard deviations and rigorous bounds of softmax weights, from the errors of the scores.

Softmax is treated as one step, since its shift by the maximum of the row cancels exactly. ``docs/budget.md`` derives
the formulas. :func:`~attnspec.reference.budget.judged` uses the smaller of the two budgets. The factors 0.6 u and 0.5 u
of standard deviations are those of :mod:`~attnspec.reference.budget.statistical`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.reference.budget.error_array import UNKNOWN, WIDTH
from attnspec.reference.budget.numbers import (
    LEAST_SINGLE,
    SINGLE,
    Numbers,
    Softmax,
    as_double,
    growth,
    longest_runs,
)
from attnspec.reference.normalization import log_softmax
from attnspec.spec.contract.precision import Precision

SCORE_GRID = 32
"""Scores count as equal on a grid of 1/32: their exponentials are then so close that a running sum rounds them in the
same direction."""

EQUAL = (4 / 3) ** 0.5 / WIDTH
"""Standard deviation of a sum's error per equal term, in unit roundoffs of the sum.

A running sum rounds k equal terms in the same direction, by at most one unit of the sum each. So its error is at most
h = k units, but likely to be near that: eight standard deviations of h/8 would leave no room for other errors. With
4/3 h² in the sum of squares, the budget is at least h plus 4 standard deviations σ of the others, because
(h + 4σ)² ≤ 4/3 h² + (8σ)².
"""

MANY_WEIGHTS = 2**16
"""Number of weights from which their errors are computed in single precision, to save time."""

LARGEST_EXPONENT = 700.0
"""Limit of exponents, a little below the overflow of exp in double precision."""

LARGEST_INCREASE = 2.0**50
"""Increase of a weight beyond which only the distance of values bounds errors."""


@dataclass(frozen=True)
class WeightErrors:
    """Bounds of the errors of softmax weights, from which pooled values get their bound.

    ``increase`` is α expm1(δ), the largest increase of a weight before it is divided by the sum. ``least_sum`` is a
    lower bound of that sum, relative to the exact one. ``common`` bounds the relative error that all weights of a row
    share if they are computed as exp(e − log Σ exp e) with a rounded logarithm. ``unbounded`` marks rows in which a
    weight may increase so much that only the values bound the error.
    """

    increase: Numbers
    least_sum: Numbers
    attendable: Numbers
    common: Numbers
    unbounded: Numbers


def statistical_weights(
    softmax: Softmax, errors: Numbers, precision: Precision, *, common: bool = True
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return weights, their standard deviations, repeats and common variance, from the scores' standard deviations.

    The first two have shape (..., n, m), the others (..., n, 1). Repeats are the largest number of equal scores in a
    row. The common variance is that of the relative error that all weights of a row share. If ``common`` is False,
    such shared errors are left out of all results.
    """
    p, u = precision, precision.accumulation
    weights, shifted, attendable, _, logarithm, masked = softmax
    dtype = _dtype_of_errors(weights, p)
    alpha, shifted, errors = (x.astype(dtype, copy=False) for x in (weights, shifted, errors))
    error = np.where(attendable, errors, dtype.type(0)) if masked else errors
    # Arrays of all pairs are overwritten where possible, since reading and writing memory takes most of the time.
    reach = u**2 * (1 + shifted**2)
    reach += error**2
    np.sqrt(reach, out=reach)
    np.minimum(reach, 1.0, out=reach)
    reach *= WIDTH
    if masked:
        reach *= attendable
    least_sum = _least_sum(alpha, reach)
    relative = np.expm1(reach, out=reach)
    relative /= WIDTH
    weighted = alpha * relative
    weighted *= weighted
    squares = weighted.sum(-1, keepdims=True)
    complement = 1 - alpha
    # Σ of the others' (α relative)², relative to the weight, whose square may underflow. The difference cancels where
    # one key has nearly all the weight; there the others are at most (1 − α)² times the largest square.
    others = np.subtract(squares * (1 + 4 * np.finfo(dtype).eps), weighted, out=weighted)
    np.minimum(others, (complement * relative.max(-1, keepdims=True, initial=0.0)) ** 2, out=others)
    np.maximum(others, 0.0, out=others)
    variance = np.multiply(relative, complement, out=complement)
    variance *= variance
    variance += others
    variance /= least_sum**2
    repeats, shared = np.ones(logarithm.shape), np.zeros(logarithm.shape)
    if common:
        repeats = _largest_multiplicity(shifted, attendable)
        shared = variance_of_sum(repeats, _keys(softmax), u) + error_of_logarithm(softmax, p) ** 2
    variance += (u**2 + shared).astype(dtype)
    sigma = np.sqrt(variance, out=variance)
    sigma *= alpha
    np.minimum(sigma, np.maximum(alpha, 1 - alpha), out=sigma)
    sigma += p.weights_smallest
    # First order fails in rows with a score whose 8σ exceeds ½: there only a bound can judge.
    unsure = (error > 0.5 / WIDTH).any(-1, keepdims=True)
    if unsure.any():
        sigma = np.where(unsure & (alpha < 1), UNKNOWN, sigma)
    return weights, np.where(attendable, sigma, 0.0) if masked else sigma, repeats, shared


def rigorous_weights(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers, WeightErrors]:
    """Return weights, error bounds (both (..., n, m)) and `WeightErrors` from the scores' bounds.

    The bound δ of a score's error is widened by the shift and the exponential: Definition ``delta`` of
    ``proofs/Bound.v``.
    """
    p, u = precision, precision.accumulation
    weights, shifted, attendable, _, logarithm, masked = softmax
    dtype = _dtype_of_errors(weights, p)
    delta = _exponent_errors(softmax, errors, u, dtype)
    large = not delta.max(initial=0.0) <= 1  # True for NaN, too
    if large:
        # The relative error of exp δ is the absolute error of δ.
        dtype = np.dtype(np.float64)
        delta = _exponent_errors(softmax, errors, u, dtype)
    alpha, epsilon = weights.astype(dtype, copy=False), np.finfo(dtype).eps
    exponents = shifted + delta if large else None
    np.minimum(delta, LARGEST_EXPONENT, out=delta)
    least_sum = _least_sum(alpha, delta) * (1 - 16 * epsilon)
    relative = np.expm1(delta)
    highest = relative.max(-1, keepdims=True, initial=0.0)
    increase = np.multiply(alpha, relative, out=relative)
    unbounded = np.zeros(least_sum.shape, bool)
    if exponents is not None:
        # Where α underflows and δ is large, α exp δ may not: a kernel may give the key all the weight.
        exponents += np.log(np.maximum(as_double(weights).max(-1, keepdims=True, initial=0.0), LEAST_SINGLE))
        grown = np.exp(np.minimum(exponents, LARGEST_EXPONENT)) - weights
        grown = np.where((delta > 1) & attendable, grown, increase)
        unbounded = grown.max(-1, keepdims=True, initial=0.0) > LARGEST_INCREASE
        increase = np.minimum(grown, LARGEST_INCREASE).astype(dtype)
    # 1 − α cancels where one key has nearly all the weight.
    complement = (1 + epsilon) - alpha
    # Σ of the others' increases, at most (1 − α) times the largest: see `statistical_weights`.
    others = increase.sum(-1, keepdims=True) * (1 + 4 * epsilon) - increase
    np.minimum(others, complement * highest, out=others)
    np.maximum(others, 0.0, out=others)
    others *= alpha
    error = increase * complement
    error += others
    error /= least_sum
    error = np.where(unbounded, 1.0, error).astype(dtype) if large else error
    np.minimum(error, np.maximum(alpha, complement), out=error)
    common = 2 * u * logarithm
    error += (growth(u, attendable.shape[-1] + 2) + common).astype(dtype) * alpha
    error *= 1 + 8 * epsilon
    error += p.weights_smallest
    error = np.where(attendable, error, 0.0) if masked else error
    return weights, error, WeightErrors(increase, least_sum, attendable, common, unbounded)


def _exponent_errors(softmax: Softmax, errors: Numbers, u: float, dtype: np.dtype[Any]) -> Numbers:
    """Bounds δ of the errors of exponents, from those of the scores."""
    errors = errors.astype(dtype, copy=False)
    if softmax.masked:
        errors = np.where(softmax.attendable, errors, dtype.type(0))
    delta: Numbers = np.abs(softmax.shifted, dtype=dtype, casting="same_kind")
    delta *= 3 * u
    # Scores of −∞ have weight 0 however they err. Those of infinite queries or keys, with errors NaN, are left open.
    weightless = np.isinf(delta) & ~np.isnan(errors)
    if weightless.any():
        delta[weightless] = 0
        errors = np.where(weightless, dtype.type(0), errors)
    delta += errors
    delta += 6 * u * (1 + errors.max(-1, keepdims=True, initial=0.0))
    return delta


def _dtype_of_errors(weights: Numbers, precision: Precision) -> np.dtype[Any]:
    """Return single precision for the errors of many weights, else double.

    Relative errors of weights are at least that of the accumulation, so single precision also holds their squares.
    """
    large = weights.size >= MANY_WEIGHTS and precision.accumulation >= SINGLE
    return np.dtype(np.float32 if large else np.float64)


def equal_sum(terms: Numbers) -> Numbers:
    """Largest error of a running sum of equal terms, in unit roundoffs of the sum.

    The k-th partial sum kv is rounded by at most u 2^⌊log₂ kv⌋. These add up most where nv is 4/3 of a power of two: to
    3/8 (n + 1) u nv for many terms, and to 7 % more for a few, for which ``EQUAL`` leaves room.
    """
    bound: Numbers = 3 / 8 * (terms + 1)
    return bound


def variance_of_sum(repeats: Numbers, keys: Numbers | int, u: float) -> Numbers:
    """Variance of a row's sum of exponentials, relative to the sum; ``repeats`` of the ``keys`` terms are equal."""
    aligned = np.where(repeats == keys, equal_sum(repeats), repeats)
    variance: Numbers = u**2 * (keys / 4 + (EQUAL * aligned) ** 2)
    return variance


def error_of_logarithm(softmax: Softmax, precision: Precision) -> Numbers:
    """Standard deviation of the error shared by a row's weights exp(e − L).

    It is relative to the weight; L is the rounded logarithm of the sum.
    """
    error: Numbers = 0.6 * precision.accumulation * softmax.logarithm
    return error


def _keys(softmax: Softmax) -> Numbers | int:
    """Number of attendable keys per row."""
    keys: Numbers | int = softmax.attendable.shape[-1]
    if softmax.masked:
        keys = softmax.attendable.sum(-1, keepdims=True)
    return keys


def statistical_sums(softmax: Softmax, errors: Numbers, precision: Precision) -> Numbers:
    """Variances of log Σ exp per row, shape (..., n), from the scores' standard deviations.

    The derivative of the logarithm by a score is its weight. Errors that the scores of a row share add linearly.
    """
    u = precision.accumulation
    alpha, shifted, attendable = as_double(softmax.weights), as_double(softmax.shifted), softmax.attendable
    score_errors = np.where(attendable, np.sqrt(errors**2 + u**2 * (1 + shifted**2)), 0.0)
    repeats = _largest_multiplicity(shifted, attendable)
    summing = u**2 + variance_of_sum(repeats, _keys(softmax), u)
    variance: Numbers = (alpha * score_errors).sum(-1, keepdims=True) ** 2 + summing
    return variance[..., 0]


def rigorous_sums(softmax: Softmax, scores: Numbers, errors: Numbers, precision: Precision) -> Numbers:
    """Error bounds of log Σ exp per row, shape (..., n), from the scores' bounds."""
    u = precision.accumulation
    shifted, attendable = softmax.shifted, softmax.attendable
    score_errors = np.where(attendable, errors + 3 * u * np.abs(shifted) + 6 * u, 0.0)
    error = _error_of_log_sum(softmax.weights, shifted, score_errors)[..., 0] + (shifted.shape[-1] + 2) * u
    bound: Numbers = error + 2 * u * np.where(attendable, np.abs(scores), 0).max(-1, initial=0.0)
    return bound


def statistical_logarithms(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers]:
    """Logarithms of softmax weights and their variances, both (..., m), from the scores' standard deviations.

    The error of a score enters its own logarithm directly, and the logarithm of the sum times its weight. Scores share
    the errors of the vector from which all of them were computed; in the sum, these add linearly.
    """
    u = precision.accumulation
    value, alpha, shifted, _ = _logarithms(softmax)
    score_variance = errors**2 + u**2 * (1 + shifted**2)
    of_sum = (alpha * np.sqrt(score_variance)).sum(-1, keepdims=True)
    repeats = _largest_multiplicity(shifted, np.ones(shifted.shape, bool))
    summing = u**2 + variance_of_sum(repeats, shifted.shape[-1], u) + error_of_logarithm(softmax, precision) ** 2
    return value, score_variance + of_sum**2 + summing


def rigorous_logarithms(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers]:
    """Logarithms of softmax weights and error bounds, both (..., m), from the scores' bounds."""
    u = precision.accumulation
    value, alpha, shifted, logarithm = _logarithms(softmax)
    score_errors = errors + 3 * u * np.abs(shifted) + 6 * u
    of_sum = _error_of_log_sum(alpha, shifted, score_errors)
    return value, score_errors + of_sum + (shifted.shape[-1] + 2) * u + 2 * u * logarithm


def _error_of_log_sum(alpha: Numbers, shifted: Numbers, score_errors: Numbers) -> Numbers:
    """Bound of the error of log Σ exp that score errors cause, shape (..., 1).

    log1p keeps small errors accurate. Large errors would overflow exp: there the largest score plus its error bounds
    all others.
    """
    small = np.log1p((alpha * np.expm1(np.minimum(score_errors, LARGEST_EXPONENT))).sum(-1, keepdims=True))
    large = (shifted + score_errors).max(-1, keepdims=True, initial=0.0) + np.log(max(score_errors.shape[-1], 1))
    error: Numbers = np.where(score_errors.max(-1, keepdims=True, initial=0.0) > LARGEST_EXPONENT, large, small)
    return error


def _logarithms(softmax: Softmax) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return log weights, weights, scores minus their row's maximum, and |log Σ exp| per row."""
    alpha, shifted, _, _, logarithm, _ = softmax
    return log_softmax(shifted), as_double(alpha), as_double(shifted), logarithm


def _least_sum(alpha: Numbers, errors: Numbers) -> Numbers:
    """Lower bound of a row's sum of exponentials, relative to the exact sum; 1 without keys."""
    least: Numbers = (alpha * np.exp(-errors)).sum(-1, keepdims=True)
    return np.where(least > 0, least, 1.0)


def _largest_multiplicity(scores: Numbers, attendable: Numbers) -> Numbers:
    """Largest number of (nearly) equal attendable scores in a row, shape (..., n, 1)."""
    keys = scores.shape[-1]
    if keys < 2:
        return np.full((*scores.shape[:-1], 1), float(keys))
    # Single precision holds all steps below 2²⁴; weights of lower scores are 0.
    steps = (scores * SCORE_GRID).astype(np.float32)
    np.rint(steps, out=steps)
    if not attendable.all():
        steps[~attendable] = np.nan
    steps.sort(axis=-1)
    return longest_runs(steps)
