"""Conversion of a harness's arguments, results and gradients to NumPy arrays of the Protocol's shapes."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.harness.arrays import EIGHT_BITS, read
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import NARROW, is_float, numpy_dtype
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.running.selection import unknown_name
from attnspec.spec.contract.axes import Part
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind, results
from attnspec.spec.contract.tree import (
    Branch,
    Kind,
    Leaf,
    Node,
    Option,
    StructureError,
    as_tuple,
    described,
    flatten,
    mapped,
)


def operation_named(name: str, who: str) -> Operation:
    """Return the operation of this name; ``ValueError`` if unknown, ``TypeError`` if not a string."""
    if not isinstance(name, str):
        raise TypeError(f"{who}: expected the name of an operation; got {type(name).__name__}")
    if name not in OPERATIONS:
        raise ValueError(unknown_name(who, name, OPERATIONS))
    return OPERATIONS[name]


def arguments_of(operation: Operation, positional: tuple[Any, ...], options: Mapping[str, Any]) -> Arguments:
    """Return the arguments as NumPy arrays; ``TypeError`` for arguments that the operation does not take."""
    names = operation.call.names
    if len(positional) > len(names):
        raise TypeError(f"{operation.name}: expected at most {len(names)} arguments; got {len(positional)}")
    values = dict(zip(names, positional, strict=False))
    for name, value in options.items():
        if name not in names:
            raise TypeError(unknown_name(operation.name, name, names))
        if name in values:
            raise TypeError(f"{operation.name}: {name}: expected one value; got two")
        values[name] = value
    lacking = [name for name in names if name not in values and name not in operation.defaults]
    if lacking:
        raise TypeError(f"{operation.name}: {lacking[0]}: expected an argument; got none")
    try:
        places = {node.path: (node, x) for node, x in described(operation.call, values)}
    except StructureError as error:
        raise TypeError(f"{operation.name}: {error}") from None

    def convert(path: str, x: Any) -> Any:
        node = places[path][0] if path in places else None
        if isinstance(node, Option):
            return option(operation, node, x)
        if isinstance(node, Leaf) and not (x is None and node.optional):
            return _array(node, x, f"{operation.name}: {path}")
        return x

    choices = {option.path for option in operation.options}
    found = {name: convert(name, x) if name in choices else mapped(x, convert, name) for name, x in values.items()}
    bind(operation, found)
    return Arguments(operation, found)


def without_results(operation: Operation, output: Any) -> Operation:
    """Return the operation without those optional results that are None."""
    nodes = operation.result.nodes if isinstance(operation.result, Branch) else ()
    given = output if isinstance(output, tuple) and len(output) == len(nodes) else nodes
    lacking = [x.path for x, y in zip(nodes, given, strict=True) if isinstance(x, Leaf) and x.optional and y is None]
    return operation.without(frozenset(lacking))


def cotangent_of(operation: Operation, value: Any, given: Arguments, dtype: str) -> Results:
    """Return the arrays of a cotangent: finite, and zeros for an absent optional result.

    Errors: ``ValueError`` for NaN and infinities, which make gradients meaningless.
    """
    found = results_of(operation, value, given, "cotangent", dtype)
    demand_dtype(operation, found, dtype, "cotangent")
    for leaf in operation.outputs:
        if leaf.kind is Kind.FLOAT and not np.isfinite(found[leaf.path]).all():
            got = "NaN" if np.isnan(found[leaf.path]).any() else "infinities"
            raise ValueError(f"{operation.name}: {_title(leaf, 'cotangent')}: expected finite numbers; got {got}")
    return found


def results_of(operation: Operation, value: Any, given: Arguments, what: str, dtype: str = "float32") -> Results:
    """Return the arrays of a result or cotangent, with the shapes that follow from the arguments.

    An optional array that is None becomes zeros of this dtype.
    """
    try:
        leaves = results(operation, value)
    except StructureError as error:
        raise TypeError(f"{operation.name}: {what}: expected {_structure(operation.result)}: {error}") from None
    found: Results = {}
    for leaf, x in leaves:
        title = _title(leaf, what)
        if x is None and leaf.optional:
            found[leaf.path] = np.zeros(given.binding.shape(leaf), dtype)
            continue
        array, expected = _array(leaf, x, f"{operation.name}: {title}"), given.binding.shape(leaf)
        if array.shape != expected:
            raise ShapeError(operation.name, title, f"shape {as_tuple(expected)}", as_tuple(array.shape))
        found[leaf.path] = array
    return found


def demand_dtype(operation: Operation, found: Results, dtype: str, what: str) -> None:
    """Raise ``TypeError`` for floats of a result or cotangent in another dtype than the arguments.

    With 16-bit results, an optional one such as a logarithm may be float32.
    """
    for leaf in operation.outputs:
        x = found[leaf.path]
        wider = leaf.optional and dtype in NARROW and x.dtype.name == "float32"
        if leaf.kind is Kind.FLOAT and not wider and (x.dtype.name != dtype or dtype not in DEFAULTS):
            expected = f"{_floats(dtype)}{', or float32' if leaf.optional and dtype in NARROW else ''}"
            raise TypeError(f"{operation.name}: {_title(leaf, what)}: expected {expected}; got {x.dtype.name}")


def option(operation: Operation, node: Option, x: Any) -> Any:
    """Return an option as a Python number, flag or string.

    Errors: ``TypeError`` for another kind; ``ValueError`` for a number that is not finite, or a cap that is not above
    0.
    """
    value = x.item() if isinstance(x, np.generic) else x
    title = f"{operation.name}: {node.path}"
    if hasattr(value, "shape") or not node.takes(value):
        raise TypeError(f"{title}: expected {node.expected}; got {_kind_of(x)}")
    if node.kind is Kind.NUMBER and value is not None and not abs(value) <= sys.float_info.max:
        got = value if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
        raise ValueError(f"{title}: expected a finite number; got {got}")
    if operation.parts.get(node.path) is Part.CAP and value is not None and value <= 0:
        raise ValueError(f"{title}: expected a number above 0; got {value}")
    return value


def _title(leaf: Leaf, what: str) -> str:
    return what if leaf.path == "result" else f"{what} {leaf.path}"


def _floats(dtype: str) -> str:
    return f"{dtype} as the arguments" if dtype in DEFAULTS else f"one of {', '.join(DEFAULTS)}"


KINDS = {Kind.BOOL: ("booleans", "b"), Kind.INT: ("integers", "iu")}


def _array(leaf: Leaf, x: Any, title: str) -> Numbers:
    """Return an array of the Protocol's kind of numbers; ``TypeError`` for another kind."""
    found = read(x, title)
    words, kinds = KINDS.get(leaf.kind, ("floats", ""))
    if found.dtype.kind not in kinds if kinds else not is_float(found):
        raise TypeError(f"{title}: expected {words}; got {found.dtype}")
    return found


