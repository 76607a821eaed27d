"""Reverse-mode gradients of NumPy formulas: arrays that record their computation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnspec.spec.contract.tree import flatten

Numbers = np.ndarray[Any, Any]
Backward = Callable[[Numbers], Sequence[Numbers]]


class Tape(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with its operands and the function that passes gradients back to them."""

    __array_priority__ = 1000

    def __init__(self, value: Any, parents: Sequence["Tape"] = (), backward: Backward | None = None) -> None:
        self.value: Numbers = np.asarray(value)
        self.parents, self.backward = tuple(parents), backward

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.value.size

    @property
    def dtype(self) -> Any:
        """The dtype of the array."""
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> "Tape":
        def backward(g: Numbers) -> Sequence[Numbers]:
            whole = np.zeros(self.shape, g.dtype)
            np.add.at(whole, index, g)
            return [whole]

        return Tape(self.value[index], [self], backward)

    def reshape(self, *shape: Any) -> "Tape":
        """The array in another shape."""
        return Tape(self.value.reshape(*shape), [self], lambda g: [g.reshape(self.shape)])

    def swapaxes(self, first: int, second: int) -> "Tape":
        """Two dimensions exchanged."""
        return Tape(self.value.swapaxes(first, second), [self], lambda g: [g.swapaxes(first, second)])

    def astype(self, dtype: Any) -> "Tape":
        """The array converted to a dtype; the gradient ignores the rounding."""
        return Tape(self.value.astype(dtype), [self], lambda g: [g.astype(self.dtype)])

    def copy(self) -> "Tape":
        """A copy."""
        return Tape(self.value.copy(), [self], lambda g: [g])

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Tape":
        """Sums along axes."""
        total, shape = self.value.sum(axis=axis, keepdims=keepdims), self.value.sum(axis=axis, keepdims=True).shape
        return Tape(total, [self], lambda g: [np.broadcast_to(g.reshape(shape), self.shape)])

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Tape":
        """Means along axes."""
        total = self.sum(axis, keepdims)
        mean: Tape = total / total.dtype.type(self.size / max(total.size, 1))
        return mean

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc is np.add:
            return inputs[0].sum(kwargs.get("axis"), kwargs.get("keepdims", False))
        if method == "__call__" and not kwargs:
            if ufunc in _RULES:
                operands = [x if isinstance(x, Tape) else Tape(x) for x in inputs]
                values = [x.value for x in operands]
                # A Python number takes the dtype of the other operand.
                result = ufunc(*(x.value if isinstance(x, Tape) else x for x in inputs))
                return Tape(result, operands, _RULES[ufunc](result, *values))
            if ufunc in _COMPARISONS:
                return ufunc(*(value_of(x) for x in inputs))
        return NotImplemented

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if function in _REARRANGEMENTS:
            return self._rearranged(function, args, kwargs)
        if function in (np.concatenate, np.stack):
            return _concatenated(function, *args, **kwargs)
        if function is np.where:
            return _selected(*args)
        if function in (np.sum, np.mean):
            return getattr(args[0], function.__name__)(*args[1:], **kwargs)
        if function is np.max:
            # A maximum is only subtracted from scores, where its gradient cancels.
            return np.max(args[0].value, *args[1:], **kwargs)
        if function in (np.shape, np.ndim, np.zeros_like, np.ones_like):
            return function(args[0].value, *args[1:], **kwargs)
        return NotImplemented

    def _rearranged(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Tape":
        x: Tape = args[0]
        indices = function(np.arange(x.size).reshape(x.shape), *args[1:], **kwargs)

        def backward(g: Numbers) -> Sequence[Numbers]:
            whole = np.zeros(x.size, g.dtype)
            np.add.at(whole, indices, g)
            return [whole.reshape(x.shape)]

        return Tape(function(x.value, *args[1:], **kwargs), [x], backward)


def value_of(x: Any) -> Any:
    """The NumPy array of a tape; other arguments unchanged."""
    return x.value if isinstance(x, Tape) else x


def _concatenated(function: Any, arrays: Sequence[Any], axis: int = 0) -> Tape:
    parts = [x if isinstance(x, Tape) else Tape(x) for x in arrays]

    def backward(g: Numbers) -> Sequence[Numbers]:
        if function is np.stack:
            return [np.take(g, i, axis=axis) for i in range(len(parts))]
        return np.split(g, np.cumsum([p.shape[axis] for p in parts])[:-1], axis=axis)

    return Tape(function([p.value for p in parts], axis=axis), parts, backward)


def _selected(condition: Any, x: Any, y: Any) -> Tape:
    mask = value_of(condition)
    value = np.where(mask, value_of(x), value_of(y))
    operands = [v if isinstance(v, Tape) else Tape(v) for v in (x, y)]

    def backward(g: Numbers) -> Sequence[Numbers]:
        zero = np.zeros((), g.dtype)
        first, second = np.where(mask, g, zero), np.where(mask, zero, g)
        return [unbroadcast(first, operands[0].shape), unbroadcast(second, operands[1].shape)]

    return Tape(value, operands, backward)


def unbroadcast(g: Numbers, shape: tuple[int, ...]) -> Numbers:
    """Sum a gradient over the dimensions that broadcasting repeated."""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    repeated = tuple(i for i, (have, want) in enumerate(zip(g.shape, shape, strict=True)) if want == 1 != have)
    return g.sum(axis=repeated, keepdims=True) if repeated else g


def _elementwise(*parts: Callable[..., Numbers]) -> Callable[..., Backward]:
    """Build a backward rule from one function (gradient, result, *operands) per operand.

    A gradient of 0 stays 0 whatever its factor, because masked operands may be NaN.
    """

    def rule(result: Numbers, *operands: Numbers) -> Backward:
        def backward(g: Numbers) -> Sequence[Numbers]:
            return [
                unbroadcast(np.where(g == 0, g, part(g, result, *operands)), np.shape(x))
                for part, x in zip(parts, operands, strict=True)
            ]

        return backward

    return rule


def _matmul(result: Numbers, a: Numbers, b: Numbers) -> Backward:
    def backward(g: Numbers) -> Sequence[Numbers]:
        if b.ndim == 1:
            return [unbroadcast(g[..., None] * b, a.shape), np.tensordot(g, a, axes=(range(g.ndim), range(g.ndim)))]
        of_a = _without_zeros(g, np.swapaxes(b, -1, -2))
        of_b = np.swapaxes(_without_zeros(np.swapaxes(g, -1, -2), a), -1, -2)
        return [unbroadcast(of_a, a.shape), unbroadcast(of_b, b.shape)]

    return backward


def _without_zeros(g: Numbers, x: Numbers) -> Numbers:
    """g @ x, where 0 in g contributes 0 even if x is NaN."""
    if np.isfinite(x).all():
        return np.asarray(g @ x)
    terms = g[..., :, :, None] * x[..., None, :, :]
    return np.asarray(np.where(g[..., None] == 0, g.dtype.type(0), terms).sum(-2))


_COMPARISONS = frozenset(
    {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isfinite, np.isinf, np.isnan}
)
_REARRANGEMENTS = frozenset(
    {
        np.broadcast_to,
        np.expand_dims,
        np.flip,
        np.moveaxis,
        np.repeat,
        np.reshape,
        np.roll,
        np.squeeze,
        np.swapaxes,
        np.take,
        np.tile,
        np.transpose,
    }
)
_RULES: Mapping[Any, Callable[..., Backward]] = {
    np.add: _elementwise(lambda g, r, a, b: g, lambda g, r, a, b: g),
    np.subtract: _elementwise(lambda g, r, a, b: g, lambda g, r, a, b: -g),
    np.multiply: _elementwise(lambda g, r, a, b: g * b, lambda g, r, a, b: g * a),
    np.true_divide: _elementwise(lambda g, r, a, b: g / b, lambda g, r, a, b: -g * r / b),
    np.negative: _elementwise(lambda g, r, a: -g),
    np.absolute: _elementwise(lambda g, r, a: g * np.sign(a)),
    np.power: _elementwise(lambda g, r, a, b: g * b * a ** (b - 1), lambda g, r, a, b: g * r * np.log(a)),
    np.square: _elementwise(lambda g, r, a: 2 * g * a),
    np.sqrt: _elementwise(lambda g, r, a: g / (2 * r)),
    np.exp: _elementwise(lambda g, r, a: g * r),
    np.exp2: _elementwise(lambda g, r, a: g * r * a.dtype.type(np.log(2))),
    np.log: _elementwise(lambda g, r, a: g / a),
    np.sin: _elementwise(lambda g, r, a: g * np.cos(a)),
    np.cos: _elementwise(lambda g, r, a: -g * np.sin(a)),
    np.tanh: _elementwise(lambda g, r, a: g * (1 - r * r)),
    np.sign: _elementwise(lambda g, r, a: np.zeros_like(g)),
    np.floor: _elementwise(lambda g, r, a: np.zeros_like(g)),
    np.rint: _elementwise(lambda g, r, a: np.zeros_like(g)),
    np.maximum: _elementwise(lambda g, r, a, b: g * (a >= b), lambda g, r, a, b: g * (b > a)),
    np.minimum: _elementwise(lambda g, r, a, b: g * (a <= b), lambda g, r, a, b: g * (b < a)),
    np.matmul: _matmul,
}


def gradients(result: Any, inputs: Mapping[str, Tape], cotangent: Any) -> dict[str, Numbers]:
    """Gradients of ⟨cotangent, result⟩ by input; a cotangent None contributes nothing."""
    gradients_by_id: dict[int, Numbers] = {}
    roots = []
    weights = flatten(cotangent)
    for path, node in flatten(result).items():
        if isinstance(node, Tape) and weights[path] is not None:
            roots.append(node)
            _add(gradients_by_id, node, weights[path])
    for node in reversed(_topological_order(roots)):
        g = gradients_by_id.get(id(node))
        if node.backward is None or g is None:
            continue
        for parent, part in zip(node.parents, node.backward(g), strict=True):
            _add(gradients_by_id, parent, part)
    return {name: gradients_by_id.get(id(x), np.zeros_like(x.value)) for name, x in inputs.items()}


def _add(gradients_by_id: dict[int, Numbers], node: Tape, part: Numbers) -> None:
    gradients_by_id[id(node)] = gradients_by_id[id(node)] + part if id(node) in gradients_by_id else part


def _topological_order(roots: Sequence[Tape]) -> list[Tape]:
    """All arrays that the roots depend on, parents first."""
    order: list[Tape] = []
    seen: set[int] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((p, False) for p in node.parents)
    return order
