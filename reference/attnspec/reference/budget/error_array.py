"""An array that carries an error with every number, through NumPy's own protocols.

A plain reference function, called with such arrays, returns its result *and* the error of every element of it: one
mechanism for every operation. :class:`~attnspec.reference.budget.soft.Soft` carries a standard deviation,
:class:`~attnspec.reference.budget.hard.Hard` a rigorous bound.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from attnspec.spec.contract.precision import Precision

Numbers = np.ndarray[Any, Any]

# Functions that move numbers without computing: they act on values and errors alike.
_MOVES = frozenset(
    {
        np.swapaxes,
        np.moveaxis,
        np.reshape,
        np.broadcast_to,
        np.expand_dims,
        np.squeeze,
        np.transpose,
        np.repeat,
    }
)
_JOINS = frozenset({np.concatenate, np.stack})
_COMPARES = frozenset(
    {np.isfinite, np.isnan, np.isinf, np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal}
)


class Approximate(np.lib.mixins.NDArrayOperatorsMixin):
    """Numbers, the error of each, and how they may be rounded.

    ``given`` marks inputs, which are exact; ``size`` is what an element counts for in the error of a sum, where that
    is more than its own magnitude (a tanh may be computed through numbers near 1, however small it is).
    ``weights`` is set on attention weights; it holds what pooling needs to know of them, and ``level`` what all weights
    of a row may err alike, relative to each. ``factors`` is set on products of inputs: a product of three may be taken
    in either order. ``peak`` is shared by all arrays of one computation: with rigorous bounds it holds the largest
    magnitude that any intermediate may reach, with standard deviations the largest level.
    """

    ufuncs: ClassVar[Mapping[Any, str]] = {}
    __array_priority__ = 1000

    def __init__(
        self,
        value: Any,
        error: Any,
        precision: Precision,
        *,
        given: bool = False,
        size: Numbers | None = None,
        weights: Any = None,
        level: Numbers | float = 0.0,
        factors: tuple[Self, Self] | None = None,
        peak: list[float] | None = None,
    ) -> None:
        self.value = np.asarray(value)
        error = np.asarray(error, dtype=np.float64)
        self.error = error if error.shape == self.value.shape else np.full(self.value.shape, error)
        self.precision = precision
        self.given = given
        self.size = size
        self.weights = weights
        self.level = level
        self.factors = factors
        self.peak = peak

    # What an array has -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers."""
        return self.value.dtype

    @property
    def T(self) -> Self:
        """The transpose."""
        return self._move(lambda x: x.T)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Self:
        return self._move(lambda x: x[index])

    def reshape(self, *shape: Any) -> Self:
        """The same numbers in another shape."""
        return self._move(lambda x: x.reshape(*shape))

    def swapaxes(self, first: int, second: int) -> Self:
        """Two axes exchanged."""
        return self._move(lambda x: x.swapaxes(first, second))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Sums, with their errors."""
        return self._sum(axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Means, with their errors."""
        total = self._sum(axis, keepdims)
        return self._wrap(total / total.dtype.type(self.value.size // max(total.value.size, 1)))

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Repeated to a shape."""
        return self._move(lambda x: np.broadcast_to(x, shape))

    def chosen(self, condition: Any, other: Any) -> Self:
        """These numbers where the condition holds, the other ones elsewhere."""
        x, y = self, self._wrap(other)
        return type(self)(
            np.where(condition, x.value, y.value),
            np.where(condition, x.error, y.error),
            self.precision,
            given=x.given and y.given,
            peak=self.peak,
        )

    # Making new ones ---------------------------------------------------------------------------------------------

    def _computed(self, value: Numbers, error: Numbers, **more: Any) -> Self:
        return type(self)(value, error, self.precision, peak=self.peak, **more)

    def _move(self, move: Callable[[Numbers], Numbers]) -> Self:
        size = None if self.size is None else move(self.size)
        return type(self)(
            move(self.value), move(self.error), self.precision, given=self.given, size=size, peak=self.peak
        )

    def _wrap(self, x: Any) -> Self:
        if isinstance(x, type(self)):
            return x
        return type(self)(x, 0.0, self.precision, given=True, peak=self.peak)

    @property
    def charged(self) -> Numbers:
        """The magnitude that counts in the error of a sum."""
        magnitude: Numbers = np.abs(self.value).astype(np.float64, copy=False)
        return magnitude if self.size is None else np.maximum(magnitude, self.size)

    def other_order(self, b: Self) -> tuple[Numbers, Numbers] | None:
        """For a product of inputs times an input, (xw)b: the magnitudes of x and of wb, which may be computed first.

        None where that changes nothing, because what is computed is not rounded as an operand, or is no such product.
        """
        if self.factors is None or not b.given or not self.precision.operand:
            return None
        x, w = self.factors
        return np.abs(x.value).astype(np.float64), np.abs(w.value @ b.value).astype(np.float64)

    @property
    def operand_rounding(self) -> float:
        """The unit roundoff with which this array enters a product."""
        if self.given:
            return self.precision.inputs
        return self.precision.weights if self.weights is not None else self.precision.operand

    # NumPy's protocols -------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc is np.add:
            (x,) = inputs
            return x._sum(kwargs.get("axis"), kwargs.get("keepdims", False))
        if method != "__call__":
            return NotImplemented
        if ufunc in _COMPARES:
            return ufunc(*(x.value if isinstance(x, Approximate) else x for x in inputs))
        rule = getattr(self, f"_{ufunc.__name__}", None)
        if rule is None:
            return NotImplemented
        return rule(*(self._wrap(x) for x in inputs))

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function in _MOVES:
            return args[0]._move(lambda x: function(x, *args[1:], **kwargs))
        if function in _JOINS:
            parts = [self._wrap(x) for x in args[0]]
            sizes = None
            if any(p.size is not None for p in parts):
                sizes = function([p.charged for p in parts], *args[1:], **kwargs)
            return type(self)(
                function([p.value for p in parts], *args[1:], **kwargs),
                function([p.error for p in parts], *args[1:], **kwargs),
                self.precision,
                given=all(p.given for p in parts),
                size=sizes,
                peak=self.peak,
            )
        if function is np.where:
            return self._wrap(args[1]).chosen(args[0], args[2])
        if function in (np.sum, np.mean):
            x, *rest = args
            return (x.sum if function is np.sum else x.mean)(*rest, **kwargs)
        if function in (np.zeros_like, np.ones_like):
            return function(args[0].value, **kwargs)
        if function in (np.shape, np.ndim):
            return function(args[0].value)
        if getattr(function, "__name__", "") == "softmax":
            return args[0]._softmax(kwargs.get("mask"))
        return NotImplemented

    # What the two kinds of error differ in -----------------------------------------------------------------------

    def _sum(self, axis: Any, keepdims: bool) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for sums")

    def _softmax(self, mask: Numbers | None) -> Self:
        raise TypeError(f"{type(self).__name__} has no rule for softmax")

    def _maximum(self, a: Self, b: Self) -> Self:
        return self._computed(np.maximum(a.value, b.value), np.where(a.value >= b.value, a.error, b.error))

    def _negative(self, a: Self) -> Self:
        return a._move(np.negative) if a.size is None else self._computed(-a.value, a.error, size=a.size)

    def _positive(self, a: Self) -> Self:
        return a


def attendable_softmax(scores: Numbers, mask: Numbers | None) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Weights, the scores minus their maximum, the mask in full, and |log Σ exp|; masked scores count nowhere.

    The last is 0 for a row whose sum is 1: the logarithm of a single exponential is exact.
    """
    shape = scores.shape if mask is None else np.broadcast_shapes(mask.shape, scores.shape)
    attendable = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
    scores = np.broadcast_to(scores, shape)
    masked = np.where(attendable, scores, -np.inf)
    top = np.max(masked, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    shifted = np.where(attendable, masked - top, 0)
    exponentials = np.where(attendable, np.exp(shifted), 0)
    total = exponentials.sum(-1, keepdims=True)
    total = np.where(total > 0, total, 1)
    logarithm = np.where(total == 1, 0.0, np.abs(top + np.log(total)).astype(np.float64))
    return exponentials / total, shifted, attendable, logarithm
