"""Changes of scores by role, as defects make them, for all operations with such options."""

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.laws import ensembles
from attnspec.spec.contract.axes import Axis, Part, Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf

ADDED = (Part.BIAS, Part.SLOPES, Part.SINK)
"""Options that are added to scores, or to their exponentials."""


def has_parts(operation: Operation) -> bool:
    """Return whether rows attend to unprojected keys, with options that change scores."""
    rows = operation.asking in operation.order_free(Axis.QUERY) and bool(operation.linear)
    return rows and bool(operation.part(Part.SCALE)) and not any(is_weight(operation, x) for x in operation.floats)


def is_weight(operation: Operation, leaf: Leaf) -> bool:
    """Return whether an array is a weight applied to numbers shared by all rows."""
    return bool(operation.role(leaf) & Role.WEIGHT) and leaf.path not in operation.parts


def without(given: Arguments, *parts: Part) -> Arguments:
    """Remove these options from the arguments; without them scores are unchanged."""
    operation = given.operation
    paths = [path for path, part in operation.parts.items() if part in parts]
    return given.replaced({path: operation.defaults[path] for path in paths})


def rescaled(given: Arguments, factor: float) -> Arguments:
    """Multiply the scores by a factor before all other steps, in double precision."""
    if given.operation.sharpened or not given.operation.part(Part.SCALE):
        return ensembles.rescaled(given, factor)
    return ensembles.multiplied(given, {leaf.path: factor for leaf in given.operation.queries})
