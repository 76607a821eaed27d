"""Standard deviations and rigorous bounds of the same numbers, in one run of a formula.

One run instead of two saves time: values, moves and exponentials are computed only once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from attnspec.reference.budget.error_array import Approximate
from attnspec.reference.budget.numbers import Numbers, Softmax
from attnspec.reference.budget.rigorous import Rigorous
from attnspec.reference.budget.statistical import Statistical


class Joint(Approximate):
    """Numbers with standard deviations (``estimate``) and rigorous bounds (``bound``); both share ``value``."""

    def __init__(self, estimate: Statistical, bound: Rigorous) -> None:
        self.value, self.estimate, self.bound = estimate.value, estimate, bound

    def chosen(self, condition: Any, other: Any) -> Self:
        """Select these numbers where the condition holds and ``other`` elsewhere."""
        other = self._wrap(other)
        return type(self)(self.estimate.chosen(condition, other.estimate), self.bound.chosen(condition, other.bound))

    def _wrap(self, x: Any) -> Self:
        return x if isinstance(x, type(self)) else type(self)(self.estimate._wrap(x), self.bound._wrap(x))

    def _counted(self, x: Numbers) -> Self:
        return type(self)(self.estimate._counted(x), self.bound._counted(x))

    def _move(self, move: Callable[[Numbers], Numbers]) -> Self:
        value = move(self.value)
        return type(self)(self.estimate._moved(value, move), self.bound._moved(value, move))

    def _joined(self, join: Callable[[Sequence[Numbers]], Numbers], parts: Sequence[Self]) -> Self:
        estimate = self.estimate._joined(join, [p.estimate for p in parts])
        return type(self)(estimate, self.bound._joined(join, [p.bound for p in parts]))

    def _rules(self, ufunc: Any) -> bool:
        return self.estimate._rules(ufunc) and self.bound._rules(ufunc)

    def _applied(self, ufunc: Any, value: Numbers, operands: Sequence[Self]) -> Self:
        estimate = self.estimate._applied(ufunc, value, [x.estimate for x in operands])
        return type(self)(estimate, self.bound._applied(ufunc, value, [x.bound for x in operands]))

    def _sum(self, value: Numbers, axis: Any, keepdims: bool) -> Self:
        return type(self)(self.estimate._sum(value, axis, keepdims), self.bound._sum(value, axis, keepdims))

    def _softmax(self, softmax: Softmax) -> Self:
        return type(self)(self.estimate._softmax(softmax), self.bound._softmax(softmax))

    def _log_softmax(self, softmax: Softmax) -> Self:
        return type(self)(self.estimate._log_softmax(softmax), self.bound._log_softmax(softmax))

    def _step_factors(self) -> Self:
        return type(self)(self.estimate._step_factors(), self.bound._step_factors())

    def _decayed_state(self, factors: Self) -> Self:
        return type(self)(self.estimate._decayed_state(factors.estimate), self.bound._decayed_state(factors.bound))

    def _written_state(self, product: Self) -> Self:
        return type(self)(self.estimate._written_state(product.estimate), self.bound._written_state(product.bound))

    def _sigmoid(self) -> Self:
        return type(self)(self.estimate._sigmoid(), self.bound._sigmoid())

    def _erf(self) -> Self:
        return type(self)(self.estimate._erf(), self.bound._erf())

    def _log_sum_exp(self, softmax: Softmax) -> Self:
        return type(self)(self.estimate._log_sum_exp(softmax), self.bound._log_sum_exp(softmax))

    def _highest(self, count: int, among: Numbers) -> Self:
        return type(self)(self.estimate._highest(count, among), self.bound._highest(count, among))

    def _greatest(self, count: int, among: Numbers) -> tuple[Numbers, Self]:
        places, estimate = self.estimate._greatest(count, among)
        return places, type(self)(estimate, self.bound._greatest(count, among)[1])
