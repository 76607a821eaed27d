"""Honest results: those of the formula with weights rounded as a precision class allows.

They show which errors a correct implementation may have on the judged inputs.
"""

from collections.abc import Sequence
from functools import partial
from math import log2
from typing import Any, Self

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.reference.budget import Statistical, is_real, oracle_dtype
from attnspec.reference.budget.error_array import Extremes
from attnspec.reference.budget.numbers import Softmax
from attnspec.spec.contract.precision import Precision
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import map_tree

PHASES = 8
"""Number of factors from 1 to 2 that scale the weights before rounding; each rounds equal weights to another side."""

UNIT_OF_DOUBLE = 2.0**-53


def nearest(x: Numbers, unit: float, step: Numbers | float = 0.0) -> Numbers:
    """Round by this unit roundoff, or to multiples of ``step`` where that is coarser.

    With 0 nothing is rounded.
    """
    rounded_numbers = x
    if unit:
        bits = round(-log2(unit))
        mantissa, exponent = np.frexp(x)
        rounded_numbers = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    if not np.any(step):
        return np.asarray(rounded_numbers)
    return np.asarray(np.where(2 * unit * np.abs(x) < step, np.rint(x / step) * step, rounded_numbers))


class WeightsRounded(Statistical):
    """Numbers computed exactly, except that weights are rounded before they multiply the values.

    They are rounded after multiplication by ``phase``, since kernels round exponentials, which are weights times a
    factor that depends on the kernel.
    """

    phase = 1.0

    def _applied(self, ufunc: Any, value: Numbers, operands: Sequence[Self]) -> Self:
        weights, *_ = operands
        if ufunc is np.matmul and weights.weights is not None:  # set on softmax weights only
            value = self.stored(weights.value, self.precision) @ operands[1].value
        return self._exact(value)

    def _sum(self, value: Numbers, axis: Any, keepdims: bool) -> Self:
        return self._exact(value)

    def _softmax(self, softmax: Softmax) -> Self:
        return self._exact(softmax.weights, weights=1.0)

    def _exact(self, value: Numbers, **attributes: Any) -> Self:
        # No array of zeros is made: errors are never read.
        return self._with(value, np.broadcast_to(0.0, np.shape(value)), **attributes)

    @classmethod
    def stored(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Return the rounded weights, which multiply the values."""
        step = 2 * precision.weights_scaled * cls.phase * _largest(weights)
        return nearest(weights * cls.phase, precision.weights, step) / cls.phase


class ExponentialsRounded(WeightsRounded):
    """Rounding of exponentials: rounded ones multiply the values, exact ones are summed."""

    @classmethod
    def stored(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Round weights relative to the largest of their row, which is 1."""
        largest = _largest(weights)
        return nearest(weights / largest, precision.weights, 2 * precision.weights_scaled) * largest


def _largest(weights: Numbers) -> Numbers:
    largest = weights.max(-1, keepdims=True, initial=0.0)
    return np.asarray(np.where(largest > 0, largest, 1.0))


class SumsRounded(WeightsRounded):
    """Rounding of sums: exponentials added one by one may round in one direction.

    Equal ones do, and so do those that are small beside the sum.
    """

    def _softmax(self, softmax: Softmax) -> Self:
        return self._exact(self.divided(softmax.weights, self.precision), weights=1.0)

    @classmethod
    def divided(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Return the weights divided by their rounded sum."""
        single = np.float32 if precision.accumulation > UNIT_OF_DOUBLE else np.float64
        x = (weights / _largest(weights) * cls.phase).astype(single)
        summed = np.cumsum(x, -1, single)[..., -1:].astype(weights.dtype)
        return np.asarray(weights * x.sum(-1, weights.dtype, keepdims=True) / np.where(summed > 0, summed, 1.0))


def _phases_of(rounding: type[WeightsRounded]) -> list[type[WeightsRounded]]:
    return [type(f"{rounding.__name__}{i}", (rounding,), {"phase": 2.0 ** (i / PHASES)}) for i in range(PHASES)]


ROUNDINGS_OF_STORED: Sequence[type[WeightsRounded]] = (ExponentialsRounded, *_phases_of(WeightsRounded))
"""Kinds of rounding in implementations that store weights in fewer bits."""

ROUNDINGS_OF_SUMS: Sequence[type[WeightsRounded]] = (WeightsRounded, *_phases_of(SumsRounded))
"""Kinds of rounding in implementations that do not store weights in fewer bits."""


def weight_roundings(precision: Precision) -> Sequence[type[WeightsRounded]]:
    """Return the kinds of weight rounding in implementations of a class."""
    return ROUNDINGS_OF_STORED if precision.weights or precision.weights_scaled else ROUNDINGS_OF_SUMS


def rounded(subject: Subject, arguments: Arguments, rounding: type[WeightsRounded]) -> Numbers:
    """Return the leading result in the judged dtype, computed with one kind of rounded weights."""
    wide_dtype = oracle_dtype(subject.precision.dtype)
    with_rounding = partial(rounding, error=0.0, precision=subject.precision, is_input=True, extremes=Extremes())
    arguments_by_name = arguments.values_by_name
    with np.errstate(all="ignore"):
        result = subject.formula()(
            **map_tree(arguments_by_name, lambda _, x: with_rounding(x.astype(wide_dtype)) if is_real(x) else x)
        )
        arrays = {leaf.path: x for leaf, x in results(subject.operation, result)}
        return np.asarray(arrays[subject.operation.leading.path].value.astype(numpy_dtype(subject.dtype)))
