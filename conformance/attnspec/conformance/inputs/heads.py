"""Sizes of attention whose heads divide its width (limit ``divided_heads``)."""

from functools import lru_cache
from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments, keep
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf, without_indices


class Divided(NamedTuple):
    """Names of sizes: numbers of heads, features per head, features of all heads."""

    heads: tuple[str, ...]
    parts: tuple[str, ...]
    widths: tuple[str, ...]


@lru_cache(maxsize=1024)
def divided_sizes(operation: Operation) -> Divided:
    """The sizes of projections into and out of heads; empty without such weights."""
    heads, parts, widths = [], [], []
    for leaf in operation.leaves:
        if _projects(leaf, operation):
            head, part, width = (d.factors[0] for d in leaf.core)
            heads.append(head)
            parts.append(part)
            widths.append(width)
        elif _joins(leaf, operation):
            widths.append(leaf.core[0].factors[0])
    return Divided(*(tuple(dict.fromkeys(names)) for names in (heads, parts, widths)))


def _counts_heads(size: str, operation: Operation) -> bool:
    return Axis.HEAD in operation.axis(without_indices(size))


def _projects(leaf: Leaf, operation: Operation) -> bool:
    """Return whether a weight (heads, head features, row features) projects rows into heads."""
    if not operation.role(leaf) & Role.WEIGHT or len(leaf.core) != 3 or not all(d.plain for d in leaf.core):
        return False
    whole = (x for x in operation.leaves if not any(_counts_heads(size, operation) for size in x.sizes))
    rows = {size for x in whole for size in x.sizes}
    head, _, width = (without_indices(d.factors[0]) for d in leaf.core)
    return _counts_heads(head, operation) and width in rows


def _joins(leaf: Leaf, operation: Operation) -> bool:
    """Return whether a weight (features, heads × head features) projects the joined heads."""
    if not operation.role(leaf) & Role.WEIGHT or len(leaf.core) != 2:
        return False
    factors = leaf.core[-1].factors
    return len(factors) == 2 and _counts_heads(factors[0], operation)


def divided(sizes: dict[str, int], operation: Operation, limits: Limits) -> dict[str, int]:
    """The sizes with heads that divide the width, if the limits require it.

    All attentions are alike. The width is at most that of the widest array; limited head sizes are those of one head.
    """
    found = divided_sizes(operation)
    if not limits.divided_heads or not found.heads:
        return sizes
    heads = sizes[found.heads[0]]
    width = max(sizes[name] for name in (*found.parts, *found.widths))
    part = sizes[found.parts[0]] if limits.head_sizes is not None else max(width // heads, 1)
    return {
        **sizes,
        **dict.fromkeys(found.heads, heads),
        **dict.fromkeys(found.parts, part),
        **dict.fromkeys(found.widths, heads * part),
    }


def divides(arguments: Arguments, limits: Limits) -> bool:
    """Return whether the arguments satisfy the limit ``divided_heads``."""
    if not limits.divided_heads:
        return True
    operation = arguments.operation
    shapes = [x.shape for leaf, x in arguments.given if _projects(leaf, operation)]
    joined = [x.shape for leaf, x in arguments.given if _joins(leaf, operation)]
    alike = {(heads, part) for heads, part, _ in shapes}
    widths = {heads * part for heads, part in alike} | {shape[-1] for shape in shapes} | {n for s in joined for n in s}
    return len(alike) <= 1 and len(widths) <= 1


def count_of_heads(arguments: Arguments) -> tuple[int, int] | None:
    """The number of heads and features per head; None without projections into heads."""
    shapes = (x.shape for leaf, x in arguments.given if _projects(leaf, arguments.operation))
    return next(((heads, part) for heads, part, _ in shapes), None)


def with_heads(arguments: Arguments, heads: int, part: int) -> Arguments:
    """A copy with only the first heads and head features; widths are cut to match."""
    found = divided_sizes(arguments.operation)
    sizes = dict.fromkeys(found.heads, heads) | dict.fromkeys(found.parts, part)
    sizes |= dict.fromkeys(found.widths, heads * part)
    for name in tuple(arguments.sizes):
        if without_indices(name) in sizes:
            arguments = arguments.along(name, keep(sizes[without_indices(name)]))
    return arguments
