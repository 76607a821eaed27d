"""Conversion of a caller's arguments, results and gradients to NumPy arrays, checked against the Protocol."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from attnspec.conformance.harness.arrays import EIGHT_BITS, read
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.attendance import with_choice_of_masks
from attnspec.conformance.inputs.dtypes import NARROW, is_float, numpy_dtype, with_quiet_nans
from attnspec.conformance.inputs.quantization import exact_values
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.running.selection import unknown_name
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.contract.semantics import DeclaredSemantics
from attnspec.spec.contract.shapes import ShapeError, bind, results
from attnspec.spec.contract.tree import (
    Branch,
    Kind,
    Leaf,
    Node,
    Option,
    StructureError,
    as_tuple,
    flatten,
    map_tree,
    pair_leaves,
)


def operation_named(name: str, who: str) -> Operation:
    """Return the operation of this name; ``ValueError`` if unknown, ``TypeError`` if not a string."""
    if not isinstance(name, str):
        raise TypeError(f"{who}: expected the name of an operation; got {type(name).__name__}")
    if name not in OPERATIONS:
        raise ValueError(unknown_name(who, name, OPERATIONS))
    return OPERATIONS[name]


def arguments_of(operation: Operation, positional: tuple[Any, ...], options: Mapping[str, Any]) -> Arguments:
    """Return the arguments as NumPy arrays; ``TypeError`` for arguments that the operation does not take.

    Quantised operands become their values in double precision, which are exact.
    """
    names = operation.call.names
    if len(positional) > len(names):
        raise TypeError(f"{operation.name}: expected at most {len(names)} arguments; got {len(positional)}")
    values = dict(zip(names, positional, strict=False))
    for name, value in options.items():
        if name not in names:
            taker = next((o.name for o in OPERATIONS.values() if name in o.call.names), "")
            why = f", its arguments ({taker} has {name})" if taker else ""
            raise TypeError(unknown_name(operation.name, name, names, why))
        if name in values:
            raise TypeError(f"{operation.name}: {name}: expected one value; got one by position and one by name")
        values[name] = value
    missing = [name for name in names if name not in values and name not in operation.defaults]
    if missing:
        raise TypeError(f"{operation.name}: {missing[0]}: expected an argument; got none")
    try:
        node_and_value = {node.path: (node, x) for node, x in pair_leaves(operation.call, values)}
    except StructureError as error:
        raise TypeError(f"{operation.name}: {error}") from None

    quantized: dict[str, Quantized] = {}

    def convert(path: str, x: Any) -> Any:
        node = node_and_value[path][0] if path in node_and_value else None
        if isinstance(node, Option):
            return option(operation, node, x)
        if isinstance(node, Leaf) and isinstance(x, Quantized):
            quantized[path] = _in_numpy(node, x, f"{operation.name}: {path}")
            return exact_values(quantized[path], f"{operation.name}: {path}")
        if isinstance(node, Leaf) and not (x is None and node.optional):
            return _array(node, x, f"{operation.name}: {path}")
        return x

    choices = {option.path for option in operation.options}
    arrays = {name: convert(name, x) if name in choices else map_tree(x, convert, name) for name, x in values.items()}
    bind(operation, arrays)
    arguments = Arguments(operation, arrays)
    arguments.quantized = quantized
    return arguments


def _in_numpy(leaf: Leaf, operand: Quantized, title: str) -> Quantized:
    """Return a quantised operand of NumPy arrays; ``TypeError`` if the leaf holds no floats."""
    if leaf.kind is not Kind.FLOAT:
        raise TypeError(f"{title}: expected {KINDS[leaf.kind][0]}; got Quantized")
    if operand.dtype not in DEFAULTS:
        raise ValueError(f"{title}: dtype: expected one of {', '.join(DEFAULTS)}; got {operand.dtype!r}")
    codes, scales = read(operand.codes, f"{title}: codes"), read(operand.scales, f"{title}: scales")
    of_all = None if operand.global_scale is None else read(operand.global_scale, f"{title}: global_scale")
    return Quantized(codes, scales, of_all, operand.dtype)


def without_results(operation: Operation, output: Any) -> Operation:
    """Return the operation without the optional results that are None in ``output``."""
    nodes = operation.result.nodes if isinstance(operation.result, Branch) else ()
    # For another structure, which `results_of` reports, nothing counts as missing.
    values = output if isinstance(output, tuple) and len(output) == len(nodes) else nodes
    missing = [x.path for x, y in zip(nodes, values, strict=True) if isinstance(x, Leaf) and x.optional and y is None]
    return operation.without(frozenset(missing))


def cotangent_of(operation: Operation, value: Any, arguments: Arguments, dtype: str) -> Results:
    """Return the arrays of a cotangent, with zeros for an absent optional result.

    Errors: ``ValueError`` for NaN and infinities, with which gradients have no meaning.
    """
    cotangent = results_of(operation, value, arguments, "cotangent", dtype)
    demand_dtype(operation, cotangent, dtype, "cotangent")
    for leaf in operation.outputs:
        if leaf.kind is Kind.FLOAT and not np.isfinite(cotangent[leaf.path]).all():
            got = "NaN" if np.isnan(cotangent[leaf.path]).any() else "infinities"
            raise ValueError(f"{operation.name}: {_title(leaf, 'cotangent')}: expected finite numbers; got {got}")
    return cotangent


def results_of(operation: Operation, value: Any, arguments: Arguments, role: str, dtype: str = "float32") -> Results:
    """Return a result's or cotangent's arrays by path, after a check of their shapes.

    ``role`` is the word for it in messages. An optional array that is None becomes zeros of ``dtype``.
    """
    try:
        leaves = results(operation, value)
    except StructureError as error:
        raise TypeError(f"{operation.name}: {role}: expected {_structure(operation.result)}: {error}") from None
    arrays: Results = {}
    for leaf, x in leaves:
        title = _title(leaf, role)
        if x is None and leaf.optional:
            arrays[leaf.path] = np.zeros(arguments.binding.shape(leaf), dtype)
            continue
        array, expected = _array(leaf, x, f"{operation.name}: {title}"), arguments.binding.shape(leaf)
        if array.shape != expected:
            raise ShapeError(operation.name, title, f"shape {as_tuple(expected)}", as_tuple(array.shape))
        arrays[leaf.path] = with_quiet_nans(array)
    return arrays


def demand_dtype(operation: Operation, arrays: Results, dtype: str, role: str) -> None:
    """Raise ``TypeError`` if floats of a result or cotangent have another dtype than the arguments.

    Beside 16-bit arguments, an optional result such as a logarithm, or a state, may be float32.
    """
    for leaf in operation.outputs:
        x = arrays[leaf.path]
        may_be_wider = (leaf.optional or leaf.path in operation.wider) and dtype in NARROW
        wider = may_be_wider and x.dtype.name == "float32"
        if leaf.kind is Kind.FLOAT and not wider and (x.dtype.name != dtype or dtype not in DEFAULTS):
            expected = f"{_floats(dtype)}{', or float32' if may_be_wider else ''}"
            raise TypeError(f"{operation.name}: {_title(leaf, role)}: expected {expected}; got {x.dtype.name}")


def option(operation: Operation, node: Option, x: Any) -> Any:
    """Return an option as a Python number, flag or string.

    Errors: ``TypeError`` for another kind of value; ``ValueError`` for NaN, an infinity, or a cap of at most 0.
    """
    value = x.item() if isinstance(x, np.generic) else x
    title = f"{operation.name}: {node.path}"
    if hasattr(value, "shape") or not node.takes(value):
        shown = f"an array of shape {as_tuple(x.shape)}" if hasattr(x, "shape") else repr(x)
        raise TypeError(f"{title}: expected {node.expected}; got {shown}")
    if node.kind is Kind.NUMBER and value is not None and not abs(value) <= sys.float_info.max:
        got = value if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
        raise ValueError(f"{title}: expected a finite number; got {got}")
    if operation.parts.get(node.path) is ScoreEffect.CAP and value is not None and value <= 0:
        raise ValueError(f"{title}: expected a number above 0; got {value}")
    return value


def _title(leaf: Leaf, role: str) -> str:
    return role if leaf.path in ("result", role) else f"{role} {leaf.path}"


def _floats(dtype: str) -> str:
    return f"{dtype}, like the arguments" if dtype in DEFAULTS else f"one of {', '.join(DEFAULTS)}"


KINDS = {Kind.BOOL: ("booleans", "b"), Kind.INT: ("integers", "iu")}
"""Word in messages, and NumPy's kind letters, for arrays that are not floats."""


