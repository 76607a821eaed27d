"""Binding of a call's shapes to the Protocol's sizes, for checks and result shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import (
    Branch,
    Dim,
    Kind,
    Leaf,
    Option,
    Shape,
    StructureError,
    as_tuple,
    dimension_value,
    pair_leaves,
    unscoped,
)

REMEMBERED = 4096
"""Largest number of cached bindings per operation."""


class ShapeError(ValueError):
    """Raised for a shape that violates a Protocol; the message names operation, argument, expected and got."""

    def __init__(self, operation: str, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{operation}: {argument}: expected {expected}; got {got}")
        self.operation, self.argument, self.expected, self.got = operation, argument, expected, got


def in_words(value: Any) -> str:
    """Text of an option's value: ``repr`` of strings, numbers and None, else the name of the type."""
    brief = value is None or isinstance(value, str | int | float) or getattr(value, "shape", None) == ()
    return repr(value) if brief else type(value).__name__


@dataclass
class Binding:
    """Sizes of one call, the argument that set each, common batch, and arrays passed."""

    operation: Operation
    sizes: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    batch: Shape = ()
    leaves: tuple[Leaf, ...] = ()

    def shape(self, leaf: Leaf) -> Shape:
        """Full shape of an argument or result in this call."""
        core = tuple(dimension_value(d.factors, self.sizes) or 0 for d in leaf.core)
        return (*self.batch, *core) if leaf.batched else core

    def number(self, size: str) -> int:
        """Value of a size, or of a product of sizes, in this call; ``KeyError`` for an unknown size."""
        value = dimension_value(tuple(size.split("*")), self.sizes)
        if value is None:
            raise KeyError(f"{self.operation.name} has no size {size}")
        return value

    @property
    def result(self) -> Shape:
        """Shape of the result, of its leading array if there are several."""
        return self.shape(self.operation.leading)


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """Common shape of two batches; None if they do not broadcast."""
    if left == right:
        return left
    length = max(len(left), len(right))
    result = []
    for a, b in zip((1,) * (length - len(left)) + left, (1,) * (length - len(right)) + right, strict=True):
        if a != b and 1 not in (a, b):
            return None
        result.append(b if a == 1 else a)
    return tuple(result)


def bind(operation: Operation, values: Mapping[str, Any]) -> Binding:
    """Bind the sizes of a call. ``values`` maps arguments to trees of objects with a ``shape``, and sizes to numbers.

    An argument that is missing or None counts as not passed. Raises :class:`ShapeError` for the first argument that
    does not fit. Bindings and errors are cached by shapes.
    """
    key = _key(operation, values)
    cached = operation.bindings
    try:
        outcome: Binding | StructureError | None = cached.get(key)
    except TypeError:  # a shape that cannot be hashed, such as a list
        key = outcome = None
    if outcome is None:
        try:
            outcome = _bound(operation, values)
        except StructureError as error:
            outcome = error.with_traceback(None)  # its frames would keep the arrays alive
        if key is not None:
            if len(cached) >= REMEMBERED:
                cached.clear()
            cached[key] = outcome
    if isinstance(outcome, StructureError):
        raise ShapeError(operation.name, outcome.path, outcome.expected, outcome.got)
    return outcome


def results(operation: Operation, value: Any) -> list[tuple[Leaf, Any]]:
    """Return the arrays of a result with their descriptions; ``StructureError`` for another tree."""
    return [(leaf, x) for leaf, x in pair_leaves(operation.result, value, "result") if isinstance(leaf, Leaf)]


