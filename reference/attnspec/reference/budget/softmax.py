"""The budget of softmax weights: how far rounding may move them, statistically and rigorously.

Softmax is one step, since its shift by the maximum of the row cancels exactly. Both start from the errors of the
scores; ``docs/precision.md`` derives them. :func:`~attnspec.reference.budget.judged` takes the smaller budget.
"""

from dataclasses import dataclass

import numpy as np

from attnspec.reference.budget.error_array import UNKNOWN, WIDTH
from attnspec.reference.budget.numbers import Numbers, Softmax, as_double, longest_runs
from attnspec.reference.normalization import log_softmax
from attnspec.spec.contract.precision import Precision

SCORE_GRID = 32
"""Scores are taken as equal on a grid of 1/32: their exponentials are then so close that, summed one by one, they are
rounded in the same direction."""

LARGEST_EXPONENT = 700.0
"""Exponents beyond this overflow in double precision."""


@dataclass(frozen=True)
class WeightErrors:
    """Bounds of the relative errors of softmax weights, from which the bound of pooled values is made.

    ``relative`` holds the relative errors of the exponentials and ``least_sum`` a lower bound of their sum, relative to
    the exact one. ``common`` bounds the relative error that all weights of a row share where they are taken as
    exp(e − log Σ exp e), with a logarithm that was rounded.
    """

    relative: Numbers
    least_sum: Numbers
    attendable: Numbers
    common: Numbers


