"""Heads of a call: how many it has, and which have results of their own."""

from math import prod

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import schematic


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