def _key(operation: Operation, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Cache key of a binding: sizes, numbers of items, shapes. None for arguments of another structure."""
    arrays: list[Any] = []
    key: list[Any] = []
    get = values.get
    try:
        for name, read in operation.readers:
            if read is None:
                arrays.append(get(name))
            else:
                read(get(name), arrays, key)
        for option in operation.numbers:
            value = get(option.path)
            if value is not None and type(value) is not int:
                return None
            key.append(value)
        key += [None if x is None else x.shape for x in arrays]
        return tuple(key)
    except (TypeError, AttributeError):
        return None


def _bound(operation: Operation, values: Mapping[str, Any]) -> Binding:
    binding = Binding(operation)
    passed: list[Leaf] = []
    compound: list[tuple[Leaf, Dim, int, Shape]] = []

    def counted(branch: Branch, path: str, number: int) -> None:
        _bind_size(binding, branch.count, path, number, f"{number} of them")

    call = zip(operation.call.names, operation.call.nodes, strict=True)
    for node, value in (x for name, n in call for x in pair_leaves(n, values.get(name), name, counted=counted)):
        if value is None:
            continue
        if isinstance(node, Option):
            if node.kind is Kind.SIZE:
                _bind_size(binding, node.path, node.path, value, value)
            continue
        if not hasattr(value, "shape"):
            raise StructureError(node.path, f"an array of shape {node.shape_text}", type(value).__name__)
        passed.append(node)
        if not node.free:
            compound += _fit(binding, node, tuple(value.shape))
    _fit_compound(binding, compound)
    binding.leaves = tuple(passed)
    return binding


def _fit(binding: Binding, leaf: Leaf, shape: Shape) -> list[tuple[Leaf, Dim, int, Shape]]:
    """Bind the plain sizes of one array; return its other dimensions, which need further sizes first."""
    rank = len(leaf.core)
    if not leaf.core and not leaf.batched and shape:
        raise StructureError(leaf.path, "a number", f"shape {as_tuple(shape)}")
    if len(shape) < rank or (len(shape) > rank and not leaf.batched):
        more = " or more" if leaf.batched else ""
        raise StructureError(leaf.path, f"{leaf.shape_text}, rank {rank}{more}", as_tuple(shape))
    if leaf.batched:
        batch = shape[: len(shape) - rank]
        common = broadcast(binding.batch, batch)
        if common is None:
            expected = f"a batch that broadcasts with {as_tuple(binding.batch)}"
            raise StructureError(leaf.path, expected, f"batch {as_tuple(batch)}")
        binding.batch = common
    compound = []
    for d, size in zip(leaf.core, shape[len(shape) - rank :], strict=True):
        if d.plain:
            _bind_size(binding, d.factors[0], leaf.path, size, shape, leaf, d.written)
        else:
            compound.append((leaf, d, size, shape))
    return compound


def _bind_size(
    binding: Binding, size: str, path: str, number: int, got: Any, leaf: Leaf | None = None, written: str = ""
) -> None:
    """Bind a size to a number; :class:`StructureError` if it has another one or this is too small."""
    if binding.sizes.get(size) == number:  # the lower bound was checked when it was bound
        return
    bound_number = binding.sizes.setdefault(size, number)
    origin = binding.origin.setdefault(size, path)
    least = binding.operation.least(size)
    if bound_number == number >= least:
        return
    name = written or unscoped(size)
    expected = f"{name} of at least {least}"
    if bound_number != number:
        expected = f"{leaf.shape_text} with {name} = {bound_number}" if leaf else f"{name} = {bound_number}"
        expected = f"{expected} (from {origin})"
    raise StructureError(path, expected, as_tuple(got) if isinstance(got, tuple) else got)


def _fit_compound(binding: Binding, compound: list[tuple[Leaf, Dim, int, Shape]]) -> None:
    """Check dimensions that broadcast, are products or are sums; bind a size that only they name."""
    for leaf, d, size, shape in compound:
        unknown, known_part = unknown_of(d.factors, binding.sizes)
        if unknown and not d.broadcast:
            is_sum = len(d.factors) == 1
            # If the known factors are 0, the divisor leaves a remainder, so that nothing is bound.
            quotient, remainder = (size - known_part, 0) if is_sum else divmod(size, known_part or size + 1)
            if not remainder and (quotient >= 0 or not is_sum):
                _bind_size(binding, unknown, leaf.path, quotient, shape, leaf)
    for leaf, d, size, shape in compound:
        expected = dimension_value(d.factors, binding.sizes)
        if size != expected and not (d.broadcast and size == 1):
            or_one = " or 1" if d.broadcast and expected != 1 else ""
            wanted = f"= {expected}{or_one}" if expected is not None else _fitting(d, binding)
            raise StructureError(leaf.path, f"{leaf.shape_text} with {d.written} {wanted}", as_tuple(shape))


def unknown_of(factors: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, int]:
    """Return the only unknown size of a product or sum, and the known part.

    The known part is the product or sum of the others. The name is empty unless exactly one size is unknown.
    """
    parts = factors if len(factors) > 1 else factors[0].split("+")
    # Lists, since torch.compile traces no generators here.
    unknown = [part for part in parts if dimension_value(tuple(part.split("*")), sizes) is None]
    known = [part for part in parts if part not in unknown]
    if len(unknown) != 1 or not known or "+" in unknown[0] or "*" in unknown[0]:
        return "", 0
    return unknown[0], dimension_value(tuple(known) if len(factors) > 1 else ("+".join(known),), sizes) or 0


def _fitting(d: Dim, binding: Binding) -> str:
    """Text of the requirement that known sizes make of a dimension with an unknown size."""
    is_sum = len(d.factors) == 1
    parts = d.factors[0].split("+") if is_sum else d.factors
    known = {unscoped(p): binding.sizes[p] for p in parts if p in binding.sizes}
    if is_sum:
        return f"at least {'+'.join(known)} = {sum(known.values())}"
    return f"a multiple of {'*'.join(known)} = {prod(known.values())}"
