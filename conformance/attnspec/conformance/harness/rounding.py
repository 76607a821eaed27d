"""Honest results: the formula with weights rounded as a class allows, returned in its dtype."""

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
from attnspec.spec.contract.precision import Precision
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import mapped

PHASES = 8
"""Number of tried factors between 1 and 2, which decide how numbers common to all rows round."""

UNIT_OF_DOUBLE = 2.0**-53


def nearest(x: Numbers, unit: float) -> Numbers:
    """Round to a format of this unit roundoff; numbers are unchanged if it is 0."""
    if not unit:
        return x
    bits = round(-log2(unit))
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))


class WeightsRounded(Statistical):
    """Exact numbers, except that weights are rounded before they multiply the values.

    They are multiplied by ``phase`` first, since exponentials are weights times an arbitrary factor.
    """

    phase = 1.0

    def _computed(self, value: Numbers, error: Numbers, **more: Any) -> Self:
        return super()._computed(value, np.zeros(np.shape(value)), **more)

    def _matmul(self, value: Numbers, a: Self, b: Self) -> Self:
        if a.weights is not None:
            stored = self.stored(a.value, self.precision)
            a = self._computed(stored, a.error, weights=a.weights, level=a.level)
            value = a.value @ b.value
        return super()._matmul(value, a, b)

    @classmethod
    def stored(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Return the weights as they multiply the values."""
        return nearest(weights * cls.phase, precision.weights) / cls.phase


class ExponentialsRounded(WeightsRounded):
    """Exponentials are rounded, multiply the values, and are divided by their sum afterwards."""

    @classmethod
    def stored(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Round weights relative to the largest of their row, which is 1."""
        largest = _largest(weights)
        return nearest(weights / largest, precision.weights) * largest


def _largest(weights: Numbers) -> Numbers:
    largest = weights.max(-1, keepdims=True, initial=0.0)
    return np.asarray(np.where(largest > 0, largest, 1.0))


class SumsRounded(WeightsRounded):
    """Exponentials are summed one by one: equal ones keep rounding the sum in the same direction."""

    @classmethod
    def stored(cls, weights: Numbers, precision: Precision) -> Numbers:
        """Return weights over their rounded sum."""
        single = np.float32 if precision.accumulation > UNIT_OF_DOUBLE else np.float64
        x = (weights / _largest(weights) * cls.phase).astype(single)
        summed = np.cumsum(x, -1, single)[..., -1:].astype(weights.dtype)
        return np.asarray(weights * x.sum(-1, weights.dtype, keepdims=True) / np.where(summed > 0, summed, 1.0))


def _at_phases(way: type[WeightsRounded]) -> list[type[WeightsRounded]]:
    return [type(f"{way.__name__}{i}", (way,), {"phase": 2.0 ** (i / PHASES)}) for i in range(PHASES)]


STORED: Sequence[type[WeightsRounded]] = (ExponentialsRounded, *_at_phases(WeightsRounded))
"""Kinds of rounding in implementations that store weights in fewer bits."""

SUMMED: Sequence[type[WeightsRounded]] = (WeightsRounded, *_at_phases(SumsRounded))
"""Kinds of rounding in implementations that do not store weights in fewer bits."""


def ways(precision: Precision) -> Sequence[type[WeightsRounded]]:
    """Return the kinds of weight rounding in implementations of a class."""
    return STORED if precision.weights else SUMMED


def rounded(subject: Subject, arguments: Arguments, way: type[WeightsRounded]) -> Numbers:
    """Return the leading result with rounded weights, in the judged dtype."""
    wide = oracle_dtype(subject.precision.dtype)
    make = partial(way, error=0.0, precision=subject.precision, given=True, extremes=Extremes())
    given = arguments.values_by_name
    with np.errstate(all="ignore"):
        found = subject.formula()(**mapped(given, lambda _, x: make(x.astype(wide)) if is_real(x) else x))
        named = {leaf.path: x for leaf, x in results(subject.operation, found)}
        return np.asarray(named[subject.operation.leading.path].value.astype(numpy_dtype(subject.dtype)))
