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
    "Vectors of 96 to 256 features follow the formula, one size at a time.",
    formula=r"|f(x) - f^*(x)| \le \text{budget},\ d \in \{96, 160, 192, 256\}",
    governs=_has_features,
)
BEYOND = law(
    "sizes.beyond",
    "Thousands of positions, 512 features and 65,536 elements of a batch follow the formula, one size at a time.",
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
