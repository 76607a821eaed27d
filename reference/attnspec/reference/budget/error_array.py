"""Base class of NumPy duck arrays that carry an error with every number.

A formula of the reference, called with such arrays, returns its result *and* the error of each element. One mechanism,
NumPy's dispatch protocols, serves every operation. :class:`~attnspec.reference.budget.statistical.Statistical` carries
a standard deviation, :class:`~attnspec.reference.budget.rigorous.Rigorous` a rigorous bound.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from attnspec.reference.budget.numbers import (
    COMPARISONS,
    DOUBLE,
    JOINS,
    MOVES,
    EqualTerms,
    Numbers,
    Softmax,
    as_double,
    attendable_softmax,
    counting,
)
from attnspec.reference.defining.duck_array import DuckArray
from attnspec.reference.normalization import sigmoid
from attnspec.reference.selected import highest
from attnspec.spec.contract.precision import Precision

WIDTH = 8.0
"""Standard deviations in a statistical budget."""

UNKNOWN = 1e100
"""An unknown error, where first-order propagation fails. It is finite so that its product with 0 is 0."""

CHUNK = 64
"""Largest number of steps of a recurrence that known implementations compute together."""

MARGIN = 8.0
"""Errors by which two numbers may differ while rounding can still exchange their order."""


@dataclass
class Extremes:
    """The largest values of one computation, updated by all of its arrays.

    ``peak`` is the largest magnitude that an intermediate may reach; :class:`Rigorous` arrays update it. ``level`` is
    the largest error that the weights of a row share; :class:`Statistical` arrays update it.
    """

    peak: float = 0.0
    level: float = 0.0


def operators(ufunc: Any) -> tuple[Any, Any]:
    """Return the left and right methods of an operator: NumPy's mixin is slower, with the same results."""

    def left(self: "Approximate", other: Any) -> Any:
        b = other if type(other) is type(self) else self._wrap(other)
        return self._applied(ufunc, ufunc(self.value, b.value), (self, b))

    def right(self: "Approximate", other: Any) -> Any:
        a = self._wrap(other)
        return self._applied(ufunc, ufunc(a.value, self.value), (a, self))

    return left, right


