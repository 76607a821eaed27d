"""Binding shapes to the names of a Protocol: what fits, what does not, and what the result must be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from attnspec.spec.contract.operation import Argument, Dim, Kind, Operation

MAY_BE_ZERO = frozenset({"n", "m"})
"""Sizes that may be 0: numbers of queries and keys. Feature and hidden sizes are at least 1."""

Shape = tuple[int, ...]


class ShapeError(ValueError):
    """A shape that violates a Protocol; the message names operation, argument, expected and got."""

    def __init__(self, operation: str, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{operation}: {argument}: expected {expected}; got {got}")
        self.operation, self.argument, self.expected, self.got = operation, argument, expected, got


@dataclass
class Binding:
    """The sizes that names stand for in one call, who bound each, and the common batch."""

    sizes: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    batch: Shape = ()

    def shape(self, dims: Sequence[Dim]) -> Shape:
        """The full shape of an argument or result with these dimensions."""
        batch = self.batch if dims and dims[0].variadic else ()
        return (*batch, *(prod(self.sizes[f] for f in d.factors) for d in dims if not d.variadic))


def broadcast(left: Shape, right: Shape) -> Shape | None:
    """The common shape of two batches, or None if there is none."""
    length = max(len(left), len(right))
    result = []
    for a, b in zip((1,) * (length - len(left)) + left, (1,) * (length - len(right)) + right, strict=True):
        if a != b and 1 not in (a, b):
            return None
        result.append(b if a == 1 else a)
    return tuple(result)


def bind(operation: Operation, values: Mapping[str, Shape | int | None]) -> Binding:
    """Bind the shapes of array arguments and the values of size arguments to the names of the Protocol.

    ``values`` maps an argument to its shape, to its number (sizes), or to None (not given). Raises
    :class:`ShapeError` for the first argument that does not fit.
    """
    binding = Binding()
    late: list[tuple[Argument, Dim, int, Shape]] = []
    for a in operation.arguments:
        value = values.get(a.name)
        if value is None or a.kind is Kind.FLAG:
            continue
        if isinstance(value, int):
            _check_size(operation, a, a.name, value, value)
            binding.sizes[a.name] = value
            binding.origin[a.name] = a.name
            continue
        if not a.dims or not a.is_array:
            if value != ():
                raise ShapeError(operation.name, a.name, "a number", f"shape {value}")
            continue
        _check_rank(operation, a, value)
        if a.batched:
            _bind_batch(operation, a, value[: len(value) - len(a.core)], binding)
        for d, size in zip(a.core, value[len(value) - len(a.core) :], strict=True):
            if d.broadcast or len(d.factors) > 1:
                late.append((a, d, size, value))
            else:
                _bind_size(operation, a, d, size, value, binding)
    for a, d, size, value in late:
        expected = prod(binding.sizes[f] for f in d.factors)
        if size != expected and not (d.broadcast and size == 1):
            or_one = " or 1" if d.broadcast and expected != 1 else ""
            raise ShapeError(
                operation.name, a.name, f"{a.shape_text()} with {d.name} = {expected}{or_one}", _tuple(value)
            )
    return binding


def _check_size(operation: Operation, a: Argument, name: str, size: int, got: object) -> None:
    least = 0 if name in MAY_BE_ZERO else 1
    if size < least:
        shown = _tuple(got) if isinstance(got, tuple) else got
        raise ShapeError(operation.name, a.name, f"{name} of at least {least}", shown)


def _check_rank(operation: Operation, a: Argument, value: Shape) -> None:
    if a.batched and len(value) < len(a.core):
        raise ShapeError(operation.name, a.name, f"{a.shape_text()}, rank {len(a.core)} or more", _tuple(value))
    if not a.batched and len(value) != len(a.core):
        raise ShapeError(operation.name, a.name, f"{a.shape_text()}, rank {len(a.core)}", _tuple(value))


def _bind_batch(operation: Operation, a: Argument, batch: Shape, binding: Binding) -> None:
    common = broadcast(binding.batch, batch)
    if common is None:
        raise ShapeError(
            operation.name, a.name, f"a batch that broadcasts with {_tuple(binding.batch)}", f"batch {_tuple(batch)}"
        )
    binding.batch = common


def _bind_size(operation: Operation, a: Argument, d: Dim, size: int, value: Shape, binding: Binding) -> None:
    known = binding.sizes.setdefault(d.name, size)
    origin = binding.origin.setdefault(d.name, a.name)
    if size != known:
        raise ShapeError(
            operation.name, a.name, f"{a.shape_text()} with {d.name} = {known} (from {origin})", _tuple(value)
        )
    _check_size(operation, a, d.name, size, value)


def _tuple(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
