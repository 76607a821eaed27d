"""Propagation of rigorous bounds, which no rounding within the precision class can exceed.

This is interval arithmetic. It is too pessimistic for several layers, but tight for a single attention: the weights of
a row sum to 1 whatever their errors, so errors that all of them share cancel.
"""

from typing import Any, Self

import numpy as np

from attnspec.reference.budget.error_array import UNKNOWN, Approximate
from attnspec.reference.budget.numbers import (
    SINGLE,
    Numbers,
    Softmax,
    as_double,
    growth,
    magnitudes_product,
    singly_multiplied,
)
from attnspec.reference.budget.softmax import (
    LARGEST_EXPONENT,
    WeightErrors,
    rigorous_logarithms,
    rigorous_sums,
    rigorous_weights,
)
from attnspec.reference.normalization import erf, erf_slope

_EXP = 4.0
"""Error bound of an exponential, a sine or a cosine, in unit roundoffs."""

_TANH = 8.0
"""Absolute error bound of tanh, in unit roundoffs. 1 − 2r with r = 1/(1 + exp 2x) counts each rounding of r twice, and
r has four roundings where two terms share one division."""

_ERF = 8.0
"""Absolute error bound of erf, in unit roundoffs. The usual polynomial of 1/(1 + p|x|) errs by 2.5 in float32."""

LEAST_SQUARES = 2.0**-900
"""Sum of squares below which some squares may have underflowed."""


def _own_roundings(u: float) -> float:
    """Factor that enlarges a bound: the oracle and the bound are themselves computed with roundings.

    The oracle of float64 has at least 64 bits, that of other dtypes 53.
    """
    oracle = 2.0**-64 if u < SINGLE else 2.0**-53
    return 1 + max(2 * oracle / u, 2.0**-30)


