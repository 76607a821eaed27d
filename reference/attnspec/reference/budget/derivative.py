"""Reverse-mode differentiation of a formula in error arithmetic.

:class:`Traced` records every step of the formula with its gradient rule. The chain rule then runs backwards over the
record, on arrays that carry errors (:class:`~attnspec.reference.budget.statistical.Statistical`), so that each element
of each gradient has its own budget.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from attnspec.reference.budget.error_array import MARGIN
from attnspec.reference.budget.numbers import COMPARISONS, JOINS, MOVES, Numbers, Softmax, as_double, attendable_softmax
from attnspec.reference.budget.softmax import statistical_weights
from attnspec.reference.budget.statistical import Statistical
from attnspec.reference.defining.duck_array import DuckArray
from attnspec.reference.normalization import erf_slope

Backward = Callable[[Statistical], Sequence[Statistical | None]]


def _operators(ufunc: Any) -> tuple[Any, Any]:
    """Return the left and right methods of an operator: NumPy's mixin is slower, with the same results."""

    def left(self: "Traced", other: Any) -> Any:
        return self.__array_ufunc__(ufunc, "__call__", self, other)

    def right(self: "Traced", other: Any) -> Any:
        return self.__array_ufunc__(ufunc, "__call__", other, self)

    return left, right


