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
    """True for attention whose scores have a scale, such as `scaled_dot_product_attention`."""
    return operation.differentiable and operation.only_weighs_keys and bool(operation.scores_scale_with)


def may_be_long(operation: Operation) -> bool:
    """True if calls may have many queries and keys, or sequences of different lengths."""
    return operation.float_result and bool(operation.key_size or operation.lengths)


SAME_IN_EVERY_MODE = law(
    "training.same-in-every-mode",
    "A result is the same in every mode of the framework, such as inference. This holds for masked and causal calls, "
    "for one query, for more queries and keys than a tile has, for sequences of different lengths, for new numbers "
    "in the memory of the last call, and in threads other than the main one. Long calls give the same result also "
    "while gradients are recorded. A mode that casts to 16 bits may store scores in 16 bits.",
    formula=r"f(x) = f^*(x) \text{ in every mode; for } n = m > 64 \text{ also while recorded}",
    governs=lambda operation: operation.float_result,
)
RECORDING_CHANGES_NOTHING = law(
    "training.recording-changes-nothing",
    "Recording gradients, of any set of arguments, does not change the result. The gradient of an argument does not "
    "depend on which others have gradients.",
    formula=r"f(x) = f^*(x) \text{ while } \nabla_{x_i} f \text{ is recorded},\ i \in S, \text{ for every } S",
    governs=_differentiable,
    gradients=True,
)
LATER_WRITES_HAVE_NO_EFFECT = law(
    "training.later-writes-have-no-effect",
    "Writing to an argument, a mask or the result between a recorded call and its backward pass changes no gradient, "
    "or makes the backward pass raise an error.",
    formula=r"f(x),\ x_i \leftarrow y_i:\ J(x)^\top c \text{ as before, or an error}",
    governs=_differentiable,
    gradients=True,
)
GRADIENT_ROUNDING_SPREAD = law(
    "training.gradient-rounding-spread",
    "In 16-bit dtypes, the errors of gradients over many batch elements are together no larger than the roundings of "
    "the declared precision class explain. Here g_b are the gradients of element b, g_b^* those of the formula, and "
    "σ_b is the standard deviation of their roundings.",
    formula=r"t_b = \operatorname{mean} (g_b - g_b^*)^2 / \sigma_b^2,"
    r"\quad \operatorname{mean}_b t_b \le 1 + 8 \operatorname{sd}(t) / \sqrt B",
    governs=_weighs,
    gradients=True,
)
STRIDES_DO_NOT_MATTER = law(
    "training.strides-do-not-matter",
    "Gradients depend on the numbers of an argument and of a cotangent, not on their strides: either may be a view "
    "of another array, expanded, strided or transposed.",
    formula=r"J(\operatorname{strided} x)^\top c = J(x)^\top c = J(x)^\top (\operatorname{strided} c)",
    governs=_differentiable,
    gradients=True,
)
LINEAR_IN_COTANGENT = law(
    "training.linear-in-cotangent",
    "Gradients are linear in the cotangent: a large or tiny one gives gradients in proportion, and 0 gives 0. Each "
    "of several results may be differentiated alone.",
    formula=r"J(x)^\top (sc) = s J(x)^\top c,\quad \nabla_x \langle c_i, f_i(x) \rangle = J_i(x)^\top c_i",
    governs=_differentiable,
    gradients=True,
)
BROADCAST_GRADIENTS_SUM = law(
    "training.broadcast-gradients-sum",
    "The gradient of a shared argument is summed over all that share it: over the batch or a part of it, and over "
    "heads, queries and keys.",
    formula=r"\nabla_x f(x_{\text{shared axis}}) = \sum_b (\nabla f)_b",
    governs=_broadcasts,
    gradients=True,
)
GRADIENTS_OWN_MEMORY = law(
    "training.gradients-own-memory",
    "A backward pass writes neither to arguments nor to the cotangent. Every gradient has its own memory: writing to "
    "it changes no argument, no cotangent and no other gradient.",
    formula=r"x, c \text{ after } J(x)^\top c = x, c \text{ before},"
    r"\quad J(x)^\top c \text{ shares no memory with } x \text{ and } c",
    governs=_differentiable,
    gradients=True,
)
OPTIONS_AFFECT_GRADIENTS = law(
    "training.options-affect-gradients",
    "Gradients follow the formula with every option and every optional array, alone and together with any other.",
    formula=r"\nabla_x \langle c, f(x; o, o') \rangle = J^*(x; o, o')^\top c",
    governs=lambda operation: operation.differentiable and optional_parts(operation),
    gradients=True,
)
INDEPENDENT_OF_OTHER_PASSES = law(
    "training.independent-of-other-passes",
    "Gradients depend on no earlier backward pass, of the same recorded call or of another one of the same shapes, "
    "in any order. A later pass changes neither earlier gradients nor earlier results. A repeated pass gives the "
    "same bits, unless `repeatability` is declared to be within-budget.",
    formula=r"J(x)^\top c,\ J(y)^\top c',\ J(x)^\top c:\ \text{each as if alone, the first and the third alike}",
    governs=_differentiable,
    gradients=True,
)
