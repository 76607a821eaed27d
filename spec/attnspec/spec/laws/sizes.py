"""Laws of sizes that tests rarely try: results follow the formula for large sizes too."""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws.operation import batched
from attnspec.spec.normalization import MeanNormalization
from attnspec.spec.pooling import AveragePooling

WIDE = (Axis.FEATURE, Axis.WIDTH, Axis.HIDDEN)
"""Axes of vector components."""


def attends_under_mask(operation: Operation) -> bool:
    """True if queries may be permuted and attend to separate keys. The mask has a row for each query."""
    mask, size = operation.mask, operation.query_size
    if mask is None or size is None or size not in mask.sizes or operation.attends_to_itself or operation.counts:
        return False
    return size in operation.order_free(Axis.QUERY) and bool(operation.attended)


def has_query_and_key_rows(operation: Operation) -> bool:
    """True if an operation without layers has rows for queries and rows for keys."""
    return bool(operation.query_size and operation.attended and operation.queries and not _has_layers(operation))


def _has_layers(operation: Operation) -> bool:
    """True if the operation has layers, or records with their own sizes, as models have."""
    return bool(operation.counts) or any("." in size for size in operation.sizes)


def may_share_batches(operation: Operation) -> bool:
    """True if keys or a mask may have other batch dimensions than queries or scores."""
    several = sum(leaf.batched for leaf in operation.leaves) > 1
    return several and bool(operation.attended or operation.masks) and not _has_layers(operation)


def masked_by_query(operation: Operation) -> bool:
    """True if a mask of an operation without layers has a row per query."""
    mask, queries = operation.mask, operation.query_size
    return mask is not None and queries is not None and queries in mask.sizes and not _has_layers(operation)


def has_features(operation: Operation) -> bool:
    """True if arguments have an axis of vector components."""
    return any(operation.sizes_of(axis) for axis in WIDE)


def heads_compare(operation: Operation) -> bool:
    """True if rows for queries are compared with rows for keys, and rows have features."""
    return has_query_and_key_rows(operation) and bool(operation.sizes_of(Axis.FEATURE))


def in_heads(operation: Operation) -> bool:
    """True if arguments have a heads axis and the result is float."""
    return bool(operation.sizes_of(Axis.HEAD)) and operation.float_result


counts_keys = of(MeanNormalization, AveragePooling)
"""Operations that divide by the number of keys."""

MODEL_SIZES = law(
    "sizes.model-sizes",
    "Results follow the formula at sizes that models use, one at a time: batches of up to 7, vectors of 8 to 256 "
    "features and rows of 1,100, up to 65 heads, masks of more than 256 keys, averages over 70,000 keys, and tables "
    "of 32,800 rows.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ d \in \{8, \ldots, 256, 1100\} \text{ or } h \le 65 "
    r" \text{ or } m > 256 \text{ or } |V| > 2^{15}",
    governs=lambda operation: any(
        selects(operation) for selects in (batched, has_features, heads_compare, in_heads, masked_by_query, counts_keys)
    ),
)
LARGE_SIZES = law(
    "sizes.large-sizes",
    "Results follow the formula at large sizes, one at a time: thousands of positions, 65,600 keys, 512 features, "
    "576 with values of 512, and batches of 65,536; and for more than 1,024 queries with as many keys.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ m > 512,\ d = 512,\ b \ge 2^{16}",
    governs=lambda operation: bool(operation.sizes),
)
LARGE_SIZE_GRADIENTS = law(
    "sizes.large-size-gradients",
    "Gradients follow the formula at large sizes, one at a time, and under masks in all combinations of two or three "
    "sizes, masks, layouts and magnitudes that models use. Queries without a cotangent have the gradient 0.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c,\ m > 512 \text{ or } d = 256 \text{ or in combinations}",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
COMBINED_SIZES = law(
    "sizes.combined-sizes",
    "Results follow the formula in all combinations of two or three sizes, masks, layouts and magnitudes of models.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}",
    governs=attends_under_mask,
)
