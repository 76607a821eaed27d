"""Laws of sizes that tests rarely try: results follow the formula for large sizes too."""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws.operation import batched
from attnspec.spec.normalization import MeanNormalization
from attnspec.spec.pooling import AveragePooling

WIDE = (Axis.FEATURE, Axis.WIDTH, Axis.HIDDEN)
"""Axes of vector components."""


def attends(operation: Operation) -> bool:
    """True if queries in any order attend to separate keys, under a mask with a row for each query."""
    mask, asking = operation.mask, operation.asking
    if mask is None or asking is None or asking not in mask.sizes or operation.attends_to_itself or operation.counts:
        return False
    return asking in operation.order_free(Axis.QUERY) and bool(operation.attended)


def compares(operation: Operation) -> bool:
    """True if there are rows for queries and rows for keys, outside the layers of a model."""
    return bool(operation.asking and operation.attended and operation.queries and not _has_layers(operation))


def _has_layers(operation: Operation) -> bool:
    """True if the operation has layers, or records with their own sizes, as models have."""
    return bool(operation.counts) or any("." in size for size in operation.sizes)


def shares(operation: Operation) -> bool:
    """True if keys or a mask may differ from queries or scores in their batch dimensions."""
    several = sum(leaf.batched for leaf in operation.leaves) > 1
    return several and bool(operation.attended or operation.masks) and not _has_layers(operation)


def masked_by_query(operation: Operation) -> bool:
    """True if every query has its own row of a mask, outside the layers of a model."""
    mask, asking = operation.mask, operation.asking
    return mask is not None and asking is not None and asking in mask.sizes and not _has_layers(operation)


def has_features(operation: Operation) -> bool:
    """True if arguments have an axis of vector components."""
    return any(operation.sizes_of(axis) for axis in WIDE)


def heads_compare(operation: Operation) -> bool:
    """True if rows for queries are compared with rows for keys, and rows have features."""
    return compares(operation) and bool(operation.sizes_of(Axis.FEATURE))


def in_heads(operation: Operation) -> bool:
    """True if arguments have a heads axis and the result is float."""
    return bool(operation.sizes_of(Axis.HEAD)) and operation.float_result


counts_keys = of(MeanNormalization, AveragePooling)
"""Operations that divide by the number of keys."""

FEATURES = law(
    "sizes.features",
    "Sizes that models have follow the formula, one at a time: up to 7 elements of a batch, vectors of 8 to 256 "
    "features and rows of 1,100, up to 65 heads, masks of more than 256 keys, 70,000 keys that are counted, and tables "
    "and vocabularies of 32,800 rows.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ d \in \{8, \ldots, 256, 1100\} \text{ or } h \le 65 "
    r" \text{ or } m > 256 \text{ or } |V| > 2^{15}",
    governs=lambda operation: any(
        selects(operation) for selects in (batched, has_features, heads_compare, in_heads, masked_by_query, counts_keys)
    ),
)
BEYOND = law(
    "sizes.beyond",
    "Thousands of positions, 65,600 keys, 512 features, 576 beside values of 512, and 65,536 elements of a batch "
    "follow the formula, one size at a time; and more than 1,024 queries beside as many keys.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ m > 512,\ d = 512,\ b \ge 2^{16}",
    governs=lambda operation: bool(operation.sizes),
)
GRADIENTS = law(
    "sizes.gradients",
    "Gradients are those of the formula where one size is large. Where queries attend to keys under a mask, they are "
    "so in all combinations of two or three sizes, masks, layouts and magnitudes that models have; those of queries "
    "without a cotangent are 0.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c,\ m > 512 \text{ or } d = 256 \text{ or in combinations}",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
TOGETHER = law(
    "sizes.together",
    "Sizes, masks, layouts and magnitudes as models have them follow the formula in all combinations of two or three.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}",
    governs=attends,
)
