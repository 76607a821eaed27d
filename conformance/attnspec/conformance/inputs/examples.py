"""Examples: drawn parameters that determine all numbers of a call, for replay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, built, number_of, without_indices

KINDS = ("normal", "integers", "ties", "ones", "large", "wide", "offset", "small", "equal-rows", "zeros")
"""The distributions of the numbers of an array."""

MANY = 256
"""Rows of a table that one byte can index."""

WIDE_RANGE = 1000
"""Bound up to which drawn integers are uniform; beyond, their logarithm is."""

ABSENT = "absent"
MASKS = (ABSENT, "random", "padding", "triangle", "one-key", "banded", "all", "nothing", "some-rows-nothing")
"""The patterns of a mask."""


@dataclass(frozen=True)
class Example:
    """The structure of one call, from which its numbers follow.

    ``kept``: the batch dimensions that each array has, others being 1. ``kinds``: the distribution of each argument's
    numbers. ``options``: the value of each option. ``masks``: the pattern of each mask. ``collapsed``: the sizes along
    which a mask broadcasts. ``absent``: the optional arrays that are None. Each array has its own random stream,
    derived from ``seed``, so that changing one leaves the others as they are.
    """

    sizes: Mapping[str, int]
    batch: tuple[int, ...] = ()
    kept: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    masks: Mapping[str, str] = field(default_factory=dict)
    collapsed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    seed: int = 0

    def arguments(self, operation: Operation, dtype: str) -> Arguments:
        """The arguments that the example describes, exactly representable in the dtype."""
        values = {
            name: self._tree(operation, node, i, self.kinds.get(name, "normal"), dtype)
            for i, (name, node) in enumerate(zip(operation.call.names, operation.call.nodes, strict=True))
        }
        return Arguments(operation, values)

    def _tree(self, operation: Operation, node: Node, place: int, kind: str, dtype: str) -> Any:
        """One argument; in a record, half of the arrays have the drawn kind, others normal."""
        inside = iter(range(1 << 30))

        def at(part: Leaf | Option) -> Any:
            if isinstance(part, Option):
                if part.kind is Kind.SIZE:
                    return self.sizes[part.path]
                value = self.options.get(part.path, operation.defaults.get(part.path))
                below = operation.indices.get(part.path)
                return value if below is None else (value or 0) % self.sizes[below]
            stream = [self.seed, place, next(inside)] if isinstance(node, Branch) else [self.seed, place]
            rng = np.random.Generator(np.random.PCG64(stream))
            own = "normal" if isinstance(node, Branch) and rng.random() < 0.5 else kind
            return self._array(operation, part, rng, own, dtype)

        return built(node, at, lambda branch: self.sizes[branch.count])

    def _array(self, operation: Operation, leaf: Leaf, rng: np.random.Generator, kind: str, dtype: str) -> Any:
        shape = self.shape(leaf)
        if leaf.kind is Kind.INT:
            return None if leaf.path in self.absent else integers(operation, leaf.path, shape, self.sizes, rng)
        if leaf.kind is Kind.BOOL:
            mask = self.masks.get(leaf.path, ABSENT)
            return None if mask == ABSENT and leaf.optional else boolean_mask(mask, shape, rng)
        if leaf.path in self.absent:
            return None
        weight = bool(operation.role(leaf) & Role.WEIGHT)
        return exact_in(numbers(kind, shape, rng, dtype, weight), dtype)

    def shape(self, leaf: Leaf) -> tuple[int, ...]:
        """The shape of an array in this example."""
        kept = self.kept.get(leaf.path, (True,) * len(self.batch))
        batch = tuple(b if k else 1 for b, k in zip(self.batch, kept, strict=True)) if leaf.batched else ()
        collapsed = self.collapsed.get(leaf.path, ())
        core = (
            1
            if d.broadcast and d.factors[0] in collapsed
            else number_of(tuple(map(without_indices, d.factors)), self.sizes) or 0
            for d in leaf.core
        )
        return (*batch, *core)


def integers(
    operation: Operation, path: str, shape: tuple[int, ...], sizes: Mapping[str, int], rng: np.random.Generator
) -> Numbers:
    """Lengths, indices, ends of sequences or other integers, within their bounds."""

    def number(size: str) -> int:
        return number_of(tuple(map(without_indices, size.split("*"))), sizes) or 0

    if path in operation.cumulative:
        total = number(operation.cumulative[path])
        return np.concatenate([[0], np.sort(rng.integers(0, total + 1, shape[0] - 2)), [total]])
    if path in operation.drawn:
        return _drawn(operation.drawn[path], shape, rng)
    counts = path in operation.lengths
    bound = number((operation.lengths if counts else operation.indices)[path])
    found = np.asarray(rng.integers(0, bound + counts, shape))
    # Force the greatest: a narrow integer does not hold it, and random lengths may leave out the last row.
    if found.size > 1 or (found.size and bound > MANY):
        found.reshape(-1)[rng.integers(found.size)] = bound - 1 + counts
    if bound > MANY and not counts:
        found.reshape(-1)[:1] = bound - 1
    return found


def _drawn(bound: int, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Integers below a bound; if it is large, all orders of magnitude are equally frequent."""
    if bound <= WIDE_RANGE:
        return np.asarray(rng.integers(0, bound, shape))
    return np.asarray(np.floor(float(bound) ** rng.random(shape)), dtype=np.int64) - 1


