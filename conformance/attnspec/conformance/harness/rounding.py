"""Honest results: the formula with weights that are rounded as a precision class allows, and a result in its dtype."""

from functools import partial
from math import log2
from typing import Any, Self

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Subject
from attnspec.reference.budget import Statistical, is_real, oracle_dtype
from attnspec.reference.budget.error_array import Extremes
from attnspec.spec.contract.shapes import results
from attnspec.spec.contract.tree import mapped


def nearest(x: Numbers, unit: float) -> Numbers:
    """The nearest numbers in a format of this unit roundoff; the same numbers where it is 0."""
    if not unit:
        return x
    bits = round(-log2(unit))
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))


class WeightsRounded(Statistical):
    """Numbers that are exact but for the weights, which are rounded before they multiply the values."""

    def _computed(self, value: Numbers, error: Numbers, **more: Any) -> Self:
        return super()._computed(value, np.zeros(np.shape(value)), **more)

    def _matmul(self, value: Numbers, a: Self, b: Self) -> Self:
        if a.weights is not None:
            stored = self.stored(a.value, self.precision.weights)
            a = self._computed(stored, a.error, weights=a.weights, level=a.level)
            value = a.value @ b.value
        return super()._matmul(value, a, b)

    @staticmethod
    def stored(weights: Numbers, unit: float) -> Numbers:
        """The weights as they multiply the values."""
        return nearest(weights, unit)


class ExponentialsRounded(WeightsRounded):
    """Exponentials are rounded, and divided by their sum after they have multiplied the values."""

    @staticmethod
    def stored(weights: Numbers, unit: float) -> Numbers:
        """Weights relative to the largest of their row, which is 1."""
        largest = weights.max(-1, keepdims=True, initial=0.0)
        largest = np.where(largest > 0, largest, 1.0)
        return nearest(weights / largest, unit) * largest


HONEST = (WeightsRounded, ExponentialsRounded)
"""The ways in which implementations round weights."""


def rounded(subject: Subject, arguments: Arguments, way: type[WeightsRounded]) -> Numbers:
    """The leading result of arguments with rounded weights, in the dtype that is judged."""
    wide = oracle_dtype(subject.precision.dtype)
    make = partial(way, error=0.0, precision=subject.precision, given=True, extremes=Extremes())
    given = subject.aligned(arguments).values_by_name
    with np.errstate(all="ignore"):
        found = subject.formula()(**mapped(given, lambda _, x: make(x.astype(wide)) if is_real(x) else x))
        named = {leaf.path: x for leaf, x in results(subject.operation, found)}
        return np.asarray(named[subject.operation.leading.path].value.astype(numpy_dtype(subject.dtype)))