def _kind_of(x: Any) -> str:
    return f"an array of shape {as_tuple(x.shape)}" if hasattr(x, "shape") else repr(x)


def _structure(node: Node) -> str:
    """Describe a tree as it is passed: array paths in brackets of tuples and records; None if empty."""
    if not isinstance(node, Branch):
        return node.path.rpartition(".")[2] + (" or None" if isinstance(node, Leaf) and node.optional else "")
    if not node.nodes:
        return "None"
    inner = ", ".join(map(_structure, node.nodes))
    return f"({inner}, …)" if node.many else f"({inner})"


def generator(seed: Any, who: str) -> np.random.Generator:
    """Return a random generator; ``TypeError`` for an invalid seed."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TypeError(f"{who}: seed: expected an integer of at least 0; got {seed!r}")
    return np.random.default_rng(seed)


def gradients_of(operation: Operation, gradients: Any, given: Arguments, dtype: str) -> Results:
    """Return the gradients by path, checked against shapes and dtypes of the arguments."""
    known = {leaf.path: x for leaf, x in given.floats}
    if not isinstance(gradients, Mapping) or not gradients:
        got = "an empty one" if isinstance(gradients, Mapping) else type(gradients).__name__
        raise TypeError(f"{operation.name}: gradients: expected a mapping from {', '.join(known)} to arrays; got {got}")
    found: Results = {}
    for path, g in flatten(dict(gradients)).items():
        if path not in known:
            raise ValueError(unknown_name(f"{operation.name}: gradients", path, known))
        found[path] = read(g, f"{operation.name}: the gradient of {path}")
        if found[path].shape != known[path].shape:
            expected, got = as_tuple(known[path].shape), as_tuple(found[path].shape)
            raise ShapeError(operation.name, f"the gradient of {path}", f"shape {expected}", got)
        if found[path].dtype.name not in (dtype, known[path].dtype.name):
            title = f"{operation.name}: the gradient of {path}"
            raise TypeError(f"{title}: expected {_floats(dtype)}; got {found[path].dtype.name}")
    return found


def in_one_dtype(operation: Operation, given: Arguments, found: Results | None = None) -> tuple[str, Arguments]:
    """Return the dtype of all float arrays, and the arguments in it; for 8-bit inputs, the results' dtype.

    With 16-bit arrays, arrays added to scores may be float32.
    """
    dtypes = {leaf.path: str(x.dtype.name) for leaf, x in given.floats}
    of_result = str(found[operation.leading.path].dtype.name) if found else "float32"
    narrow = {path for path, dtype in dtypes.items() if dtype in EIGHT_BITS}
    if narrow and narrow >= dtypes.keys() - operation.parts.keys():
        if of_result not in DEFAULTS:
            title = _title(operation.leading, "output")
            raise TypeError(f"{operation.name}: {title}: expected one of {', '.join(DEFAULTS)}; got {of_result}")
        # 8-bit numbers are exact in the dtype of the result.
        given = given.replaced({path: given.array(path).astype(numpy_dtype(of_result)) for path in narrow})
        dtypes |= dict.fromkeys(narrow, of_result)
    if not dtypes:
        return of_result, given
    main = {dtype for path, dtype in dtypes.items() if path not in operation.parts}
    wider = {"float32"} if main <= NARROW else set()
    if len(main) > 1 or not main <= set(DEFAULTS) or not set(dtypes.values()) <= main | wider:
        got = ", ".join(f"{path} in {dtype}" for path, dtype in dtypes.items())
        raise TypeError(f"{operation.name}: expected floats in one of {', '.join(DEFAULTS)}; got {got}")
    return next(iter(main)), given


class _Given:
    """A backend that is never called."""

    name = "the given result"

    def __init__(self, operation: str, precision: Any, semantics: Any) -> None:
        self.precision, self.semantics = precision, semantics
        setattr(self, operation, lambda *arguments, **options: None)


def subject_of(
    operation: Operation, dtype: str, precision: str | Mapping[str, Any] | None, semantics: Mapping[str, Any] | None
) -> Subject:
    """Return a subject of this operation and dtype, with the declared class and choices.

    Errors: ``ValueError`` for an unknown class or choice, ``TypeError`` for a class that is not a string.
    """
    for name in flatten(dict(precision)).values() if isinstance(precision, Mapping) else ():
        if not isinstance(name, str):
            raise TypeError(f"precision: expected names of classes; got {name!r}")
    declared = {dtype: precision} if isinstance(precision, str) else precision
    backend = _Given(operation.name, declared, semantics)
    return Subject(backend, Contract.of(backend), operation, dtype, "cpu")