def numbers(kind: str, shape: tuple[int, ...], rng: np.random.Generator, dtype: str, weight: bool = False) -> Numbers:
    """Numbers of a kind; weights are scaled by 1/√fan-in, the last dimension."""
    half = dtype == "float16"
    scale = 1 / sqrt(max(shape[-1], 1)) if weight and shape else 1.0
    match kind:
        case "zeros":
            return np.zeros(shape)
        case "ones":
            return np.full(shape, 0.5 if weight else 1.0)
        case "integers":
            return rng.integers(-3, 4, shape).astype(float) * _power(scale)
        case "ties":
            return rng.choice([-1.0, 0.0, 1.0], shape) * _power(scale)
        case "large":
            return rng.standard_normal(shape) * scale * (6 if half else 30)
        case "wide":
            exponents = rng.integers(-12 if half else -20, 3 if half else 6, shape)
            return np.asarray(rng.standard_normal(shape) * scale * 2.0**exponents)
        case "offset":
            return rng.standard_normal(shape) * scale + (0.0 if weight else 4.0)
        case "small":
            return rng.standard_normal(shape) * scale * 2.0**-9
        case "equal-rows":
            row = rng.standard_normal((*shape[:-2], 1, *shape[-1:]) if len(shape) > 1 else shape)
            return np.array(np.broadcast_to(row * scale, shape))
        case _:
            return rng.standard_normal(shape) * scale


def _power(scale: float) -> float:
    """The power of 2 that is nearest to a scale."""
    return float(2.0 ** np.round(np.log2(scale)))


def boolean_mask(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """A mask of a pattern: (…, n, m), or (…, m) for all queries."""
    *batch, m = shape
    if kind == "nothing":
        return np.zeros(shape, bool)
    if kind == "random":
        return rng.random(shape) < 0.6
    if kind == "padding":
        lengths = rng.integers(0, m + 1, (*batch[:-1], 1) if len(shape) > 1 else ())
        return np.array(np.broadcast_to(np.arange(m) < lengths[..., None], shape))
    if kind == "one-key":
        chosen = rng.integers(0, max(m, 1), batch)
        return np.asarray(np.arange(m) == np.asarray(chosen)[..., None])
    if kind == "some-rows-nothing":
        return (rng.random(shape) < 0.7) & (rng.random((*batch, 1)) < 0.6)
    rows = np.arange(shape[-2] if len(shape) > 1 else 1)[:, None]
    columns = np.arange(m)
    drawn = {"triangle": columns <= rows, "banded": np.abs(columns - rows) <= 1}.get(kind, np.ones((1, m), bool))
    return np.array(np.broadcast_to(drawn if len(shape) > 1 else drawn[0], shape))
