"""Changes of arguments that change the scores as defects do: without an option, or rescaled.

The reference's result of changed arguments is that of a defect, such as a bias that is not added. `judge` looks whether
a result has something of its difference (`ensemble`), and whether an input would show it (`hidden_defects`).
"""

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.laws import ensembles
from attnspec.spec.contract.axes import Axis, Role, ScoreEffect
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Leaf

ADDED = (ScoreEffect.BIAS, ScoreEffect.SLOPES, ScoreEffect.SINK)
"""Options that are added to scores, or to their exponentials."""


def has_score_options(operation: Operation) -> bool:
    """Return True for `grouped_query_attention` and its like: independent rows, unprojected keys, a scale option."""
    by_row = operation.query_size in operation.order_free(Axis.QUERY) and bool(operation.linear)
    return (
        by_row
        and bool(operation.part(ScoreEffect.SCALE))
        and not any(is_weight(operation, x) for x in operation.floats)
    )


def is_weight(operation: Operation, leaf: Leaf) -> bool:
    """Return True for a weight matrix, which all rows share; an option is no weight."""
    return bool(operation.role(leaf) & Role.WEIGHT) and leaf.path not in operation.parts


def without(arguments: Arguments, *parts: ScoreEffect) -> Arguments:
    """Return the arguments with these options set to their defaults, which leave scores unchanged."""
    operation = arguments.operation
    paths = [path for path, part in operation.parts.items() if part in parts]
    return arguments.replaced({path: operation.defaults[path] for path in paths})


def rescaled(arguments: Arguments, factor: float) -> Arguments:
    """Return arguments whose scores are multiplied by ``factor`` before caps, biases and masks.

    With a scale option, as in `grouped_query_attention`, queries are multiplied. In others, the arguments named in
    ``scores_scale_with`` share the factor.
    """
    if arguments.operation.scores_scale_with or not arguments.operation.part(ScoreEffect.SCALE):
        return ensembles.rescaled(arguments, factor)
    return ensembles.multiplied(arguments, {leaf.path: factor for leaf in arguments.operation.queries})