def _array(leaf: Leaf, x: Any, title: str) -> Numbers:
    """Return ``x`` as an array of the leaf's kind: floats, integers or booleans; ``TypeError`` for another kind."""
    array = read(x, title)
    expected, kinds = KINDS.get(leaf.kind, ("floats", ""))
    if array.dtype.kind not in kinds if kinds else not is_float(array):
        raise TypeError(f"{title}: expected {expected}; got {array.dtype}")
    return array


def _structure(node: Node) -> str:
    """Return a tree's structure as text, such as ``(output, log_sum_exp or None)``; ``None`` if it is empty."""
    if not isinstance(node, Branch):
        return node.path.rpartition(".")[2] + (" or None" if isinstance(node, Leaf) and node.optional else "")
    if not node.nodes:
        return "None"
    inner = ", ".join(map(_structure, node.nodes))
    return f"({inner}, …)" if node.repeated else f"({inner})"


def generator(seed: Any, who: str) -> np.random.Generator:
    """Return a random generator; ``TypeError`` for a seed that is not a non-negative integer."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TypeError(f"{who}: seed: expected an integer of at least 0; got {seed!r}")
    return np.random.default_rng(seed)


def gradients_of(operation: Operation, gradients: Any, arguments: Arguments, dtype: str) -> Results:
    """Return the gradients by path, checked against shapes and dtypes of the arguments."""
    known = {leaf.path: x for leaf, x in arguments.floats}
    if not isinstance(gradients, Mapping) or not gradients:
        got = "an empty one" if isinstance(gradients, Mapping) else type(gradients).__name__
        raise TypeError(f"{operation.name}: gradients: expected a mapping from {', '.join(known)} to arrays; got {got}")
    arrays: Results = {}
    for path, g in flatten(dict(gradients)).items():
        if path not in known:
            raise ValueError(unknown_name(f"{operation.name}: gradients", path, known))
        arrays[path] = with_quiet_nans(read(g, f"{operation.name}: the gradient of {path}"))
        if arrays[path].shape != known[path].shape:
            expected, got = as_tuple(known[path].shape), as_tuple(arrays[path].shape)
            raise ShapeError(operation.name, f"the gradient of {path}", f"shape {expected}", got)
        if arrays[path].dtype.name not in (dtype, known[path].dtype.name):
            title = f"{operation.name}: the gradient of {path}"
            raise TypeError(f"{title}: expected {_floats(dtype)}; got {arrays[path].dtype.name}")
    return arrays


def in_one_dtype(operation: Operation, arguments: Arguments, outputs: Results | None = None) -> tuple[str, Arguments]:
    """Return the dtype for judging, and the arguments with 8-bit floats converted to it.

    It is the common dtype of all float arrays. If these have 8 bits or are quantised, it is that of the results, or the
    one that quantised operands stand for. Beside 16-bit arrays, those that are added to scores, such as a bias, or that
    kernels keep wider, such as a state, may be float32.
    Errors: ``TypeError`` for any other mixture.
    """
    quantized = arguments.quantized
    dtypes = {leaf.path: str(x.dtype.name) for leaf, x in arguments.floats if leaf.path not in quantized}
    of_result = next((x.dtype for x in quantized.values()), "float32")
    of_result = str(outputs[operation.leading.path].dtype.name) if outputs else of_result
    narrow = {path for path, dtype in dtypes.items() if dtype in EIGHT_BITS}
    beside = {*operation.parts, *operation.wider}
    if narrow and narrow >= dtypes.keys() - beside:
        if of_result not in DEFAULTS:
            title = _title(operation.leading, "output")
            raise TypeError(f"{operation.name}: {title}: expected one of {', '.join(DEFAULTS)}; got {of_result}")
        # 8-bit numbers are exact in the dtype of the result.
        arguments = arguments.replaced({path: arguments.array(path).astype(numpy_dtype(of_result)) for path in narrow})
        dtypes |= dict.fromkeys(narrow, of_result)
    if not dtypes:
        return of_result, arguments
    main_dtypes = {dtype for path, dtype in dtypes.items() if path not in beside} or {of_result}
    wider = {"float32"} if main_dtypes <= NARROW else set()
    if len(main_dtypes) > 1 or not main_dtypes <= set(DEFAULTS) or not set(dtypes.values()) <= main_dtypes | wider:
        got = ", ".join(f"{path} in {dtype}" for path, dtype in dtypes.items())
        raise TypeError(f"{operation.name}: expected floats of a single dtype, one of {', '.join(DEFAULTS)}; got {got}")
    return next(iter(main_dtypes)), arguments


def subject_of(
    operation: Operation,
    dtype: str,
    precision: str | Mapping[str, Any] | None,
    semantics: Mapping[str, Any] | None,
    arguments: Arguments | None = None,
) -> Subject:
    """Return a subject of an operation and dtype, with the declared precision class and choices.

    If a choice depends on the shape of the mask, that of ``arguments`` decides.

    Errors: ``ValueError`` for an unknown class or choice, ``TypeError`` for a class that is not a string.
    """
    for name in flatten(dict(precision)).values() if isinstance(precision, Mapping) else ():
        if not isinstance(name, str):
            raise TypeError(f"precision: expected names of precision classes; got {name!r}")
    declared = {dtype: precision} if isinstance(precision, str) else precision
    # A backend that only carries declarations: its operation is never called.
    backend = SimpleNamespace(name="the judged result", precision=declared, semantics=semantics)
    setattr(backend, operation.name, lambda *arguments, **options: None)
    contract = Contract.of(backend)
    if arguments is not None:
        chosen = with_choice_of_masks(contract.semantics[operation.name], arguments)
        contract = replace(contract, semantics=DeclaredSemantics(chosen))
    return Subject(backend, contract, operation, dtype, "cpu")
