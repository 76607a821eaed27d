"""Sizes of attention whose heads divide its width (limit ``divided_heads``)."""

from functools import lru_cache
from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments, keep
from attnspec.spec.contract.axes import Axis, Role
from attnspec.spec.contract.limits import Limits
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf, without_indices


class DividedSizes(NamedTuple):
    """Names of sizes: number of heads, features per head, features of all heads."""

    heads: tuple[str, ...]
    parts: tuple[str, ...]
    widths: tuple[str, ...]


@lru_cache(maxsize=1024)
def divided_sizes(operation: Operation) -> DividedSizes:
    """Names of the sizes of projections into and out of heads; empty without them."""
    heads, parts, widths = [], [], []
    for leaf in operation.leaves:
        if _projects_into_heads(leaf, operation):
            head, part, width = (d.factors[0] for d in leaf.core)
            heads.append(head)
            parts.append(part)
            widths.append(width)
        elif _projects_joined_heads(leaf, operation):
            widths.append(leaf.core[0].factors[0])
    return DividedSizes(*(tuple(dict.fromkeys(names)) for names in (heads, parts, widths)))


def _counts_heads(size: str, operation: Operation) -> bool:
    return Axis.HEAD in operation.axis(without_indices(size))


def _projects_into_heads(leaf: Leaf, operation: Operation) -> bool:
    """Return whether a leaf is a weight (heads, head features, row features)."""
    if not operation.role(leaf) & Role.WEIGHT or len(leaf.core) != 3 or not all(d.plain for d in leaf.core):
        return False
    without_heads = (x for x in operation.leaves if not any(_counts_heads(size, operation) for size in x.sizes))
    row_sizes = {size for x in without_heads for size in x.sizes}
    head, _, width = (without_indices(d.factors[0]) for d in leaf.core)
    return _counts_heads(head, operation) and width in row_sizes


def _projects_joined_heads(leaf: Leaf, operation: Operation) -> bool:
    """Return whether a leaf is a weight (features, heads × head features)."""
    if not operation.role(leaf) & Role.WEIGHT or len(leaf.core) != 2:
        return False
    factors = leaf.core[-1].factors
    return len(factors) == 2 and _counts_heads(factors[0], operation)


def with_divided_heads(sizes: dict[str, int], operation: Operation, limits: Limits) -> dict[str, int]:
    """The sizes with heads that divide the width, if the limits require it.

    All attentions get equal sizes. The width is at most that of the widest array; a limit of head sizes is per head.
    """
    names = divided_sizes(operation)
    if not limits.divided_heads or not names.heads:
        return sizes
    heads = sizes[names.heads[0]]
    width = max(sizes[name] for name in (*names.parts, *names.widths))
    part = sizes[names.parts[0]] if limits.head_sizes is not None else max(width // heads, 1)
    return {
        **sizes,
        **dict.fromkeys(names.heads, heads),
        **dict.fromkeys(names.parts, part),
        **dict.fromkeys(names.widths, heads * part),
    }


def heads_divide_width(arguments: Arguments, limits: Limits) -> bool:
    """Return whether the arguments satisfy the limit ``divided_heads``."""
    if not limits.divided_heads:
        return True
    operation = arguments.operation
    shapes = [x.shape for leaf, x in arguments.leaf_arrays if _projects_into_heads(leaf, operation)]
    joined = [x.shape for leaf, x in arguments.leaf_arrays if _projects_joined_heads(leaf, operation)]
    alike = {(heads, part) for heads, part, _ in shapes}
    widths = {heads * part for heads, part in alike} | {shape[-1] for shape in shapes} | {n for s in joined for n in s}
    return len(alike) <= 1 and len(widths) <= 1


def heads_and_features(arguments: Arguments) -> tuple[int, int] | None:
    """Numbers of heads and of features per head; None without projections into heads."""
    shapes = (x.shape for leaf, x in arguments.leaf_arrays if _projects_into_heads(leaf, arguments.operation))
    return next(((heads, part) for heads, part, _ in shapes), None)


def with_first_heads(arguments: Arguments, heads: int, part: int) -> Arguments:
    """A copy with the first ``heads`` and ``part`` features of each; widths match."""
    names = divided_sizes(arguments.operation)
    sizes = dict.fromkeys(names.heads, heads) | dict.fromkeys(names.parts, part)
    sizes |= dict.fromkeys(names.widths, heads * part)
    for name in tuple(arguments.sizes):
        if without_indices(name) in sizes:
            arguments = arguments.along(name, keep(sizes[without_indices(name)]))
    return arguments