class Traced(DuckArray):
    """An array of a recorded computation: its numbers, its operands (parents) and their gradient rule.

    ``terms`` is the number of terms of the longest sum among its ancestors and itself. ``is_gathered`` marks rows that
    were looked up, such as embeddings of tokens: some may be equal.
    """

    __array_priority__ = 1001

    is_gathered = False

    def __init__(
        self, result: Statistical, parents: Sequence["Traced"] = (), backward: Backward | None = None, terms: int = 1
    ) -> None:
        self.result, self.value, self.parents, self.backward = result, result.value, tuple(parents), backward
        self.terms: int = max([terms, *(p.terms for p in self.parents)])

    __add__, __radd__ = _operators(np.add)
    __sub__, __rsub__ = _operators(np.subtract)
    __mul__, __rmul__ = _operators(np.multiply)
    __truediv__, __rtruediv__ = _operators(np.true_divide)
    __matmul__, __rmatmul__ = _operators(np.matmul)

    @property
    def T(self) -> "Traced":
        """The transpose."""
        return Traced(self.result.T, [self], lambda g: [g.T])

    def __getitem__(self, index: Any) -> "Traced":
        def backward(g: Statistical) -> Sequence[Statistical]:
            # A row that the index selects several times gets the sum of its gradients.
            value, variance = np.zeros(self.shape, g.dtype), np.zeros(self.shape)
            magnitude, times = np.zeros(self.shape), np.zeros(self.shape)
            np.add.at(value, index, g.value)
            np.add.at(variance, index, g.error**2)
            np.add.at(magnitude, index, np.abs(g.value).astype(np.float64))
            np.add.at(times, index, 1.0)
            roundings = np.where(times > 1, 0.5 * g.precision.accumulation * np.sqrt(times) * magnitude, 0.0)
            return [g._computed(value, np.sqrt(variance + roundings**2), is_input=g.is_input)]

        selected = Traced(self.result[index], [self], backward)
        selected.is_gathered = isinstance(index, np.ndarray)
        return selected

    def reshape(self, *shape: Any) -> "Traced":
        """Reshape the numbers."""
        return Traced(self.result.reshape(*shape), [self], lambda g: [g.reshape(self.shape)])

    def swapaxes(self, first: int, second: int) -> "Traced":
        """Exchange two axes."""
        return Traced(self.result.swapaxes(first, second), [self], lambda g: [g.swapaxes(first, second)])

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """Sum over axes."""
        whole = self.result.sum(axis=axis, keepdims=True)

        def backward(g: Statistical) -> Sequence[Statistical]:
            return [g.reshape(whole.shape).broadcast_to(self.shape)]

        terms = self.result.value.size // max(whole.value.size, 1)
        return Traced(self.result.sum(axis=axis, keepdims=keepdims), [self], backward, terms)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """Average over axes."""
        total = self.sum(axis, keepdims)
        count = total.dtype.type(self.result.value.size // max(total.result.value.size, 1))
        return self._wrap(total / count)

    def _wrap(self, x: Any) -> "Traced":
        return x if isinstance(x, Traced) else Traced(self.result._wrap(x))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc is np.add:
            return inputs[0].sum(kwargs.get("axis"), kwargs.get("keepdims", False))
        if method != "__call__":
            return NotImplemented
        if ufunc in COMPARISONS:
            return ufunc(*(x.result.value if isinstance(x, Traced) else x for x in inputs))
        rule = _RULES.get(ufunc)
        if rule is None:
            return NotImplemented
        parents = [self._wrap(x) for x in inputs]
        operands = [p.result for p in parents]
        result = operands[0].__array_ufunc__(ufunc, method, *operands)
        terms = parents[0].shape[-1] if ufunc is np.matmul else 1
        return Traced(result, parents, rule(result, *operands), terms)

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function in MOVES:
            return self._moved(function, args, kwargs)
        if function in JOINS:
            return self._joined(function, args, kwargs)
        if function is np.where:
            condition, x, y = args[0], self._wrap(args[1]), self._wrap(args[2])
            zero = self.dtype.type(0)

            def backward(g: Statistical) -> Sequence[Statistical]:
                left, right = g.chosen(condition, zero), g._wrap(zero).chosen(condition, g)
                return [_unbroadcast(left, x.shape), _unbroadcast(right, y.shape)]

            return Traced(x.result.chosen(condition, y.result), [x, y], backward)
        if function in (np.sum, np.mean):
            x, *options = args
            return (x.sum if function is np.sum else x.mean)(*options, **kwargs)
        if function is np.asarray:
            return Traced(np.asarray(*args, **kwargs, like=self.result))
        if function in (np.zeros_like, np.ones_like):
            return function(args[0].result.value, **kwargs)
        if function in (np.shape, np.ndim):
            return function(args[0].result.value)
        name = getattr(function, "__name__", "")
        if name in ("softmax", "log_softmax", "log_sum_exp"):
            return getattr(args[0], f"_{name}")(attendable_softmax(args[0].result.value, kwargs.get("mask")))
        if name in ("sigmoid", "erf", "step_factors", "decayed_state", "written_state"):
            return getattr(args[0], f"_{name}")(*args[1:])
        return NotImplemented

    def _moved(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Traced":
        x: Traced = args[0]
        moved = function(x.result, *args[1:], **kwargs)

        def backward(g: Statistical) -> Sequence[Statistical]:
            if function is np.broadcast_to:
                return [_unbroadcast(g, x.shape)]
            if function in (np.repeat, np.take_along_axis):
                raise TypeError(f"a gradient through np.{function.__name__} has no rule")
            # Moving the indices of the numbers shows where each number went.
            places = function(np.arange(x.result.value.size).reshape(x.shape), *args[1:], **kwargs)
            back = np.argsort(places, axis=None)
            return [g.reshape(-1)[back].reshape(x.shape)]

        return Traced(moved, [x], backward)

    def _joined(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Traced":
        parts = [self._wrap(x) for x in args[0]]
        # A stand-in for the result: only its number of dimensions is used, to count axes from the front.
        places = function([np.full(p.shape, i) for i, p in enumerate(parts)], *args[1:], **kwargs)

        def backward(g: Statistical) -> Sequence[Statistical]:
            axis = kwargs.get("axis", args[1] if len(args) > 1 else 0)
            if function is np.stack:
                return [g[(slice(None),) * (axis % places.ndim) + (i,)] for i in range(len(parts))]
            ends = np.cumsum([0, *(p.shape[axis] for p in parts)])
            before = (slice(None),) * (axis % places.ndim)
            return [g[(*before, slice(a, b))] for a, b in pairwise(ends)]

        return Traced(function([p.result for p in parts], *args[1:], **kwargs), parts, backward)

    def _sigmoid(self) -> "Traced":
        half = self.dtype.type(0.5)
        return Traced(self.result._sigmoid(), [half * (1 + np.tanh(half * self))], lambda g: [g])

    def _erf(self) -> "Traced":
        slope = erf_slope(self.result)
        return Traced(self.result._erf(), [self], lambda g: [g * slope])

    def _step_factors(self) -> "Traced":
        factors = self.result._step_factors()
        return Traced(factors, [self], lambda g: [factors * g])

    def _decayed_state(self, factors: "Traced") -> "Traced":
        decayed: Traced = factors * self
        decayed.result.scale = self.result._decayed_state(factors.result).scale
        return decayed

    def _written_state(self, product: "Traced") -> "Traced":
        written: Traced = self + product
        written.result.scale = self.result._written_state(product.result).scale
        return written

    def _softmax(self, softmax: Softmax) -> "Traced":
        weights = self.result._softmax(softmax)
        p, equal = weights.precision, weights.own_terms.count
        # Backward kernels recompute the weights as exp(e − L), with the stored L, the logarithm of the sum, and with
        # scores e that they sum in another order than the forward kernel.
        units = np.sqrt(1 + 2 * 0.25 * self.terms)
        stored = units * p.accumulation * np.abs(self.result.value).max(-1, keepdims=True, initial=0.0)
        recomputed = (weights.value * stored).astype(np.float64) ** 2
        common, variance = weights.common, weights.error**2
        if weights.common_errors:
            of_sums = weights.variance_of_running_sums
            common, variance = common + of_sums, variance + of_sums * as_double(weights.value) ** 2
        error = np.sqrt(variance + recomputed)
        weights = weights._computed(weights.value, error, weights=weights.weights, common=common)
        summed = weights
        if equal > 1 and weights.common_errors:
            # Equal weights have equal errors, which a sum over the keys adds linearly, not in quadrature.
            own = statistical_weights(softmax, self.result.error, p, common=False)[1].astype(np.float64)
            variance = variance + (equal - 1) * own**2 + equal * recomputed
            summed = weights._computed(weights.value, np.sqrt(variance))

        def backward(g: Statistical) -> Sequence[Statistical]:
            inner = (summed * g).sum(-1, keepdims=True)
            # All weights of a row share the error of their sum. A later sum over the keys adds it linearly.
            shared = common * (inner.value**2).astype(np.float64)
            alpha = np.abs(weights.value).astype(np.float64)
            effective_keys = 1 / np.maximum((alpha**2).sum(-1, keepdims=True), 2.0**-60)
            of_row = np.maximum(inner.error**2, g.of_row_sums) + shared
            linear = alpha * np.sqrt(of_row * np.maximum(effective_keys, 1.0))
            back = summed * (g - inner._computed(inner.value, np.zeros(())))
            back = back._computed(back.value, np.sqrt(back.error**2 + linear**2))
            return [_unbroadcast(back, self.shape)]

        return Traced(weights, [self], backward)

    def _log_sum_exp(self, softmax: Softmax) -> "Traced":
        weights, logarithms = self._softmax(softmax).result, self.result._log_sum_exp(softmax)
        return Traced(logarithms, [self], lambda g: [_unbroadcast(weights * g[..., None], self.shape)])

    def _log_softmax(self, softmax: Softmax) -> "Traced":
        logarithms, weights = self.result._log_softmax(softmax), self.result._softmax(softmax)
        # Backward kernels compute the weights as exp of the stored logarithms.
        error = np.hypot(weights.error, (weights.value * logarithms.error).astype(np.float64))
        weights = weights._computed(weights.value, error)
        return Traced(logarithms, [self], lambda g: [g - weights * g.sum(-1, keepdims=True)])


def _unbroadcast(g: Statistical, shape: tuple[int, ...]) -> Statistical:
    """Sum a gradient over the dimensions along which broadcasting repeated the array."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    p = g.precision
    if p.term and not g.is_input:
        # Implementations store the gradients of single batch elements before they sum them.
        rounding = (0.6 * p.term * g.value).astype(np.float64) ** 2 + p.weights_smallest**2
        g = g._computed(g.value, np.sqrt(g.error**2 + rounding), scale=g.scale)
    if extra:
        g = g.sum(axis=tuple(range(extra)))
    repeated = tuple(i for i, (have, want) in enumerate(zip(g.shape, shape, strict=True)) if want == 1 != have)
    return g.sum(axis=repeated, keepdims=True) if repeated else g


def _elementwise(
    *parts: Callable[[Statistical, Statistical, Sequence[Statistical]], Statistical],
) -> Callable[..., Backward]:
    """Make a gradient rule from one function per operand, of incoming gradient, result and operands."""

    def rule(result: Statistical, *operands: Statistical) -> Backward:
        return lambda g: [
            _unbroadcast(part(g, result, operands), x.shape) for part, x in zip(parts, operands, strict=True)
        ]

    return rule


def _of_right(a: Statistical, b: Statistical, g: Statistical) -> Statistical:
    """Gradient of b in a @ b. If a batch shares b, the larger error of two summation orders counts."""
    right = _unbroadcast(a.swapaxes(-1, -2) @ g, b.shape)
    if b.ndim > 2 or a.ndim == 2 or a.shape[:-1] != g.shape[:-1]:
        return right
    rows = prod(g.shape[:-1])
    over_all_rows = a.reshape(rows, a.shape[-1]).swapaxes(0, 1) @ g.reshape(rows, g.shape[-1])
    return g._computed(right.value, np.maximum(right.error, over_all_rows.error), scale=right.scale)


def _maximum(result: Statistical, a: Statistical, b: Statistical) -> Backward:
    """Pass the gradient to the larger operand, to neither if equal; its error covers both where errors decide."""
    either = np.abs(a.value - b.value) <= MARGIN * (a.error + b.error)
    either &= (a.error > 0) | (b.error > 0)

    def part(g: Statistical, larger: Numbers) -> Statistical:
        chosen = g.chosen(larger, g.dtype.type(0))
        error = np.where(either, np.maximum(chosen.error, np.abs(g.value).astype(np.float64)), chosen.error)
        return g._computed(chosen.value, error)

    return lambda g: [
        _unbroadcast(part(g, a.value > b.value), a.shape),
        _unbroadcast(part(g, b.value > a.value), b.shape),
    ]


def _matmul(result: Statistical, a: Statistical, b: Statistical) -> Backward:
    if a.ndim == 1:
        of_row = _matmul(result[None], a[None], b)

        def backward_of_row(g: Statistical) -> Sequence[Statistical | None]:
            left, right = of_row(g[None])
            return [None if left is None else left[0], right]

        return backward_of_row
    if b.ndim == 1:
        of_matrix = _matmul(result[..., None], a, b[:, None])

        def backward_of_vector(g: Statistical) -> Sequence[Statistical | None]:
            left, right = of_matrix(g[..., None])
            return [left, None if right is None else right[:, 0]]

        return backward_of_vector

    def backward(g: Statistical) -> Sequence[Statistical]:
        left = g @ b.swapaxes(-1, -2)
        if a.weights is not None:
            # Backward kernels compute Σ α·dα of a row as dO·O, from the stored output O.
            p = g.precision
            storage_variance = (0.6 * p.output * g.value * result.value) ** 2 + (p.output_smallest * g.value) ** 2
            storage_variance = storage_variance.sum(-1, keepdims=True)
            # The errors of O belong to the row: no number of equal keys multiplies them.
            errors = result.error if result.common_errors else np.zeros(result.shape)
            of_row_sums = (as_double(g.value) ** 2 * errors**2).sum(-1, keepdims=True)
            error = np.sqrt(left.error**2 + storage_variance.astype(np.float64))
            left = left._computed(left.value, error, of_row_sums=of_row_sums)
        return [_unbroadcast(left, a.shape), _of_right(a, b, g)]

    return backward


# Gradients of the operands x, from the gradient g of the result r.
_RULES: Mapping[Any, Callable[..., Backward]] = {
    np.add: _elementwise(lambda g, r, x: g, lambda g, r, x: g),
    np.subtract: _elementwise(lambda g, r, x: g, lambda g, r, x: -g),
    np.multiply: _elementwise(lambda g, r, x: g * x[1], lambda g, r, x: g * x[0]),
    np.divide: _elementwise(lambda g, r, x: g / x[1], lambda g, r, x: -(g * r) / x[1]),
    np.negative: _elementwise(lambda g, r, x: -g),
    np.square: _elementwise(lambda g, r, x: 2 * g * x[0]),
    np.sqrt: _elementwise(lambda g, r, x: g / (2 * r)),
    np.exp: _elementwise(lambda g, r, x: g * r),
    np.tanh: _elementwise(lambda g, r, x: g * (1 - np.square(r))),
    np.sin: _elementwise(lambda g, r, x: g * np.cos(x[0])),
    np.cos: _elementwise(lambda g, r, x: -(g * np.sin(x[0]))),
    np.maximum: _maximum,
    np.matmul: _matmul,
}
