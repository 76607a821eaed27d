"""Laws of sizes that are rarely tried: what holds where all are small holds where one is large."""

from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation

WIDE = (Axis.FEATURE, Axis.WIDTH, Axis.HIDDEN)
"""What a vector has many of."""


def _batched(operation: Operation) -> bool:
    return any(leaf.batched for leaf in operation.leaves)


def _attends(operation: Operation) -> bool:
    """Whether queries attend to keys, each on its own, under a mask."""
    mask, asking = operation.mask, operation.asking
    if mask is None or asking is None or asking not in mask.sizes or operation.attends_to_itself or operation.counts:
        return False
    return asking in operation.order_free(Axis.QUERY) and bool(operation.attended)


def compares(operation: Operation) -> bool:
    """Whether rows for queries meet rows for keys, outside the layers of a model."""
    return bool(operation.asking and operation.attended and operation.queries and not _has_layers(operation))


def _has_layers(operation: Operation) -> bool:
    """Whether there are hidden layers or layer norms around attention, as in the layers of a model."""
    return bool(operation.counts) or any("." in size for size in operation.sizes)


def _shares(operation: Operation) -> bool:
    """Whether keys or a mask may have other batch dimensions than queries or scores."""
    several = sum(leaf.batched for leaf in operation.leaves) > 1
    return several and bool(operation.attended or operation.masks) and not _has_layers(operation)


def _masked_by_query(operation: Operation) -> bool:
    mask, asking = operation.mask, operation.asking
    return mask is not None and asking is not None and asking in mask.sizes and not _has_layers(operation)


def _has_features(operation: Operation) -> bool:
    return any(operation.sizes_of(axis) for axis in WIDE)


BATCHES = law(
    "sizes.batches",
    "Every element of a batch follows the formula, however many there are.",
    formula=r"|f(x)_b - f^*(x_b)| \le \text{budget},\ b = 1, \ldots, 7",
    governs=_batched,
)
FEATURES = law(
    "sizes.features",
    "Vectors of 96 to 256 features follow the formula, one size at a time; rows on their own, of 1,100; and tables and "
    "vocabularies of 32,800 rows.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ d \in \{96, 160, 192, 256, 1100\} \text{ or } |V| > 2^{15}",
    governs=_has_features,
)
HEAD_SIZES = law(
    "sizes.head-sizes",
    "Every multiple of eight up to 128 is a size of heads and of values like any other, and so are 100, 101 and 224.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ d = d_v \in \{8, 16, \ldots, 128, 100, 101, 224\}",
    governs=lambda operation: compares(operation) and bool(operation.sizes_of(Axis.FEATURE)),
)
HEADS = law(
    "sizes.heads",
    "Every head follows the formula, however many there are.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ h \in \{12, 16, 33, 65\}",
    governs=lambda operation: bool(operation.sizes_of(Axis.HEAD)) and operation.float_result,
)
SHARED = law(
    "sizes.shared",
    "Keys, queries and masks that elements of a batch, or its heads, share count for each of them, and no others.",
    formula=r"f(x_{1h}, y_{bh}) = f(\operatorname{repeat}_b x_{1h}, y_{bh})",
    governs=_shares,
)
LONG_MASKS = law(
    "sizes.long-masks",
    "A mask of more than 256 keys counts in every row, of more than 16 queries too, as kernels process them together.",
    formula=r"|f(x, M) - f^*(x, M)| \le \text{budget},\ n > 16,\ m > 256",
    governs=_masked_by_query,
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
    "Gradients are those of the formula where one size is large.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c,\ m > 512 \text{ or } d = 256",
    governs=lambda operation: operation.differentiable,
    gradients=True,
)
TOGETHER = law(
    "sizes.together",
    "Sizes, masks, layouts and magnitudes as models have them follow the formula in all combinations of two or three.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}",
    governs=_attends,
)
GRADIENTS_TOGETHER = law(
    "sizes.gradients-together",
    "Gradients are those of the formula in these combinations, too; those of queries without a cotangent are 0.",
    formula=r"\nabla_x \langle c, f(x) \rangle = J(x)^\top c",
    governs=lambda operation: operation.differentiable and _attends(operation),
    gradients=True,
)
