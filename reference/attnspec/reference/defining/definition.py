"""The decorator that turns a formula into the checked reference of an operation.

``@defines(DotScores[np.ndarray])`` decorates a function that is the formula and nothing else. mypy checks its signature
against the Protocol. Every call is checked against the Protocol's shapes. The docstring is completed to the
documentation of the operation. The bare formula is ``__wrapped__``; :data:`REFERENCE` lists the checked functions.
"""

import operator
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import ml_dtypes
import numpy as np
from typing_extensions import TypeForm

from attnspec.spec.contract.documentation import documentation, operation_of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.shapes import Binding, ShapeError, bind, in_words
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, StructureError, flatten, map_tree, pair_leaves

F = TypeVar("F")

_REFERENCE: dict[str, Callable[..., Any]] = {}
REFERENCE: Mapping[str, Callable[..., Any]] = MappingProxyType(_REFERENCE)
"""The reference of every operation, by its name in the contract."""

_ON_DUCK_ARRAYS: ContextVar[bool] = ContextVar("on_duck_arrays", default=False)
"""True while a formula runs on duck arrays. References that it calls are then not checked: their shapes follow from
shapes already checked, and NumPy cannot convert duck arrays."""

_COMPUTABLE = frozenset(np.dtype(t) for t in (np.float64, np.float32, np.longdouble))
_NARROW = frozenset(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))


class _Defines(Generic[F]):
    def __init__(self, protocol: Any) -> None:
        operation = operation_of(protocol)
        if operation is None or typing.get_origin(protocol) is None:
            raise ValueError(f"defines: expected the Protocol of an operation with its array type; got {protocol!r}")
        self.operation = operation

    def __call__(self, formula: F) -> F:
        if getattr(formula, "__name__", None) != self.operation.name:
            raise ValueError(f"defines: expected a function with the name {self.operation.name}; got {formula!r}")
        checked: Any = _checked(self.operation, typing.cast(Callable[..., Any], formula))
        checked.__doc__ = documentation(
            self.operation, getattr(formula, "__doc__", None), misfit="ShapeError", kind="TypeError"
        )
        _REFERENCE[self.operation.name] = checked
        return typing.cast(F, checked)


def defines(protocol: TypeForm[F]) -> _Defines[F]:
    """Make a formula the reference of its Protocol's operation: ``@defines(DotScores[np.ndarray])``.

    Arguments: arrays, lists, numbers, and trees of these. Float arrays keep their dtype; mixed dtypes are promoted as
    by NumPy; lists, numbers and integers become float64. A duck array (one with ``shape`` and ``__array_ufunc__``) is
    passed on unchanged, so that a formula can run in other arithmetics.
    Errors: ``ShapeError`` for a shape, size, length or index that violates the Protocol, ``TypeError`` for an argument
    of the wrong kind; both name operation, argument, expected and got. NaN and ∞ are valid results: NumPy's warnings
    are off.
    """
    return _Defines(protocol)


def _checked(operation: Operation, formula: Callable[..., Any]) -> Callable[..., Any]:
    names = operation.call.names
    positional = tuple(name for name in names if name not in operation.keyword_only)
    required = tuple(name for name in names if name not in operation.defaults)
    nodes = dict(zip(names, operation.call.nodes, strict=True))

    @wraps(formula)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if _ON_DUCK_ARRAYS.get():
            return formula(*args, **kwargs)
        arguments = dict(zip(positional, args, strict=False))
        arguments.update(kwargs)
        if len(arguments) != len(args) + len(kwargs) or not nodes.keys() >= arguments.keys() >= set(required):
            formula(*args, **kwargs)  # raises what any call with these arguments raises
        arrays: list[Any] = []
        values = {name: _converted(operation, nodes[name], value, arrays) for name, value in arguments.items()}
        _check_ranges(operation, values, bind(operation, values))
        token = _ON_DUCK_ARRAYS.set(any(_is_duck_array(x) for x in arrays))
        try:
            with np.errstate(all="ignore"):
                required_values = [values.pop(name) for name in required]  # only optional arguments remain in `values`
                result = formula(*required_values, **values)
        finally:
            _ON_DUCK_ARRAYS.reset(token)
        return _copied_result(result, [x for x in arrays if getattr(x, "dtype", None) is not None])

    return checked


def _check_ranges(operation: Operation, values: Mapping[str, Any], binding: Binding) -> None:
    """Raise ``ShapeError`` for a length or index out of range, or decreasing sequence ends."""
    bounds = {path: (0, binding.number(size)) for path, size in operation.lengths.items()}
    bounds |= {path: (0, binding.number(size) - 1) for path, size in operation.indices.items()}
    bounds |= {path: (-1, binding.number(size) - 1) for path, size in operation.selections.items()}
    arguments = flatten(dict(values)) if bounds or operation.cumulative else {}
    for path, (least, largest) in bounds.items():
        if arguments.get(path) is not None:
            integers = np.asarray(arguments[path])
            outside = integers[(integers < least) | (integers > largest)]
            if outside.size:
                raise ShapeError(operation.name, path, f"{path} in {least}..{largest}", outside.flat[0])
    for path, size in operation.cumulative.items():
        ends, largest = np.asarray(arguments[path]), binding.number(size)
        if ends[0] != 0 or ends[-1] != largest or (ends[1:] < ends[:-1]).any():
            raise ShapeError(operation.name, path, f"integers from 0 to {largest}, never falling", ends.tolist())