class Approximate(DuckArray):
    """Numbers with their errors and the precision class in which they are computed.

    ``is_input`` marks inputs, which are exact. ``scale`` holds the magnitudes of intermediates where these are larger
    than the numbers, or a function that computes them: a small tanh may still come from numbers near 1. ``weights`` is
    set on attention weights and holds the errors that pooling needs; ``common`` is the variance of the relative error
    that all weights of a row share. ``factors`` holds the two inputs of a product: multiplied by a third, either
    product may come first. ``of_row_sums`` is set on gradients dα of attention weights: the variance of Σ α dα of a
    row, computed as dO·O. ``terms`` is the number of terms of a sum, and 0 elsewhere. ``between`` holds the two
    operands of a difference of which a variance may be computed in one pass. ``equal_terms`` comes from the products
    behind the numbers: equal elements of a product have equal errors, and so have numbers computed from them element by
    element. ``extremes`` is shared by all arrays of one computation.

    A computation makes very many small arrays; attributes that are rarely set stay on the class to save time.
    """

    __array_priority__ = 1000

    sum_units = 1.0
    """Error of a sum of decays, in unit roundoffs of the sum of magnitudes."""

    is_input: bool = False
    weights: Any = None
    common: Numbers | float = 0.0
    of_row_sums: Numbers | float = 0.0
    factors: tuple[Self, Self] | None = None
    terms: int = 0
    between: tuple[Self, Self] | None = None
    equal_terms: frozenset[EqualTerms] = frozenset()
    _scale: Numbers | Callable[[], Numbers] | None = None
    _magnitude: Numbers | None = None
    _squares: Numbers | None = None
    _has_errors: bool | None = None

    def __init__(
        self, value: Any, error: Any, precision: Precision, *, is_input: bool = False, extremes: Extremes | None = None
    ) -> None:
        self.value = np.asarray(value)
        error = np.asarray(error, dtype=np.float64)
        if error.shape != self.value.shape:
            self._has_errors = bool(error.any())
            error = np.full(self.value.shape, error) if self._has_errors else np.zeros(self.value.shape)
        self.error = error
        self.precision = precision
        self.is_input = is_input
        self.extremes = Extremes() if extremes is None else extremes

    __add__, __radd__ = operators(np.add)
    __sub__, __rsub__ = operators(np.subtract)
    __mul__, __rmul__ = operators(np.multiply)
    __truediv__, __rtruediv__ = operators(np.true_divide)
    __matmul__, __rmatmul__ = operators(np.matmul)

    # Shape, moves and sums ---------------------------------------------------------------------------------------

    @property
    def scale(self) -> Numbers | None:
        """Magnitudes of the intermediates, where these are larger than the numbers."""
        if callable(self._scale):
            self._scale = self._scale()
        return self._scale

    @scale.setter
    def scale(self, scale: Numbers | Callable[[], Numbers] | None) -> None:
        """Set the magnitudes, or a function that computes them at first use."""
        self._scale = scale

    @property
    def T(self) -> Self:
        """The transpose."""
        return self._move(lambda x: x.T)

    def __getitem__(self, index: Any) -> Self:
        return self._move(lambda x: x[index])

    def reshape(self, *shape: Any) -> Self:
        """Reshape numbers and errors."""
        return self._move(lambda x: x.reshape(*shape))

    def swapaxes(self, first: int, second: int) -> Self:
        """Exchange two axes."""
        return self._move(lambda x: x.swapaxes(first, second))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Sum over axes, with errors."""
        return self._sum(self.value.sum(axis=axis, keepdims=keepdims), axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Average over axes, with errors."""
        total = self.sum(axis, keepdims)
        return self._wrap(total / total.dtype.type(self.value.size // max(total.value.size, 1)))

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Broadcast numbers and errors to a shape."""
        return self._move(lambda x: np.broadcast_to(x, shape))

    def chosen(self, condition: Any, other: Any) -> Self:
        """Select these numbers where the condition holds and ``other`` elsewhere."""
        x, y = self, self._wrap(other)
        value, error = np.where(condition, x.value, y.value), np.where(condition, x.error, y.error)
        return self._with(value, error, is_input=x.is_input and y.is_input, equal_terms=x.equal_terms | y.equal_terms)

    # New arrays of the same computation --------------------------------------------------------------------------

    def _with(self, value: Numbers, error: Numbers, **attributes: Any) -> Self:
        """Return an array of the same computation; ``attributes`` are those that differ from the class's."""
        new = object.__new__(type(self))
        new.value = value if type(value) is np.ndarray else np.asarray(value)
        new.error = error if type(error) is np.ndarray and error.dtype is DOUBLE else np.asarray(error, DOUBLE)
        if new.error.shape != new.value.shape:
            new.error = np.full(new.value.shape, new.error)
        new.precision, new.extremes = self.precision, self.extremes
        for name, x in attributes.items():
            setattr(new, name, x)
        return new

    _computed = _with  # for numbers that were rounded; ``Sample`` overrides it, to add random errors

    def _move(self, move: Callable[[Numbers], Numbers]) -> Self:
        return self._moved(move(self.value), move)

    def _moved(self, value: Numbers, move: Callable[[Numbers], Numbers]) -> Self:
        moved = self._with(value, move(self.error), is_input=self.is_input)
        if self._scale is not None:
            moved.scale = lambda: move(np.asarray(self.scale))
        if self.terms:
            moved.terms = self.terms
        if self.equal_terms:
            moved.equal_terms = self.equal_terms
        if self._has_errors is False:
            moved._has_errors = False
        return moved

    def _joined(self, join: Callable[[Sequence[Numbers]], Numbers], parts: Sequence[Self]) -> Self:
        scaled = any(p._scale is not None for p in parts)
        return self._with(
            join([p.value for p in parts]),
            join([p.error for p in parts]),
            is_input=all(p.is_input for p in parts),
            scale=join([p.magnitude_in_sums for p in parts]) if scaled else None,
            equal_terms=frozenset().union(*(p.equal_terms for p in parts)),
        )

    def _counted(self, x: Numbers) -> Self:
        """Wrap integers that the formula counts with, such as positions; they are exact."""
        return type(self)(x, 0.0, counting(self.precision), is_input=True, extremes=self.extremes)

    def _wrap(self, x: Any) -> Self:
        if isinstance(x, type(self)):
            return x
        value = np.asarray(x)
        return self._with(value, np.zeros(value.shape), is_input=True)

    @property
    def magnitude(self) -> Numbers:
        """Magnitudes of the numbers, in double precision."""
        if self._magnitude is None:
            self._magnitude = np.abs(as_double(self.value))
        return self._magnitude

    @property
    def magnitude_in_sums(self) -> Numbers:
        """Magnitudes to which the rounding errors of a sum are relative: the larger of value and ``scale``."""
        scale = self.scale
        return self.magnitude if scale is None else np.maximum(self.magnitude, scale)

    @property
    def squares_in_sums(self) -> Numbers:
        """Squares of ``magnitude_in_sums``."""
        if self._squares is None:
            self._squares = as_double(self.value) ** 2 if self._scale is None else self.magnitude_in_sums**2
        return self._squares

    def other_order(self, b: Self) -> tuple[Numbers, Numbers] | None:
        """Return |x| and |wb| for a product (xw)b, for its order x(wb).

        None unless x, w and b are inputs. None, too, if computed operands are not rounded: the order then does not
        matter.
        """
        if self.factors is None or not b.is_input or not self.precision.operand:
            return None
        x, w = self.factors
        return np.abs(x.value).astype(np.float64), np.abs(w.value @ b.value).astype(np.float64)

    @property
    def has_errors(self) -> bool:
        """True if any of the numbers has an error."""
        if self._has_errors is None:
            self._has_errors = bool(np.count_nonzero(self.error))
        return self._has_errors

    @property
    def operand_rounding(self) -> float:
        """Unit roundoff of this array as an operand of a product."""
        if self.is_input:
            return self.precision.inputs
        return self.precision.weights if self.weights is not None else self.precision.operand

    def storage_rounding(self, *factors: Self) -> float:
        """Unit roundoff of storing a factor computed from integers; 0 if there is none."""
        return self.precision.stored if any(x.precision is not self.precision for x in factors) else 0.0

    @property
    def weight_errors(self) -> Numbers:
        """Largest rounding error of each weight in 8 bits or fewer: half a step, and not more than the weight."""
        step = self.precision.weights_scaled * self.magnitude.max(-1, keepdims=True, initial=0.0)
        errors: Numbers = np.minimum(step, self.magnitude)
        return errors

    @property
    def operand_step(self) -> float:
        """Half the smallest step of this array's format as an operand of a product."""
        p = self.precision
        if p.scaled and self.weights is None:
            return p.scaled * float(np.max(self.magnitude, where=np.isfinite(self.magnitude), initial=0.0))
        return p.inputs_smallest if self.is_input else p.weights_smallest if p.operand else 0.0

    # NumPy's protocols -------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc is np.add:
            (x,) = inputs
            return x.sum(kwargs.get("axis"), kwargs.get("keepdims", False))
        if method != "__call__":
            return NotImplemented
        if ufunc in COMPARISONS:
            return ufunc(*(x.value if isinstance(x, Approximate) else x for x in inputs))
        if not self._rules(ufunc):
            return NotImplemented
        kind = type(self)
        operands = [x if type(x) is kind else self._wrap(x) for x in inputs]
        return self._applied(ufunc, ufunc(*[x.value for x in operands]), operands)

    def _rules(self, ufunc: Any) -> bool:
        """Return whether a NumPy function has an error rule here."""
        return hasattr(self, f"_{ufunc.__name__}")

    def _applied(self, ufunc: Any, value: Numbers, operands: Sequence[Self]) -> Self:
        """Return ``value``, the result of a NumPy function, with the errors that its rule derives."""
        # Numbers counted from integers have a class of their own (`counting`); the other operand's class rounds.
        rounding = self
        if len(operands) == 2 and operands[0].precision is not operands[1].precision:
            rounding = next(x for x in operands if x.precision is not counting(x.precision))
        result: Self = getattr(rounding, f"_{ufunc.__name__}")(value, *operands)
        if ufunc is not np.matmul:
            for x in operands:
                if x.equal_terms:
                    result.equal_terms |= x.equal_terms
        return result

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function in MOVES:
            return args[0]._move(lambda x: function(x, *args[1:], **kwargs))
        if function in JOINS:
            parts = [self._wrap(x) for x in args[0]]
            return self._joined(lambda x: function(x, *args[1:], **kwargs), parts)
        if function is np.where:
            return self._wrap(args[1]).chosen(args[0], args[2])
        if function in (np.sum, np.mean):
            x, *options = args
            return (x.sum if function is np.sum else x.mean)(*options, **kwargs)
        if function is np.asarray:  # np.asarray(integers, like=self)
            return self._counted(np.asarray(*args, **kwargs))
        if function in (np.zeros_like, np.ones_like, np.shape, np.ndim):
            return function(args[0].value, **kwargs)
        name = getattr(function, "__name__", "")
        if name in ("softmax", "log_softmax", "log_sum_exp"):
            return getattr(args[0], f"_{name}")(attendable_softmax(args[0].value, kwargs.get("mask")))
        if name in ("greatest", "highest", "sigmoid", "erf", "step_factors", "decayed_state", "written_state"):
            return getattr(args[0], f"_{name}")(*args[1:])
        return NotImplemented

    # Rules of subclasses, and rules that both kinds of error share ------------------------------------------------

    def _sum(self, value: Numbers, axis: Any, keepdims: bool) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for sums")

    def _softmax(self, softmax: Softmax) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for softmax")

    def _log_softmax(self, softmax: Softmax) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for the logarithms of softmax")

    def _log_sum_exp(self, softmax: Softmax) -> Self:
        """Logarithms of rounded sums; a row without attendable keys has −∞, which is exact."""
        value = softmax.summed[..., 0]
        finite = np.isfinite(value)
        rounded = self._summed(np.where(finite, value, 0), softmax)
        return self._computed(value, np.where(finite, rounded.error, 0.0))

    def _summed(self, value: Numbers, softmax: Softmax) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for logarithms of sums of exponentials")

    def _sigmoid(self) -> Self:
        """σ(x) with the errors of (1 + tanh(x/2))/2, the form that many libraries compute."""
        half = self.dtype.type(0.5)
        by_tanh: Self = half * (1 + np.tanh(half * self))
        return by_tanh._with(sigmoid(self.value), by_tanh.error, scale=by_tanh.scale, equal_terms=by_tanh.equal_terms)

    def _erf(self) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for erf")

    def _step_factors(self) -> Self:
        """e^g of every step (…, t, d), from differences of sums of decays."""
        # In place of −∞ implementations may add a number whose exponential is 0: twice the exponent of the least one.
        forgetting = 2 * np.log(self.precision.smallest)
        finite = np.where(np.isfinite(self.value), as_double(self.value), forgetting)
        sums = np.abs(finite).cumsum(-2)
        sums[..., CHUNK:, :] -= sums[..., :-CHUNK, :].copy()
        rounded = self._with(self.value, self.error + self.sum_units * self.precision.accumulation * sums)
        factors: Self = np.exp(rounded)
        return factors

    def _decayed_state(self, factors: Self) -> Self:
        """Product of the state and decay factors; ``scale`` keeps the terms' magnitudes."""
        decayed: Self = factors * self
        decayed.scale = np.abs(as_double(factors.value)) * self.magnitude_in_sums
        return decayed

    def _written_state(self, product: Self) -> Self:
        """Sum of the state and a product; ``scale`` adds their magnitudes."""
        written: Self = self + product
        written.scale = self.magnitude_in_sums + product.magnitude
        return written

    def _greatest(self, count: int, among: Numbers) -> tuple[Numbers, Self]:
        """Indices and values of the greatest; errors are unknown where rounding may change the choice."""
        order = np.argsort(-np.where(among, self.value, -np.inf), axis=-1, kind="stable")
        indices, others = order[..., :count], order[..., count:]
        reach = MARGIN * self.error
        lowest = np.where(among, self.value - reach, np.inf)
        highest = np.where(among, self.value + reach, -np.inf)
        selected_min = np.take_along_axis(lowest, indices, axis=-1).min(-1, keepdims=True, initial=np.inf)
        other_max = np.take_along_axis(highest, others, axis=-1).max(-1, keepdims=True, initial=-np.inf)
        selected = self._move(lambda x: np.take_along_axis(x, indices, axis=-1))
        return indices, self._computed(selected.value, np.where(selected_min <= other_max, UNKNOWN, selected.error))

    def _highest(self, count: int, among: Numbers) -> Self:
        """Mask of the greatest; errors are infinite where a tie, or rounding, leaves the choice open."""
        selected = highest(self.value, count, among)
        low, high = self.value - MARGIN * self.error, self.value + MARGIN * self.error
        least = np.min(np.where(selected, low, np.inf), axis=-1, keepdims=True, initial=np.inf)
        most = np.max(np.where(among & ~selected, high, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
        open_ = among & np.where(selected, low <= most, high >= least)
        return self._computed(selected, np.where(open_, np.inf, 0.0))

    def _maximum(self, value: Numbers, a: Self, b: Self) -> Self:
        # Where errors may exchange the order of a and b, the result may be either, with the larger error.
        either = np.abs(a.value - b.value) <= MARGIN * (a.error + b.error)
        error = np.where(either, np.maximum(a.error, b.error), np.where(a.value >= b.value, a.error, b.error))
        return self._computed(value, error)

    def _negative(self, value: Numbers, a: Self) -> Self:
        return self._with(value, a.error, is_input=a.is_input, scale=a.scale)

    def _positive(self, value: Numbers, a: Self) -> Self:
        return a
