"""What a harness hands over, read: arguments, results and gradients as NumPy arrays of the shapes of the Protocol."""

from collections.abc import Mapping
from typing import Any

from attnspec.conformance.harness.arrays import EIGHT_BITS, read
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.dtypes import numpy_dtype
from attnspec.conformance.judging.subject import Results
from attnspec.conformance.running.selection import unknown_name
from attnspec.spec.contract.operation import OPERATIONS, Operation
from attnspec.spec.contract.precision import DEFAULTS
from attnspec.spec.contract.shapes import ShapeError, bind, results
from attnspec.spec.contract.tree import Leaf, Misfit, as_tuple, described, flatten, mapped


def operation_named(name: str, who: str) -> Operation:
    """The operation of that name; ``ValueError`` where there is none."""
    if name not in OPERATIONS:
        raise ValueError(unknown_name(who, name, OPERATIONS))
    return OPERATIONS[name]


def arguments_of(operation: Operation, positional: tuple[Any, ...], options: Mapping[str, Any]) -> Arguments:
    """The arguments as NumPy arrays; ``TypeError`` for what the operation does not take."""
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
        kinds = {leaf.path: leaf for leaf, _ in described(operation.call, values) if isinstance(leaf, Leaf)}
    except Misfit as error:
        raise TypeError(f"{operation.name}: {error}") from None

    def convert(path: str, x: Any) -> Any:
        return read(x, f"{operation.name}: {path}") if path in kinds and x is not None else x

    found = {name: mapped(value, convert, name) for name, value in values.items()}
    bind(operation, found)
    return Arguments(operation, found)


def results_of(operation: Operation, value: Any, given: Arguments, what: str) -> Results:
    """The arrays of a result, or of a cotangent, of the shapes that belong to the arguments."""
    try:
        leaves = results(operation, value)
    except Misfit as error:
        raise TypeError(f"{operation.name}: {what}: {error}") from None
    found: Results = {}
    for leaf, x in leaves:
        title = what if leaf.path == "result" else f"{what} {leaf.path}"
        array, expected = read(x, f"{operation.name}: {title}"), given.binding.shape(leaf)
        if array.shape != expected:
            raise ShapeError(operation.name, title, f"shape {as_tuple(expected)}", as_tuple(array.shape))
        if array.dtype.kind in "OUSMmc":
            raise TypeError(f"{operation.name}: {title}: expected real numbers; got {array.dtype}")
        found[leaf.path] = array
    return found


def gradients_of(operation: Operation, gradients: Mapping[str, Any], given: Arguments) -> Results:
    """The gradients by path, of the shapes of the arguments."""
    known = {leaf.path: x for leaf, x in given.floats}
    found: Results = {}
    for path, g in flatten(dict(gradients)).items():
        if path not in known:
            raise ValueError(unknown_name(f"{operation.name}: gradients", path, known))
        found[path] = read(g, f"{operation.name}: the gradient of {path}")
        if found[path].shape != known[path].shape:
            expected, got = as_tuple(known[path].shape), as_tuple(found[path].shape)
            raise ShapeError(operation.name, f"the gradient of {path}", f"shape {expected}", got)
    return found


def in_one_dtype(operation: Operation, given: Arguments, found: Results | None = None) -> tuple[str, Arguments]:
    """The dtype of all float arrays, and the arguments in it; of inputs in 8 bits, that of the results."""
    dtypes = {leaf.path: str(x.dtype.name) for leaf, x in given.floats}
    of_result = str(found[operation.leading.path].dtype.name) if found else "float32"
    if dtypes and set(dtypes.values()) <= EIGHT_BITS:
        # They are exact in the dtype of the result.
        given = given.replaced({leaf.path: x.astype(numpy_dtype(of_result)) for leaf, x in given.floats})
        dtypes = dict.fromkeys(dtypes, of_result)
    if not dtypes:
        return of_result, given
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(DEFAULTS):
        got = ", ".join(f"{path} in {dtype}" for path, dtype in dtypes.items())
        raise TypeError(f"{operation.name}: expected floats in one of {', '.join(DEFAULTS)}; got {got}")
    return next(iter(dtypes.values())), given