class Rigorous(Approximate):
    """Numbers, each with an ``error`` that its rounding error cannot exceed."""

    sum_units = 12.0  # two sums of 64 decays by a tree of 6 levels

    def _rounded(self, value: Numbers, error: Numbers, units: float = 1.0, **attributes: Any) -> Self:
        """Add one rounding: ``units`` unit roundoffs of the accumulation, and that of storing the number."""
        p = self.precision
        magnitude = np.abs(value)
        reach = magnitude + error
        self._note_peak(reach, magnitude, error)
        # In place: the magnitude reached becomes the error bound.
        reach *= units * p.accumulation + p.stored
        reach += error
        if p.smallest:
            reach += p.smallest
        return self._computed(value, reach, **attributes)

    def _note_peak(self, reach: Numbers, magnitude: Numbers | None = None, error: Numbers | float = 0.0) -> None:
        """Raise ``extremes.peak`` to the largest element of ``reach``, which is magnitude plus error."""
        if not reach.size:
            return
        largest = float(np.maximum.reduce(reach, None))
        if magnitude is not None and not largest < UNKNOWN / 2:
            # Unknown errors would make the peak meaningless: there the magnitude alone counts.
            largest = float(np.where((error >= UNKNOWN / 2) & np.isfinite(error), magnitude, reach).max())
        self.extremes.peak = max(self.extremes.peak, np.inf if np.isnan(largest) else largest)

    def _error_of_terms(self, a: Self, b: Self) -> Numbers:
        """Error bound of a sum's operands, including their rounding if they are computed."""
        error: Numbers = a.error + b.error
        u = self.precision.term
        if u:
            error = error + sum((u * x.magnitude for x in (a, b) if not x.is_input), 0.0)
        return error

    def _add(self, value: Numbers, a: Self, b: Self) -> Self:
        error = self._error_of_terms(a, b)
        for sums, other in ((a, b), (b, a)):
            if sums.terms:
                # An implementation may start the sum with this term, as linear layers start with the bias.
                error = error + sums.terms * self.precision.accumulation * other.magnitude
        return self._rounded(value, error)

    def _subtract(self, value: Numbers, a: Self, b: Self) -> Self:
        error = self._error_of_terms(a, b)
        if not (a.is_input and b.is_input):
            # A later factor of the difference may have multiplied both terms first: each is then rounded.
            error = error + self.precision.accumulation * (a.magnitude + b.magnitude)
        return self._rounded(value, error, between=(a, b) if self.precision.one_pass else None)

    def _multiply(self, value: Numbers, a: Self, b: Self) -> Self:
        x, y = a.magnitude, b.magnitude
        error = x * b.error + y * a.error + a.error * b.error
        return self._rounded(value, error + self.storage_rounding(a, b) * (np.abs(value) + error))

    def _divide(self, value: Numbers, a: Self, b: Self) -> Self:
        if not b.has_errors and np.count_nonzero(b.value) == b.value.size:
            return self._rounded(value, a.error / b.magnitude, 3.0)
        least = b.magnitude - b.error
        error = np.where(least > 0, (a.error + np.abs(value) * b.error) / np.where(least > 0, least, 1), np.inf)
        # A product with the reciprocal rounds twice, and the reciprocal may have been computed from a rounded root.
        return self._rounded(value, error, 3.0)

    def _square(self, value: Numbers, a: Self) -> Self:
        if a.between is None:
            return self._multiply(value, a, a)
        # In one pass, E[x²] and E[x]² are rounded before they are subtracted, however small the difference is.
        x, y = a.between
        squares, mean, u = x.value**2, np.abs(y.value), self.precision.accumulation
        error = 2 * a.magnitude * a.error + a.error**2 + 2 * u * squares
        error = error + 2 * mean * y.error + y.error**2 + 2 * u * (mean + y.error) ** 2
        return self._rounded(value, error, scale=np.broadcast_to(squares, a.shape))

    def _sqrt(self, value: Numbers, a: Self) -> Self:
        # The root is concave: its largest error is that of the smallest possible operand.
        return self._rounded(value, value - np.sqrt(np.maximum(a.value - a.error, 0)))

    def _exp(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, value * np.expm1(np.minimum(a.error, LARGEST_EXPONENT)), _EXP)

    def _tanh(self, value: Numbers, a: Self) -> Self:
        nearest = np.maximum(a.magnitude - a.error, 0)
        slope = 1 - np.tanh(nearest) ** 2
        error = np.minimum(a.error * slope, 2.0) + _TANH * self.precision.accumulation
        return self._computed(value, error + self.precision.tanh * np.abs(value), scale=np.ones(value.shape))

    def _erf(self) -> Self:
        slope = erf_slope(np.maximum(self.magnitude - self.error, 0))
        error = np.minimum(self.error * slope, 2.0) + _ERF * self.precision.accumulation
        return self._computed(erf(self.value), error, scale=np.ones(self.shape))

    def _sin(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, np.minimum(a.error, 2.0), _EXP)

    def _cos(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, np.minimum(a.error, 2.0), _EXP)

    def _sum(self, value: Numbers, axis: Any, keepdims: bool) -> Self:
        terms = self.value.size // max(value.size, 1)
        error = self.error.sum(axis=axis, keepdims=keepdims)
        reach = self.magnitude_in_sums.sum(axis=axis, keepdims=keepdims) + error
        self._note_peak(reach)
        return self._rounded(value, error + terms * self.precision.accumulation * reach, 0.0, terms=terms)

    def _matmul(self, value: Numbers, a: Self, b: Self) -> Self:
        p = self.precision
        if isinstance(a.weights, WeightErrors):
            return self._computed(value, self._pooling_error(a, b, value))
        terms = a.shape[-1]
        left, right = a.magnitude_in_sums, b.magnitude_in_sums
        absolute = magnitudes_product(left, right)
        self._note_peak(absolute)
        if p.inputs_smallest:
            self._note_peak(left)
            self._note_peak(right)
        error = (growth(p.accumulation, terms + 1) + a.operand_rounding + b.operand_rounding) * absolute
        if a.operand_step:
            matrices = a.ndim > 1 and b.ndim > 1
            error = error + a.operand_step * right.sum(-2 if b.ndim > 1 else -1, keepdims=matrices)
        if b.operand_step:
            error = error + b.operand_step * left.sum(-1, keepdims=b.ndim > 1)
        if a.has_errors:
            error = error + magnitudes_product(a.error, right + b.error)
        if b.has_errors:
            error = error + magnitudes_product(left, b.error)
        # (xw)b may be computed as x(wb): the other order rounds wb. ``factors`` keeps x and w for the next product.
        other = a.other_order(b)
        if other is not None:
            error = error + p.operand * (other[0] @ other[1])
        factors = (a, b) if a.is_input and b.is_input else None
        error = error + terms * p.smallest if p.smallest else error
        return self._rounded(value, error, 0.0, factors=factors, terms=terms)

    def _pooling_error(self, a: Self, b: Self, value: Numbers) -> Numbers:
        """Error bound of pooled values o = Σ αⱼ vⱼ: Definition ``bound`` of ``proofs/Bound.v``.

        The weights contribute at most Σ αⱼ expm1(δⱼ) |vⱼ − o| / L, where δⱼ bounds the error of an exponent and L is
        the least sum, and at most the distance to the farthest value. By the Cauchy–Schwarz inequality, this sum is at
        most √(Σ fⱼ · Σ fⱼ (vⱼ − o)²) with fⱼ = αⱼ expm1(δⱼ) / L (``factor``). That takes matrix products instead of
        n·m·d_v terms.
        """
        p, w = self.precision, a.weights
        alpha, v, value = (as_double(x) for x in (a.value, b.value, value))
        reached = w.attendable.any(-2)[..., None]  # keys that some query may attend to
        all_reached = bool(reached.size and reached.all())

        def among(x: Numbers, otherwise: float) -> Numbers:
            return x if all_reached else np.where(reached, x, otherwise)

        factor = w.increase / w.least_sum
        total = factor.sum(-1, keepdims=True)
        counted = among(b.magnitude, 0.0)
        largest = counted.max(-2, keepdims=True, initial=0.0)
        absolute = magnitudes_product(factor, b.magnitude)
        # Values are divided by a power of two, so that no square of the largest ones overflows or underflows.
        exponent = np.frexp(largest)[1]
        scaled, pooled = np.ldexp(among(v, 0.0), -exponent), np.ldexp(value, -exponent)
        squared = scaled**2
        squares, square = magnitudes_product(factor, squared), pooled**2 * total
        spread = squares - 2 * pooled * (factor @ scaled) + square
        # The difference may cancel: its own rounding error is added.
        rounding = 4 * (v.shape[-2] + 4) * SINGLE if singly_multiplied(factor, squared) else 2.0**-50
        spread = np.ldexp(np.sqrt(total * (np.maximum(spread, 0) + rounding * (squares + square))), exponent)
        # Σ f |v − o| is at most Σ f (|v| + |o|), where squares underflow since other queries attend to larger values.
        spread = np.where(squares + square < LEAST_SQUARES, absolute + np.abs(value) * total, spread)
        highest = among(v, -np.inf).max(axis=-2, keepdims=True, initial=-np.inf)
        lowest = among(v, np.inf).min(axis=-2, keepdims=True, initial=np.inf)
        farthest = np.maximum(np.maximum(highest - value, value - lowest), 0)
        farthest = np.where(np.isfinite(farthest), farthest, 0)
        weighting = np.where(w.unbounded, farthest, np.minimum(spread, farthest))
        keys, u = a.shape[-1], p.accumulation
        of_values = alpha @ b.error if b.has_errors else 0.0
        # Roundings are relative to the sum with the erroneous weights, which may be larger than that with α.
        mass = np.minimum(magnitudes_product(alpha, counted) / w.least_sum + absolute, largest)
        mass = np.where(w.unbounded, largest, mass) + of_values
        compounded = growth(u, keys + 2)
        # The sum that divides may be that of the rounded weights.
        lost = p.weights + 4 * keys * p.weights_smallest
        common = (w.common + compounded + w.common * compounded + lost) / (1 - lost) if lost < 1 else np.inf
        roundings = (1 + compounded) * (p.weights + b.operand_rounding) + compounded
        sums = counted.sum(-2, keepdims=True)
        self._note_peak(sums)
        underflow = 4 * (1 + roundings) * (keys * p.smallest + p.weights_smallest * sums)
        if p.weights_scaled:
            # The largest weight of a row may itself be larger than computed.
            underflow = underflow + a.weight_errors @ counted + p.weights_scaled * np.minimum(absolute, largest)
        pooling = roundings * mass + underflow
        error: Numbers = weighting + common * (np.abs(value) + weighting) + (1 + common) * pooling
        return (error + of_values + b.operand_step) * _own_roundings(u)

    def _softmax(self, softmax: Softmax) -> Self:
        weights, error, errors = rigorous_weights(softmax, self.error, self.precision)
        return self._computed(weights, error, weights=errors)

    def _summed(self, value: Numbers, softmax: Softmax) -> Self:
        return self._rounded(value, rigorous_sums(softmax, self.value, self.error, self.precision))

    def _log_softmax(self, softmax: Softmax) -> Self:
        return self._rounded(*rigorous_logarithms(softmax, self.error, self.precision))
