"""Propagation of standard deviations: independent rounding errors add in quadrature.

Correct implementations stay within 8 standard deviations, wrong ones do not. The constants are the standard deviation
of a rounding error: 0.6 u for a single operation (0.58 u if it is uniform), 0.5 u √n for a sum of n terms.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

import numpy as np

from attnspec.reference.budget.error_array import WIDTH, Approximate
from attnspec.reference.budget.numbers import EqualTerms, Numbers, Softmax, as_double, magnitudes_product
from attnspec.reference.budget.softmax import (
    error_of_logarithm,
    statistical_logarithms,
    statistical_sums,
    statistical_weights,
)
from attnspec.reference.normalization import erf, erf_slope

LEAST = 2.0**-510
"""The smallest standard deviation in use: the square of a smaller one may underflow to 0 in double."""

_count = attrgetter("count")


class Statistical(Approximate):
    """Numbers whose ``error`` is the standard deviation of each.

    ``common_errors``: errors that all attention weights of a row share are among them.
    """

    common_errors = True
    _own_terms: EqualTerms | None = None

    @property
    def floor(self) -> float:
        """Least error of a rounding: the class's smallest normal number, and at least ``LEAST``."""
        return max(self.precision.smallest, LEAST)

    @property
    def repeats(self) -> float:
        """Largest count of ``equal_terms``, the equal elements of the products from which these numbers came."""
        if not self.equal_terms:
            return 1.0
        most = max(self.equal_terms, key=_count)
        if len(self.equal_terms) > 1:
            # Only the largest count matters from now on.
            self.equal_terms = frozenset((most,))
        return most.count

    @property
    def variance_of_running_sums(self) -> Numbers | float:
        """Relative variance that a running maximum adds to the rows' sums of exponentials."""
        return 0.0

    @property
    def own_terms(self) -> EqualTerms:
        """Equal numbers in a row of this array itself. Only `_matmul` counts them: it sums along rows."""
        if self._own_terms is None:
            self._own_terms = EqualTerms(self.value)
        return self._own_terms

    def _rounded(self, value: Numbers, variance: Numbers, spread: float = 0.6, **attributes: Any) -> Self:
        return self._computed(value, self._deviation(value, variance, spread), **attributes)

    def _deviation(self, value: Numbers, variance: Numbers, spread: float) -> Numbers:
        """Standard deviation of numbers after one more rounding."""
        p = self.precision
        relative = (spread * p.accumulation) ** 2 + (0.6 * p.stored) ** 2
        if relative:
            variance = variance + relative * as_double(value) ** 2
        deviation = np.sqrt(variance)
        deviation += self.floor
        return deviation

    def _variance_of_terms(self, *terms: Self) -> Numbers:
        """Variance of the operands of a sum, including the rounding of computed ones before it."""
        first, second = terms
        variance: Numbers = first.error**2 + second.error**2
        if self.precision.term:
            unit = 0.6 * self.precision.term
            variance = variance + sum(((unit * as_double(x.value)) ** 2 for x in terms if not x.is_input), 0.0)
        return variance

    def _add(self, value: Numbers, a: Self, b: Self) -> Self:
        variance = self._variance_of_terms(a, b)
        if a.terms or b.terms:
            # An implementation may start the sum with this term, as linear layers start with the bias.
            u, squares = 0.5 * self.precision.accumulation, as_double(value) ** 2
            for sums, other in ((a, b), (b, a)):
                if sums.terms:
                    variance = variance + u**2 * sums.terms * (as_double(other.value) ** 2 + squares)
        return self._rounded(value, variance)

    def _subtract(self, value: Numbers, a: Self, b: Self) -> Self:
        variance = self._variance_of_terms(a, b)
        if not (a.is_input and b.is_input):
            # A later factor of the difference may have multiplied both terms first: each is then rounded.
            u = 0.5 * self.precision.accumulation
            variance = variance + u**2 * (as_double(a.value) ** 2 + as_double(b.value) ** 2)
        return self._rounded(value, variance, between=(a, b) if self.precision.one_pass else None)

    def _multiply(self, value: Numbers, a: Self, b: Self) -> Self:
        x, y = as_double(a.value), as_double(b.value)
        # The last term matters where both values are 0 and both errors are not.
        variance = (x * b.error) ** 2 + (y * a.error) ** 2 + (a.error * b.error) ** 2
        if storage_rounding := self.storage_rounding(a, b):
            variance = variance + (0.6 * storage_rounding * as_double(value)) ** 2
        return self._rounded(value, variance)

    def _divide(self, value: Numbers, a: Self, b: Self) -> Self:
        if not b.has_errors:
            return self._rounded(value, (a.error / as_double(b.value)) ** 2)
        return self._rounded(value, (a.error**2 + (as_double(value) * b.error) ** 2) / as_double(b.value) ** 2)

    def _square(self, value: Numbers, a: Self) -> Self:
        variance = (2 * as_double(a.value) * a.error) ** 2
        if a.between is None:
            return self._rounded(value, variance)
        # Σ(x − y)²/n may be computed as Σx²/n − y²: the n squares of y have one error, which adds linearly.
        x, y = a.between
        squares, mean = as_double(x.value) ** 2, as_double(y.value)
        times = max(x.value.size, 1) / max(y.value.size, 1)
        u = 0.6 * self.precision.accumulation
        variance = variance + (u * squares) ** 2 + times * ((2 * mean * y.error) ** 2 + (u * mean**2) ** 2)
        return self._rounded(value, variance, scale=np.broadcast_to(squares, a.shape))

    def _sqrt(self, value: Numbers, a: Self) -> Self:
        # The steepest slope within the budget: the error of a one-pass variance may be as large as itself.
        least = np.maximum(as_double(a.value) - WIDTH * a.error, 0)
        return self._rounded(value, (a.error / np.where(value > 0, as_double(value) + np.sqrt(least), np.inf)) ** 2)

    def _exp(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, (as_double(value) * a.error) ** 2, 1.0)

    def _tanh(self, value: Numbers, a: Self) -> Self:
        r = as_double(value)
        u, fast = self.precision.accumulation, self.precision.tanh
        # The steepest slope within the budget: errors of recurrent states may span both saturations of tanh.
        nearest = np.maximum(np.abs(as_double(a.value)) - WIDTH * a.error, 0)
        slope = 1 - np.tanh(nearest) ** 2
        error = np.sqrt((slope * a.error) ** 2 + u**2 + (fast * r) ** 2)
        return self._computed(value, error, scale=np.ones_like(r))

    def _erf(self) -> Self:
        slope = erf_slope(np.maximum(self.magnitude - WIDTH * self.error, 0))
        error = np.hypot(slope * self.error, self.precision.accumulation)
        return self._computed(erf(self.value), error, scale=np.ones(self.shape), equal_terms=self.equal_terms)

    def _sin(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, (np.cos(as_double(a.value)) * a.error) ** 2, 1.0)

    def _cos(self, value: Numbers, a: Self) -> Self:
        return self._rounded(value, (np.sin(as_double(a.value)) * a.error) ** 2, 1.0)

    def _sum(self, value: Numbers, axis: Any, keepdims: bool) -> Self:
        terms = self.value.size // max(value.size, 1)
        squares = self.squares_in_sums.sum(axis=axis, keepdims=keepdims)
        variance = self.repeats * (self.error**2).sum(axis=axis, keepdims=keepdims)

        def operands() -> tuple[Numbers, Numbers]:
            axes = tuple(range(self.ndim)) if axis is None else tuple(np.atleast_1d(axis))
            last = np.moveaxis(self.value, axes, range(-len(axes), 0))
            return last.reshape(*value.shape, terms), np.ones(terms)

        variance = variance + self._summing_variance(value, squares, terms, operands)
        return self._rounded(value, variance, 0.0, terms=terms)

    def _summing_variance(
        self, value: Numbers, squares: Numbers, terms: int, operands: Callable[[], tuple[Numbers, Numbers]]
    ) -> Numbers:
        """Variance of the roundings of partial sums; ``squares`` is the sum of the terms' squares.

        ``operands`` returns a matrix and a matrix or vector whose product is ``value``.
        """
        # The square of a partial sum is at most about value² + Σ terms²: a drift and a random walk.
        variance: Numbers = (0.5 * self.precision.accumulation) ** 2 * terms * (as_double(value) ** 2 + squares)
        return variance

    def _matmul(self, value: Numbers, a: Self, b: Self) -> Self:
        p = self.precision
        terms, floor, double = a.shape[-1], self.floor, as_double(value)
        left, right = a.squares_in_sums, b.squares_in_sums
        squares = magnitudes_product(left, right)
        operands = (0.6 * a.operand_rounding) ** 2 + (0.6 * b.operand_rounding) ** 2
        summing = self._summing_variance(double, squares, terms, lambda: (a.value, b.value))
        variance = summing + operands * squares if operands else summing
        # The format of operands has a smallest step, which limits small numbers absolutely, not relatively.
        if a.operand_step > floor:
            matrices = a.ndim > 1 and b.ndim > 1
            variance = variance + a.operand_step**2 * right.sum(-2 if b.ndim > 1 else -1, keepdims=matrices)
        if b.operand_step > floor:
            variance = variance + b.operand_step**2 * left.sum(-1, keepdims=b.ndim > 1)
        if p.bias:
            variance = variance + (p.bias * double) ** 2
        if a.has_errors:
            # r equal errors add linearly, to r times the variance of independent ones. They may be equal since an
            # earlier product, or since equal numbers were computed alike: ``repeats`` or ``own_terms``.
            own = a.error**2
            if a.weights is not None:
                # The error that all weights of a row share multiplies the result by one factor, counted below. The step
                # of their format is counted above, and below where they are equal.
                own = np.maximum(np.maximum(a.error - a.operand_step, 0.0) ** 2 - a.common * left, 0.0)
            variance = variance + max(a.repeats, a.own_terms.count) * magnitudes_product(own, right)
        if b.has_errors:
            variance = variance + magnitudes_product(left + a.error**2, b.error**2)
        if a.weights is not None:
            # Equal attention weights err alike when rounded as operands. ``a.weights``: most equal weights in a row;
            # ``share``: their largest part of the row's sum, 1.
            largest = left.max(-1, keepdims=True, initial=0.0) ** 0.5
            share = np.minimum(a.weights * largest, 1.0)
            rounding = 0.6 * (p.weights + b.operand_rounding) * share
            # Equal weights are off by the same part of a step, however small they are.
            rounding = rounding + np.divide(
                a.operand_step * share, largest, out=np.zeros_like(share), where=largest > 0
            )
            if p.weights_scaled:
                variance = variance + self._variance_of_steps(a, right)
                rounding = rounding + 0.6 * p.weights_scaled * a.weights * largest
            variance = variance + (rounding**2 + a.common) * double**2
        # A product of three matrices may be computed in either order. Where the terms of one order cancel, those of the
        # other may not.
        other = a.other_order(b)
        if other is not None:
            variance = variance + (0.6 * p.operand) ** 2 * (other[0] ** 2 @ other[1] ** 2)
        factors = (a, b) if a.is_input and b.is_input else None
        equal = EqualTerms(value)
        result = self._computed(
            value,
            self._deviation(value, variance, 0.0) + terms * floor,
            scale=lambda: np.maximum(np.abs(double), np.sqrt(squares)),
            factors=factors,
            terms=terms,
            equal_terms=frozenset((equal,)),
        )
        if result.value is value:  # not in `Sample`, which adds random errors: its numbers are others
            result._own_terms = equal
        return result

    def _variance_of_steps(self, a: Self, squares: Numbers) -> Numbers:
        """Variance of pooled values from the steps of weights in few bits; ``squares`` are those of the values.

        Weights below a step err alike: those below half of it become 0. Their errors add linearly, up to a bound.
        """
        errors = a.weight_errors
        below = np.where(a.magnitude <= 2 * errors.max(-1, keepdims=True, initial=0.0), errors, 0.0)
        linear = below @ np.sqrt(squares)
        return np.asarray((0.6 * errors) ** 2 @ squares + (linear / WIDTH) ** 2)

    def _softmax(self, softmax: Softmax) -> Self:
        weights, sigma, repeats, common = statistical_weights(
            softmax, self.error, self.precision, common=self.common_errors
        )
        # ``Judged.level``: weights of a row may all be too large by 8 levels, and an average lie beyond its values.
        level = float(error_of_logarithm(softmax, self.precision).max(initial=0.0))
        self.extremes.level = max(self.extremes.level, level)
        return self._computed(weights, sigma, weights=repeats, common=common)

    def _summed(self, value: Numbers, softmax: Softmax) -> Self:
        return self._rounded(value, statistical_sums(softmax, self.error, self.precision))

    def _log_softmax(self, softmax: Softmax) -> Self:
        return self._rounded(*statistical_logarithms(softmax, self.error, self.precision))