def _converted(operation: Operation, node: Node, value: Any, arrays: list[Any]) -> Any:
    """Convert the arrays of an argument; append its float arrays, unconverted, to ``arrays``."""
    if not isinstance(node, Branch):
        if node.kind is Kind.FLOAT:
            arrays.append(value)
        return _convert(operation, node, value)
    try:
        leaves = {leaf.path: (leaf, x) for leaf, x in pair_leaves(node, value, node.path)}
    except StructureError as error:
        raise TypeError(f"{operation.name}: {error}") from None
    arrays += [x for leaf, x in leaves.values() if leaf.kind is Kind.FLOAT]

    def convert(path: str, x: Any) -> Any:
        return _convert(operation, leaves[path][0], x) if path in leaves else x

    return map_tree(value, convert, node.path)


def _copied_result(result: Any, floats: list[Any]) -> Any:
    """Give results their own memory, and a 16-bit dtype if all float arguments share it.

    NumPy has no matrix product in bfloat16, and float16 holds no count above 65,504. Formulas on 16-bit arguments are
    therefore computed in float32 and rounded once, here.
    """
    dtypes = {x.dtype.newbyteorder("=") for x in floats}
    narrow_dtype = dtypes.pop() if len(dtypes) == 1 and dtypes <= _NARROW else None

    def finish(path: str, x: Any) -> Any:
        if isinstance(x, np.generic):
            x = np.asarray(x)
        if isinstance(x, np.ndarray) and (x.base is not None or any(x is argument for argument in floats)):
            x = x.copy()  # a view, perhaps of an argument, or the argument itself
        return x.astype(narrow_dtype) if narrow_dtype and isinstance(x, np.ndarray) and x.dtype.kind == "f" else x

    return map_tree(result, finish) if isinstance(result, tuple) else finish("", result)


def _is_duck_array(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "__array_ufunc__") and hasattr(value, "shape")


def _wrong_kind(operation: Operation, argument: Leaf | Option, expected: str, got: object) -> TypeError:
    return TypeError(f"{operation.name}: {argument.path}: expected {expected}; got {got}")


def _array(operation: Operation, argument: Leaf, expected: str, value: Any) -> np.ndarray:
    if value is None:
        raise _wrong_kind(operation, argument, expected, type(value).__name__)
    try:
        return np.asarray(value)
    except ValueError as error:  # a list of lists of different lengths
        raise _wrong_kind(operation, argument, expected, f"{type(value).__name__} of uneven lengths") from error


def _convert(operation: Operation, argument: Leaf | Option, value: Any) -> Any:
    """Convert one array or option for the formula; ``TypeError`` if it is of the wrong kind."""
    return None if value is None and argument.optional else _CONVERSIONS[argument.kind](operation, argument, value)


def _floats(operation: Operation, argument: Leaf, value: Any) -> Any:
    if type(value) is not np.ndarray:
        if _is_duck_array(value):
            return value
        value = _array(operation, argument, "real numbers", value)
    dtype = value.dtype.newbyteorder("=")
    if dtype in _NARROW:
        return value.astype(np.float32)
    if dtype in _COMPUTABLE:
        return value.astype(dtype, copy=False)
    if dtype.kind in "iu":
        return value.astype(np.float64)
    raise _wrong_kind(operation, argument, "real numbers", value.dtype)


def _bools(operation: Operation, argument: Leaf, value: Any) -> Any:
    array = _array(operation, argument, "booleans", value)
    if array.dtype != np.bool_:
        raise _wrong_kind(operation, argument, "booleans, True = may attend", array.dtype)
    return array


def _integers(operation: Operation, argument: Leaf, value: Any) -> Any:
    array = _array(operation, argument, "integers", value)
    if array.dtype.kind not in "iu":
        raise _wrong_kind(operation, argument, "integers", array.dtype)
    return array


def _integer(operation: Operation, argument: Option, value: Any) -> Any:
    if not isinstance(value, bool | np.bool_):
        with suppress(TypeError):
            return operator.index(value)
    raise _wrong_kind(operation, argument, "an integer", in_words(value))


def _option(operation: Operation, argument: Option, value: Any) -> Any:
    value = bool(value) if isinstance(value, np.bool_) else value
    if not argument.takes(value):
        raise _wrong_kind(operation, argument, argument.expected, in_words(value))
    return value


_CONVERSIONS: Mapping[Kind, Callable[[Operation, Any, Any], Any]] = {
    Kind.FLOAT: _floats,
    Kind.BOOL: _bools,
    Kind.INT: _integers,
    Kind.SIZE: _integer,
    Kind.COUNT: _integer,
    Kind.NUMBER: _option,
    Kind.CHOICE: _option,
    Kind.WINDOW: _option,
}