def statistical_weights(
    softmax: Softmax, errors: Numbers, precision: Precision
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Weights and their standard deviations, from those of the scores, each of shape (..., n, m).

    Also, of shape (..., n, 1), how many scores of a row are equal, and the standard deviation, relative to each weight,
    of the error that all weights of a row have in common.
    """
    p, u = precision, precision.accumulation
    weights, shifted, attendable, _, logarithm, masked = softmax
    alpha, drop = as_double(weights), as_double(shifted)
    error = np.where(attendable, errors, 0.0) if masked else errors
    keys = attendable.shape[-1]
    d = np.minimum(np.sqrt(error**2 + u**2 * (1 + drop**2)), 1.0)
    reach = WIDTH * (np.where(attendable, d, 0.0) if masked else d)
    relative = np.expm1(reach) / WIDTH
    squares = (alpha * relative) ** 2
    least_sum = _least_sum(alpha, reach)
    others = squares.sum(-1, keepdims=True) - squares
    # Relative to the weight, whose square may underflow.
    variance = ((relative * (1 - alpha)) ** 2 + others) / least_sum**2
    repeats = _largest_multiplicity(drop, attendable)
    # Weights may be taken as exp(e − L), with L, the logarithm of the sum, rounded.
    level = 0.6 * u * logarithm
    variance = variance + u**2 * (1 + keys / 4 + 0.25 * repeats**2) + level**2
    sigma = np.minimum(alpha * np.sqrt(variance), np.maximum(alpha, 1 - alpha)) + p.weights_smallest
    # First order fails in rows with a score whose 8σ exceeds ½: there only a bound can judge.
    unsure = (WIDTH * error > 0.5).any(-1, keepdims=True)
    sigma = np.where(unsure & (alpha < 1), UNKNOWN, sigma)
    return weights, np.where(attendable, sigma, 0.0) if masked else sigma, repeats, level


def rigorous_weights(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers, WeightErrors]:
    """Weights and bounds of their errors, from those of the scores, of shape (..., n, m); and their relative errors."""
    p, u = precision, precision.accumulation
    alpha, shifted, attendable, _, logarithm, masked = softmax
    delta = errors + 3 * u * np.abs(shifted) + 6 * u
    delta = np.minimum(delta, LARGEST_EXPONENT)
    if masked:
        delta = np.where(attendable, delta, 0.0)
    relative = np.expm1(delta)
    least_sum = _least_sum(alpha, delta)
    growth = alpha * relative
    others = growth.sum(-1, keepdims=True) - growth
    error = ((1 - alpha) * growth + alpha * others) / least_sum
    error = np.minimum(error, np.maximum(alpha, 1 - alpha))
    common = 2 * u * logarithm
    error = error + ((attendable.shape[-1] + 2) * u + common) * alpha + p.weights_smallest
    error = np.where(attendable, error, 0.0) if masked else error
    return alpha, error, WeightErrors(relative, least_sum, attendable, common)


def statistical_sums(softmax: Softmax, errors: Numbers, precision: Precision) -> Numbers:
    """Variances of the logarithms of the sums of exponentials of rows, of shape (..., n), from errors of the scores.

    A score moves the logarithm by its weight. Errors that the scores of a row have in common add linearly.
    """
    u = precision.accumulation
    alpha, drop, attendable = as_double(softmax.weights), as_double(softmax.shifted), softmax.attendable
    own = np.where(attendable, np.sqrt(errors**2 + u**2 * (1 + drop**2)), 0.0)
    repeats = _largest_multiplicity(drop, attendable)
    summing = u**2 * (1 + drop.shape[-1] / 4 + 0.25 * repeats**2)
    variance: Numbers = (alpha * own).sum(-1, keepdims=True) ** 2 + summing
    return variance[..., 0]


def rigorous_sums(softmax: Softmax, scores: Numbers, errors: Numbers, precision: Precision) -> Numbers:
    """The same with bounds of the errors in place of variances."""
    u = precision.accumulation
    drop, attendable = softmax.shifted, softmax.attendable
    own = np.where(attendable, errors + 3 * u * np.abs(drop) + 6 * u, 0.0)
    error = _growth(softmax.weights, drop, own)[..., 0] + (drop.shape[-1] + 2) * u
    bound: Numbers = error + 2 * u * np.where(attendable, np.abs(scores), 0).max(-1, initial=0.0)
    return bound


def statistical_logarithms(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers]:
    """Logarithms of softmax weights and their variances, from the errors of the scores, each of shape (..., m).

    A score moves its own logarithm, and that of the sum by its weight. Errors that scores have in common, from the
    vector that all of them were computed from, add linearly in the sum.
    """
    u = precision.accumulation
    value, alpha, drop, logarithm = _logarithms(softmax)
    own = errors**2 + u**2 * (1 + drop**2)
    of_sum = (alpha * np.sqrt(own)).sum(-1, keepdims=True)
    repeats = _largest_multiplicity(drop, np.ones(drop.shape, bool))
    summing = u**2 * (1 + drop.shape[-1] / 4 + 0.25 * repeats**2) + (0.6 * u * logarithm) ** 2
    return value, own + of_sum**2 + summing


def rigorous_logarithms(softmax: Softmax, errors: Numbers, precision: Precision) -> tuple[Numbers, Numbers]:
    """The same with bounds of the errors in place of variances."""
    u = precision.accumulation
    value, alpha, drop, logarithm = _logarithms(softmax)
    own = errors + 3 * u * np.abs(drop) + 6 * u
    of_sum = _growth(alpha, drop, own)
    return value, own + of_sum + (drop.shape[-1] + 2) * u + 2 * u * logarithm


def _growth(alpha: Numbers, drop: Numbers, own: Numbers) -> Numbers:
    """Bound of how much log Σ exp of every row grows with errors ``own`` of its scores; the last axis has size 1.

    log1p keeps small errors. exp of large ones would overflow: there the largest erring score bounds all of them.
    """
    small = np.log1p((alpha * np.expm1(np.minimum(own, LARGEST_EXPONENT))).sum(-1, keepdims=True))
    large = (drop + own).max(-1, keepdims=True, initial=0.0) + np.log(max(own.shape[-1], 1))
    growth: Numbers = np.where(own.max(-1, keepdims=True, initial=0.0) > LARGEST_EXPONENT, large, small)
    return growth


def _logarithms(softmax: Softmax) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Logarithms of weights, weights, scores minus the greatest of their row, and |log Σ exp| of every row."""
    alpha, shifted, _, _, logarithm, _ = softmax
    return log_softmax(shifted), as_double(alpha), as_double(shifted), logarithm


def attendable_softmax(scores: Numbers, mask: Numbers | None) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Weights, scores minus the maximum of their row, the mask in full, and |log Σ exp|; masked scores are left out.

    The last is 0 for a row whose sum is 1: the logarithm of a single exponential is exact.
    """
    shape = scores.shape if mask is None else np.broadcast_shapes(mask.shape, scores.shape)
    attendable = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    some = attendable.any(-1, keepdims=True)
    masked = scores if mask is None else np.where(attendable, scores, -np.inf)
    maximum = np.where(some, masked.max(axis=-1, keepdims=True, initial=-np.inf), 0)
    shifted = masked - maximum
    if mask is not None:
        shifted = np.where(attendable, shifted, 0)
    exponentials = np.exp(shifted) if mask is None else np.where(attendable, np.exp(shifted), 0)
    total = np.where(some, exponentials.sum(-1, keepdims=True), 1)
    logarithm = np.where(total == 1, 0.0, np.abs(maximum + np.log(total)).astype(np.float64))
    return exponentials / total, shifted, attendable, logarithm


def _least_sum(alpha: Numbers, errors: Numbers) -> Numbers:
    """A lower bound of the sum of the exponentials of a row, relative to the exact one; 1 for a row without any."""
    least: Numbers = (alpha * np.exp(-errors)).sum(-1, keepdims=True)
    return np.where(least > 0, least, 1.0)


def _largest_multiplicity(scores: Numbers, attendable: Numbers) -> Numbers:
    """For every row, the largest number of attendable scores that are equal, or nearly so: shape (..., n, 1)."""
    keys = scores.shape[-1]
    if keys < 2:
        return np.full((*scores.shape[:-1], 1), float(keys))
    ordered = np.sort(np.where(attendable, np.round(scores * SCORE_GRID), np.nan), axis=-1)
    return longest_runs(ordered)
