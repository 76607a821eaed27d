"""What is done to scores, by role: changed as defects change it, for every operation that has options for it."""

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.laws import ensembles
from attnspec.spec.contract.axes import Axis, Part, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf

ADDED = (Part.BIAS, Part.SLOPES, Part.SINK)
"""What is added to scores, or to their exponentials."""


def has_parts(operation: Operation) -> bool:
    """Whether rows are attention to keys that are given as they are, with options for what is done to scores."""
    rows = operation.asking in operation.order_free(Axis.QUERY) and bool(operation.linear)
    return rows and bool(operation.part(Part.SCALE)) and not any(is_weight(operation, x) for x in operation.floats)


def is_weight(operation: Operation, leaf: Leaf) -> bool:
    """Whether an array is a parameter that multiplies what all rows share, and none that belongs to scores."""
    return bool(operation.role(leaf) & Role.WEIGHT) and leaf.path not in operation.parts


def without(given: Arguments, *parts: Part) -> Arguments:
    """Arguments without these options, which leave scores as they are if they are not given."""
    operation = given.operation
    paths = [path for path, part in operation.parts.items() if part in parts]
    return given.replaced({path: operation.defaults[path] for path in paths})


def rescaled(given: Arguments, factor: float) -> Arguments:
    """Arguments whose scores are multiplied by a factor before anything else is done to them, in double precision."""
    if given.operation.sharpened or not given.operation.part(Part.SCALE):
        return ensembles.rescaled(given, factor)
    return ensembles.multiplied(given, {leaf.path: factor for leaf in given.operation.queries})
