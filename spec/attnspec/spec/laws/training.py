"""Laws of training: results while gradients are recorded, and backward passes."""

from attnspec.spec.contract.law import law
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import Kind
from attnspec.spec.laws.operation import optional_parts


def _differentiable(operation: Operation) -> bool:
    return operation.differentiable


def several_results(operation: Operation) -> bool:
    """True if several results may have a cotangent."""
    return operation.differentiable and sum(leaf.kind is Kind.FLOAT for leaf in operation.outputs) > 1


def _broadcasts(operation: Operation) -> bool:
    return operation.differentiable and sum(leaf.batched for leaf in operation.floats) > 1


def _weighs(operation: Operation) -> bool:
    return operation.differentiable and operation.only_weighs_keys and bool(operation.sharpened)


def may_be_long(operation: Operation) -> bool:
    """True if calls may have many queries and keys, or sequences of different lengths."""
    return operation.float_result and bool(operation.asked or operation.lengths)


MODES = law(
    "training.modes",
    "A result is the same in every mode of the framework, such as inference. This holds for masked and causal calls, "
    "for one query, for more queries and keys than a tile has, for sequences of different lengths, for new numbers in "
    "the memory of the last call, and in a thread that is not the main one. Long calls give it also while gradients "
    "are recorded. A mode that casts to 16 bits may store scores in them.",
    formula=r"f(x) = f^*(x) \text{ in every mode; for } n = m > 64 \text{ also while recorded}",
    governs=lambda operation: operation.float_result,
)
RECORDED = law(
    "training.recorded-result",
    "Recording gradients, of whichever arguments, does not change the result, and the gradient of an argument does not "
    "depend on which others have gradients.",
    formula=r"f(x) = f^*(x) \text{ while } \nabla_{x_i} f \text{ is recorded},\ i \in S, \text{ for every } S",
    governs=_differentiable,
    gradients=True,
)
LATER_WRITES = law(
    "training.later-writes",
    "What is written to an argument, a mask or the result between a recorded call and its backward pass changes no "
    "gradient, or the backward pass raises.",
    formula=r"f(x),\ x_i \leftarrow y_i:\ J(x)^\top c \text{ as before, or an error}",
    governs=_differentiable,
    gradients=True,
)
GRADIENT_SPREAD = law(
    "training.gradient-spread",
    "In dtypes of 16 bits, errors of gradients over many batch elements are together not larger than the roundings of "
    "the declared precision class leave them: g_b are the gradients of element b, g_b^* those of the formula, σ_b the "
    "standard deviation of their roundings.",
    formula=r"t_b = \operatorname{mean} (g_b - g_b^*)^2 / \sigma_b^2,"
    r"\quad \operatorname{mean}_b t_b \le 1 + 8 \operatorname{sd}(t) / \sqrt B",
    governs=_weighs,
    gradients=True,
)
STRIDES = law(
    "training.strides",
    "Of an argument and of a cotangent only the numbers count for gradients, not their strides: either may be a view "
    "of another array, expanded, strided or transposed.",
    formula=r"J(\operatorname{strided} x)^\top c = J(x)^\top c = J(x)^\top (\operatorname{strided} c)",
    governs=_differentiable,
    gradients=True,
)
COTANGENTS = law(
    "training.cotangents",
    "Gradients are linear in the cotangent: large and tiny ones give as large and as tiny gradients, 0 gives 0, and "
    "each of several results may be differentiated alone.",
    formula=r"J(x)^\top (sc) = s J(x)^\top c,\quad \nabla_x \langle c_i, f_i(x) \rangle = J_i(x)^\top c_i",
    governs=_differentiable,
    gradients=True,
)
BROADCAST_SUM = law(
    "training.broadcast-sum",
    "The gradient of an argument is summed over all that share it: over the batch of the others, or a part of it, and "
    "over heads, queries and keys.",
    formula=r"\nabla_x f(x_{\text{shared axis}}) = \sum_b (\nabla f)_b",
    governs=_broadcasts,
    gradients=True,
)
OWN_MEMORY = law(
    "training.own-memory",
    "A backward pass writes neither to arguments nor to the cotangent. Every gradient has its own memory: writing to "
    "it changes no argument, no cotangent and no other gradient.",
    formula=r"x, c \text{ after } J(x)^\top c = x, c \text{ before},"
    r"\quad J(x)^\top c \text{ shares no memory with } x \text{ and } c",
    governs=_differentiable,
    gradients=True,
)
OPTIONS = law(
    "training.options",
    "Gradients are those of the formula with every option and every optional array, alone and beside any other.",
    formula=r"\nabla_x \langle c, f(x; o, o') \rangle = J^*(x; o, o')^\top c",
    governs=lambda operation: operation.differentiable and optional_parts(operation),
    gradients=True,
)
NO_MEMORY = law(
    "training.no-memory",
    "Gradients depend on no earlier backward pass, of the same record or another one of the same shapes, in whichever "
    "order, and a later one changes neither them nor earlier results. A repeated pass gives gradients with the same "
    "bits, unless `repeatability` is declared to be within-budget.",
    formula=r"J(x)^\top c,\ J(y)^\top c',\ J(x)^\top c:\ \text{each as if alone, the first and the third alike}",
    governs=_differentiable,
    gradients=True,
)
