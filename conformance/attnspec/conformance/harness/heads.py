"""Heads as elements: how many a call has, and the parts of it that have some of them."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers, along
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import schematic

if TYPE_CHECKING:
    from attnspec.conformance.harness.parts import Part


def count_of_heads(arguments: Arguments) -> int:
    """The heads of a call, 1 without any; of an operation with several attentions those of the largest."""
    kinds = [(arguments.operation.axis(schematic(size)), count) for size, count in arguments.sizes.items()]
    most = max((count for kind, count in kinds if Axis.HEAD in kind), default=1)
    return most * prod(count for kind, count in kinds if Axis.GROUP in kind)


def own_heads(operation: Operation) -> tuple[str, ...]:
    """The sizes of heads that have results of their own, in front of all others; none where heads are joined."""
    counted = {*operation.sizes_of(Axis.HEAD), *operation.sizes_of(Axis.GROUP)}
    first = {leaf.core[0].factors if leaf.core else () for leaf in operation.outputs}
    return next(iter(first)) if len(first) == 1 and {*next(iter(first))} <= counted else ()


def of_heads(operation: Operation, part: "Part", most: float) -> Iterator["Part"]:
    """A part in parts of at most so many heads, and of one at least."""
    heads = count_of_heads(part.arguments)
    size = next((size for size in own_heads(operation) if part.arguments.size(size) > 1), None)
    if heads <= most or size is None:
        yield part
        return
    count = part.arguments.size(size)
    together = max(int(most * count // heads), 1)
    for start in range(0, count, together):
        yield from of_heads(operation, _cut(operation, part, size, slice(start, start + together)), most)


def _cut(operation: Operation, part: "Part", size: str, chosen: slice) -> "Part":
    """The part of these heads, or of these of every group."""

    def change(x: Numbers, axis: int) -> Numbers:
        return x[(slice(None),) * axis + (chosen,)]

    sizes, binding = own_heads(operation), part.arguments.binding
    found = {leaf.path: along(part.results[leaf.path], leaf, size, binding, change) for leaf in operation.outputs}
    heads = np.arange(count_of_heads(part.arguments)) if part.heads is None else part.heads
    grid = heads.reshape([part.arguments.size(name) for name in sizes])
    heads = change(grid, sizes.index(size)).ravel()
    return replace(part, arguments=part.arguments.along(size, change), results=found, heads=heads)
