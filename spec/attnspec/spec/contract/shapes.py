"""Binding of a call's shapes to the sizes of a Protocol, with checks and result shapes."""

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
    described,
    number_of,
    short,
)

REMEMBERED = 4096
"""Largest number of cached bindings per operation."""


class ShapeError(ValueError):
    """Raised for a shape that violates a Protocol; the message names operation, argument, expected and got."""

    def __init__(self, operation: str, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{operation}: {argument}: expected {expected}; got {got}")
        self.operation, self.argument, self.expected, self.got = operation, argument, expected, got


def in_words(value: Any) -> str:
    """Text for an option's value: the ``repr`` of strings, numbers and None, else the type's name."""
    brief = value is None or isinstance(value, str | int | float) or getattr(value, "shape", None) == ()
    return repr(value) if brief else type(value).__name__


@dataclass
class Binding:
    """Sizes of one call, the argument that bound each, the common batch, and the arrays passed."""

    operation: Operation
    sizes: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    batch: Shape = ()
    leaves: tuple[Leaf, ...] = ()

    def shape(self, leaf: Leaf) -> Shape:
        """Full shape of an argument or result in this call."""
        core = tuple(number_of(d.factors, self.sizes) or 0 for d in leaf.core)
        return (*self.batch, *core) if leaf.batched else core

    def number(self, size: str) -> int:
        """Value of a size, or of a product of sizes, in this call; ``KeyError`` for an unknown size."""
        found = number_of(tuple(size.split("*")), self.sizes)
        if found is None:
            raise KeyError(f"{self.operation.name} has no size {size}")
        return found

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
    known = operation.bindings
    try:
        seen: Binding | StructureError | None = known.get(key)
    except TypeError:  # a shape that cannot be hashed, such as a list
        key = seen = None
    if seen is None:
        try:
            seen = _bound(operation, values)
        except StructureError as error:
            seen = error.with_traceback(None)  # its frames would keep the arrays alive
        if key is not None:
            if len(known) >= REMEMBERED:
                known.clear()
            known[key] = seen
    if isinstance(seen, StructureError):
        raise ShapeError(operation.name, seen.path, seen.expected, seen.got)
    return seen


def results(operation: Operation, value: Any) -> list[tuple[Leaf, Any]]:
    """Return the arrays of a result with their descriptions; ``StructureError`` for another tree."""
    return [(leaf, x) for leaf, x in described(operation.result, value, "result") if isinstance(leaf, Leaf)]


def _key(operation: Operation, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Cache key of a binding: sizes, numbers of items, shapes. None for arguments of another structure."""
    found: list[Any] = []
    key: list[Any] = []
    get = values.get
    try:
        for name, read in operation.readers:
            if read is None:
                found.append(get(name))
            else:
                read(get(name), found, key)
        for option in operation.numbers:
            value = get(option.path)
            if value is not None and type(value) is not int:
                return None
            key.append(value)
        key += [None if x is None else x.shape for x in found]
        return tuple(key)
    except (TypeError, AttributeError):
        return None


def _bound(operation: Operation, values: Mapping[str, Any]) -> Binding:
    binding = Binding(operation)
    given: list[Leaf] = []
    late: list[tuple[Leaf, Dim, int, Shape]] = []

    def counted(branch: Branch, path: str, number: int) -> None:
        _say(binding, branch.count, path, number, f"{number} of them")

    call = zip(operation.call.names, operation.call.nodes, strict=True)
    for node, value in (x for name, n in call for x in described(n, values.get(name), name, counted=counted)):
        if value is None:
            continue
        if isinstance(node, Option):
            if node.kind is Kind.SIZE:
                _say(binding, node.path, node.path, value, value)
            continue
        if not hasattr(value, "shape"):
            raise StructureError(node.path, f"an array of shape {node.shape_text}", type(value).__name__)
        given.append(node)
        if not node.free:
            late += _fit(binding, node, tuple(value.shape))
    _fit_late(binding, late)
    binding.leaves = tuple(given)
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
    late = []
    for d, size in zip(leaf.core, shape[len(shape) - rank :], strict=True):
        if d.plain:
            _say(binding, d.factors[0], leaf.path, size, shape, leaf, d.written)
        else:
            late.append((leaf, d, size, shape))
    return late


def _say(
    binding: Binding, size: str, path: str, number: int, got: Any, leaf: Leaf | None = None, written: str = ""
) -> None:
    """Bind a size to a number; :class:`StructureError` if it has another number or the number is too small."""
    if binding.sizes.get(size) == number:  # the lower bound was checked when it was bound
        return
    known = binding.sizes.setdefault(size, number)
    origin = binding.origin.setdefault(size, path)
    least = binding.operation.least(size)
    if known == number >= least:
        return
    name = written or short(size)
    expected = f"{name} of at least {least}"
    if known != number:
        expected = f"{leaf.shape_text} with {name} = {known}" if leaf else f"{name} = {known}"
        expected = f"{expected} (from {origin})"
    raise StructureError(path, expected, as_tuple(got) if isinstance(got, tuple) else got)


def _fit_late(binding: Binding, late: list[tuple[Leaf, Dim, int, Shape]]) -> None:
    """Check dimensions that broadcast, are products or sums. A dimension with one unknown size binds it."""
    for leaf, d, size, shape in late:
        unknown, rest = unknown_of(d.factors, binding.sizes)
        if unknown and not d.broadcast:
            total = len(d.factors) == 1
            found, remainder = (size - rest, 0) if total else divmod(size, rest or size + 1)
            if not remainder and (found >= 0 or not total):
                _say(binding, unknown, leaf.path, found, shape, leaf)
    for leaf, d, size, shape in late:
        expected = number_of(d.factors, binding.sizes)
        if size != expected and not (d.broadcast and size == 1):
            or_one = " or 1" if d.broadcast and expected != 1 else ""
            wanted = f"= {expected}{or_one}" if expected is not None else _fitting(d, binding)
            raise StructureError(leaf.path, f"{leaf.shape_text} with {d.written} {wanted}", as_tuple(shape))


def unknown_of(factors: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, int]:
    """Return the only unknown size of a product or sum, and the product or sum of the others.

    The name is empty unless exactly one size is unknown.
    """
    parts = factors if len(factors) > 1 else factors[0].split("+")
    # Lists, since torch.compile traces no generators here.
    unknown = [part for part in parts if number_of(tuple(part.split("*")), sizes) is None]
    known = [part for part in parts if part not in unknown]
    if len(unknown) != 1 or not known or "+" in unknown[0] or "*" in unknown[0]:
        return "", 0
    return unknown[0], number_of(tuple(known) if len(factors) > 1 else ("+".join(known),), sizes) or 0


def _fitting(d: Dim, binding: Binding) -> str:
    """Text of what the known sizes require of a dimension with an unknown size."""
    total = len(d.factors) == 1
    parts = d.factors[0].split("+") if total else d.factors
    known = {short(p): binding.sizes[p] for p in parts if p in binding.sizes}
    if total:
        return f"at least {'+'.join(known)} = {sum(known.values())}"
    return f"a multiple of {'*'.join(known)} = {prod(known.values())}"
