"""Examples: the sizes, options and seed from which a call can be replayed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import exact_in
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Branch, Kind, Leaf, Node, Option, build_tree, dimension_value, without_indices

KINDS = ("normal", "integers", "ties", "ones", "large", "wide", "offset", "small", "equal-rows", "zeros")
"""The distributions of the numbers of an array."""

ONE_BYTE = 256
"""Number of table rows that one byte can index."""

UNIFORM_BOUND = 1000
"""Bound up to which drawn integers are uniform; beyond it, their logarithm is."""

ABSENT = "absent"
MASKS = (ABSENT, "random", "padding", "triangle", "one-key", "banded", "all", "nothing", "some-rows-nothing")
"""The patterns of a mask."""


@dataclass(frozen=True)
class Example:
    """Sizes, options and seed of one call, which determine all its numbers.

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
        """One argument; each array of a record has the drawn kind or is normal."""
        leaf_numbers = iter(range(1 << 30))

        def leaf_value(part: Leaf | Option) -> Any:
            if isinstance(part, Option):
                if part.kind is Kind.SIZE:
                    return self.sizes[part.path]
                first = next(iter(operation.trial_values.get(part.path, ())), None)
                value = self.options.get(part.path, operation.defaults.get(part.path, first))
                bound = operation.indices.get(part.path)
                return value if bound is None else (value or 0) % self.sizes[bound]
            stream = [self.seed, place, next(leaf_numbers)] if isinstance(node, Branch) else [self.seed, place]
            rng = np.random.Generator(np.random.PCG64(stream))
            own_kind = "normal" if isinstance(node, Branch) and rng.random() < 0.5 else kind
            return self._array(operation, part, rng, own_kind, dtype)

        return build_tree(node, leaf_value, lambda branch: self.sizes[branch.count])

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
        drawn = numbers(kind, shape, rng, dtype, weight)
        return exact_in(within(drawn, operation.generated_within.get(leaf.path)), dtype)

    def shape(self, leaf: Leaf) -> tuple[int, ...]:
        """The shape of an array in this example."""
        kept = self.kept.get(leaf.path, (True,) * len(self.batch))
        batch = tuple(size if keep else 1 for size, keep in zip(self.batch, kept, strict=True)) if leaf.batched else ()
        collapsed = self.collapsed.get(leaf.path, ())
        core = (
            1
            if d.broadcast and d.factors[0] in collapsed
            else dimension_value(tuple(map(without_indices, d.factors)), self.sizes) or 0
            for d in leaf.core
        )
        return (*batch, *core)


def integers(
    operation: Operation, path: str, shape: tuple[int, ...], sizes: Mapping[str, int], rng: np.random.Generator
) -> Numbers:
    """Integers within their bounds: lengths, indices, ends of sequences or others."""

    def number(size: str) -> int:
        return dimension_value(tuple(map(without_indices, size.split("*"))), sizes) or 0

    if path in operation.cumulative:
        total = number(operation.cumulative[path])
        return np.concatenate([[0], np.sort(rng.integers(0, total + 1, shape[0] - 2)), [total]])
    if path in operation.selections:
        return _different_integers(number(operation.selections[path]), shape, rng)
    if path in operation.generated_below:
        return _integers_below(operation.generated_below[path], shape, rng)
    is_length = path in operation.lengths  # a length may equal its bound, an index may not
    bound = number((operation.lengths if is_length else operation.indices)[path])
    values = np.asarray(rng.integers(0, bound + is_length, shape))
    # One of them is the greatest: it overflows narrow integers, and random lengths may omit the last row.
    if values.size > 1 or (values.size and bound > ONE_BYTE):
        values.reshape(-1)[rng.integers(values.size)] = bound - 1 + is_length
    # So is the first index: every length of at least 1 uses the first entry of its block table.
    if bound > ONE_BYTE and not is_length:
        values.reshape(-1)[:1] = bound - 1
    return values


def _different_integers(bound: int, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Rows of different integers below a bound in random order, with −1 at random places."""
    *rows, count = shape
    ranks = np.argsort(rng.random((*rows, max(bound, count))), axis=-1)[..., :count]
    named = np.argsort(rng.random(shape), axis=-1) < rng.integers(0, 2 * count + 1, (*rows, 1))
    return np.where(named & (ranks < bound), ranks, -1)


def _integers_below(bound: int, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """Integers below a bound; a large bound makes all orders of magnitude equally frequent."""
    if bound <= UNIFORM_BOUND:
        return np.asarray(rng.integers(0, bound, shape))
    return np.asarray(np.floor(float(bound) ** rng.random(shape)) - 1, dtype=np.int64)


def numbers(kind: str, shape: tuple[int, ...], rng: np.random.Generator, dtype: str, weight: bool = False) -> Numbers:
    """Numbers of a kind; weights are scaled by 1/√(last dimension)."""
    is_float16 = dtype == "float16"
    scale = 1 / sqrt(max(shape[-1], 1)) if weight and shape else 1.0
    match kind:
        case "zeros":
            return np.zeros(shape)
        case "ones":
            return np.full(shape, 0.5 if weight else 1.0)
        case "integers":
            return rng.integers(-3, 4, shape).astype(float) * _nearest_power_of_2(scale)
        case "ties":
            return rng.choice([-1.0, 0.0, 1.0], shape) * _nearest_power_of_2(scale)
        case "large":
            return rng.standard_normal(shape) * scale * (6 if is_float16 else 30)
        case "wide":
            exponents = rng.integers(-12 if is_float16 else -20, 3 if is_float16 else 6, shape)
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


def within(x: Numbers, bounds: float | tuple[float, float] | None) -> Numbers:
    """Numbers clipped to a range, with the signs that it has; or rows divided by their norm where it is larger."""
    if bounds is None:
        return x
    if isinstance(bounds, tuple):
        low, high = bounds
        x = np.abs(x) if low >= 0 else -np.abs(x) if high <= 0 else x
        clipped: Numbers = np.clip(x, low, high)
        return clipped
    norms = np.sqrt(np.square(x).sum(-1, keepdims=True))
    shortened: Numbers = x / np.maximum(norms / bounds, 1.0)
    return shortened


def _nearest_power_of_2(scale: float) -> float:
    return float(2.0 ** np.round(np.log2(scale)))


def boolean_mask(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Numbers:
    """A mask with a pattern: (…, n, m), or (…, m) for all queries."""
    *batch, m = shape
    if kind == "nothing":
        return np.zeros(shape, bool)
    if kind == "random":
        return rng.random(shape) < 0.6
    if kind == "padding":
        lengths = rng.integers(0, m + 1, (*batch[:-1], 1) if len(shape) > 1 else ())
        return np.array(np.broadcast_to(np.arange(m) < lengths[..., None], shape))
    if kind == "one-key":
        keys = rng.integers(0, max(m, 1), batch)
        return np.asarray(np.arange(m) == np.asarray(keys)[..., None])
    if kind == "some-rows-nothing":
        return (rng.random(shape) < 0.7) & (rng.random((*batch, 1)) < 0.6)
    rows = np.arange(shape[-2] if len(shape) > 1 else 1)[:, None]
    columns = np.arange(m)
    patterns = {"triangle": columns <= rows, "banded": np.abs(columns - rows) <= 1}.get(kind, np.ones((1, m), bool))
    return np.array(np.broadcast_to(patterns if len(shape) > 1 else patterns[0], shape))
