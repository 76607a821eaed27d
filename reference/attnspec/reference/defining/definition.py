"""What makes a plain formula the reference of an operation: checked arguments and a name in :data:`REFERENCE`.

``@defines(DotScores[np.ndarray])`` is put on a function that is the formula and nothing else. mypy then checks its
signature against the Protocol, and every call is checked against the Protocol's shapes. The formula itself stays
reachable as ``__wrapped__``.
"""

import inspect
import operator
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import ml_dtypes
import numpy as np
from typing_extensions import TypeForm

from attnspec.spec.contract.operation import OPERATIONS, Argument, Kind, Operation
from attnspec.spec.contract.shapes import bind

F = TypeVar("F")

_REFERENCE: dict[str, Callable[..., Any]] = {}
REFERENCE: Mapping[str, Callable[..., Any]] = MappingProxyType(_REFERENCE)
"""The reference of every operation, by its name in the contract."""

_WITHIN: ContextVar[bool] = ContextVar("within", default=False)
"""Whether a formula runs on arrays of another kind. What it calls in turn is not checked again: shapes follow from
those that were checked, and kinds are left to the arrays."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_COMPUTABLE = frozenset(np.dtype(t) for t in (np.float64, np.float32, np.float16, np.longdouble))


class _Defines(Generic[F]):
    def __init__(self, protocol: Any) -> None:
        origin = typing.get_origin(protocol)
        described = [o for o in OPERATIONS.values() if o.protocol is origin]
        if not described:
            raise ValueError(f"defines: expected the Protocol of an operation with its array type; got {protocol!r}")
        (self.operation,) = described

    def __call__(self, formula: F) -> F:
        if getattr(formula, "__name__", None) != self.operation.name:
            raise ValueError(f"the reference of {self.operation.name} must have its name; got {formula!r}")
        checked: Any = _checked(self.operation, typing.cast(Callable[..., Any], formula))
        _REFERENCE[self.operation.name] = checked
        return typing.cast(F, checked)


def defines(protocol: TypeForm[F]) -> _Defines[F]:
    """Make a formula the reference of the operation that a Protocol describes: ``@defines(DotScores[np.ndarray])``.

    Arguments: arrays, or lists and numbers, which become float64, as integers do. The dtype is otherwise kept; mixed
    dtypes are promoted as NumPy does. An array of another kind (one with ``shape`` and ``__array_ufunc__``) reaches
    the formula untouched, so that other arithmetics can run it.
    Errors: ``ShapeError`` for a shape or size that violates the Protocol, ``TypeError`` for an argument of the wrong
    kind; both name operation, argument, expected and got. Non-finite results are results: NumPy's warnings are off.
    """
    return _Defines(protocol)


def _checked(operation: Operation, formula: Callable[..., Any]) -> Callable[..., Any]:
    signature = operation.signature
    names = tuple(a.name for a in operation.arguments)
    positional = tuple(a.name for a in operation.arguments if not a.keyword_only)
    required = tuple(a.name for a in operation.arguments if a.default is inspect.Parameter.empty)
    convert = {a.name: partial(_CONVERSIONS[a.kind], operation, a) for a in operation.arguments}
    floats = operation.float_arguments

    @lru_cache(maxsize=4096)
    def fit(*shapes: Any) -> None:
        bind(operation, dict(zip(names, shapes, strict=True)))

    @wraps(formula)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if _WITHIN.get():
            return formula(*args, **kwargs)
        given = dict(zip(positional, args, strict=False))
        given.update(kwargs)
        if len(given) != len(args) + len(kwargs) or not convert.keys() >= given.keys() >= set(required):
            signature.bind(*args, **kwargs)  # raises what any call with these arguments raises
        values = {name: convert[name](value) for name, value in given.items()}
        fit(*[_shape(values.get(name)) for name in names])
        outer = _WITHIN.set(any(_foreign(x) for x in values.values()))
        try:
            with np.errstate(all="ignore"):
                result = formula(*[values.pop(name) for name in required], **values)
        finally:
            _WITHIN.reset(outer)
        if isinstance(result, np.generic):
            result = np.asarray(result)
        # NumPy multiplies no matrices of bfloat16: these are computed in float32 and rounded once, here.
        if floats and all(getattr(given.get(name), "dtype", None) == _BFLOAT16 for name in floats):
            result = result.astype(_BFLOAT16)
        return result

    return checked


def _shape(value: Any) -> Any:
    """What `bind` takes: the shape of an array, a number itself, None for what is not given."""
    return getattr(value, "shape", value)


def _foreign(value: Any) -> bool:
    """Whether an argument is an array of another kind, with an arithmetic of its own."""
    return not isinstance(value, np.ndarray) and hasattr(value, "__array_ufunc__") and hasattr(value, "shape")


def _wrong_kind(operation: Operation, argument: Argument, expected: str, got: object) -> TypeError:
    return TypeError(f"{operation.name}: {argument.name}: expected {expected}; got {got}")


def _array(operation: Operation, argument: Argument, expected: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError as error:  # a list of lists of different lengths
        raise _wrong_kind(operation, argument, expected, f"{type(value).__name__} of uneven lengths") from error


def _floats(operation: Operation, argument: Argument, value: Any) -> Any:
    if type(value) is not np.ndarray:
        if _foreign(value):
            return value
        value = _array(operation, argument, "real numbers", value)
    if value.dtype in _COMPUTABLE:
        return value
    if value.dtype == _BFLOAT16:
        return value.astype(np.float32)
    if value.dtype.kind in "iu":
        return value.astype(np.float64)
    if value.dtype.kind == "f":
        return value.astype(value.dtype.newbyteorder("="))
    raise _wrong_kind(operation, argument, "real numbers", value.dtype)


def _bools(operation: Operation, argument: Argument, value: Any) -> Any:
    if value is None and argument.optional:
        return None
    array = _array(operation, argument, "booleans", value)
    if array.dtype != np.bool_:
        raise _wrong_kind(operation, argument, "booleans, True = may attend", array.dtype)
    return array


def _integers(operation: Operation, argument: Argument, value: Any) -> Any:
    array = _array(operation, argument, "integers", value)
    if array.dtype.kind not in "iu":
        raise _wrong_kind(operation, argument, "integers", array.dtype)
    return array


def _size(operation: Operation, argument: Argument, value: Any) -> Any:
    if value is None and argument.optional:
        return None
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise _wrong_kind(operation, argument, "an integer", repr(value))
    return operator.index(value)


def _flag(operation: Operation, argument: Argument, value: Any) -> Any:
    if not isinstance(value, bool | np.bool_):
        raise _wrong_kind(operation, argument, "True or False", type(value).__name__)
    return bool(value)


_CONVERSIONS: Mapping[Kind, Callable[[Operation, Argument, Any], Any]] = {
    Kind.FLOAT: _floats,
    Kind.BOOL: _bools,
    Kind.INT: _integers,
    Kind.SIZE: _size,
    Kind.FLAG: _flag,
}
