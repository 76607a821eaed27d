"""Laws of attention."""

from attnspec.spec.attention import DotProductAttention, GeneralAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import DAO, S0, S1, S2, S3, S4
from attnspec.spec.kernels import MergeAttention
from attnspec.spec.laws.pooling import linear_in_batches, weighs_once
from attnspec.spec.multihead import ConcatHeadsAttention, MultiHeadAttention
from attnspec.spec.pooling import NadarayaWatson
from attnspec.spec.scoring import DotScores, GaussianScores, GeneralScores, ScaledDotScores

inner_products = of(DotProductAttention, ScaledDotProductAttention)
"""Attention whose scores are inner products of queries and keys."""


bilinear_scores = of(
    DotProductAttention, ScaledDotProductAttention, GeneralAttention, MultiHeadAttention, ConcatHeadsAttention
)
"""Attention whose scores are linear in queries and in keys, with values separate from the keys."""


merges_parts = of(MergeAttention)
"""Merging of attention results for parts of the keys."""

gives_scores = of(DotScores, ScaledDotScores, GeneralScores, GaussianScores)
"""Operations that return scores: their derivative by the logarithm of the scale is the scores themselves."""


def averages_by_scores(operation: Operation) -> bool:
    """True if the scores have a scale and the result is linear in the values that they weigh."""
    return bool(operation.sharpened) and operation.pooled in operation.linear


def scales_once(operation: Operation) -> bool:
    """True if scores have a scale and keys are weighed once: no layers, no time steps."""
    return bool(operation.sharpened) and weighs_once(operation)


def _separate_keys(operation: Operation) -> bool:
    """True if results sum over keys that are not also queries."""
    return bool(operation.separate_keys)


ORDER_FREE = ((Axis.QUERY, Axis.KEY), (Axis.KEY, Axis.QUERY), (Axis.SELF, Axis(0)), (Axis.HEAD, Axis(0)))
"""Kinds of axes that may be unordered, each with a kind that the same axis must not also have."""


def _order_free(operation: Operation, kind: Axis, but: Axis) -> bool:
    return any(not operation.axis(size) & but for size in operation.order_free(kind))


def shares_keys(operation: Operation) -> bool:
    """True if one array may be passed as keys and values."""
    return len(operation.attended) > 1 and _rows_alike(operation)


def shares_all(operation: Operation) -> bool:
    """True if one array may be passed as queries, keys and values."""
    several = operation.only_weighs_keys and len(operation.attended) > 1
    return several and any(operation.asking in leaf.sizes for leaf in operation.queries)


def _rows_alike(operation: Operation) -> bool:
    """True if queries, keys and values have equal axes before their rows: the same heads, or none."""
    return len({x.core[:-2] for x in (*operation.queries, *operation.attended)}) == 1


PERMUTATION = law(
    "attention.permutation",
    "Queries, keys with their values, sequences and graphs without positions, and heads have no order: permuted with "
    "all that belongs to them, they permute the results that have a row or column for each, and no others.",
    formula=r"f(Pq, k, v) = P f(q, k, v),\quad f(q, Pk, Pv; MP^\top) = f(q, k, v; M),\quad f(PX) = P f(X)",
    governs=lambda operation: any(_order_free(operation, kind, but) for kind, but in ORDER_FREE),
    sources=[
        S0.equation(10),
        S0.equation(11),
        S0.equation(17),
        S1.passage("Attention: definition"),
        S2.passage("Machine Translation, solution 1"),
        S3.passage("Input Sequence Order"),
        S3.passage("The math behind “attending to the input”"),
        S4.passage("Inductive Bias"),
    ],
)
SINGLE_KEY = law(
    "attention.single-key",
    "One attendable key returns its value, whatever its score.",
    formula=r"A_i = \{j\} \Rightarrow o_i = v_j",
    governs=lambda operation: bool(operation.pooled) and operation.weighs_keys,
    sources=[S0.equation(2)],
)
DUPLICATION = law(
    "attention.duplication",
    "Repeating every key, value and column of the mask changes nothing.",
    formula=r"f(q, [k; k], [v; v]) = f(q, k, v)",
    governs=lambda operation: bool(operation.unordered_keys),
    sources=[S0.equation(2)],
)
SPLIT_AND_MERGE = law(
    "attention.split-and-merge",
    "Attention over two halves of the keys recombines, each half weighted by its sum of exponentials.",
    formula=r"o = \frac{Z_1 o_1 + Z_2 o_2}{Z_1 + Z_2},\quad Z = \sum_j \exp e_j",
    governs=lambda operation: _separate_keys(operation) and operation.pooled in operation.linear,
    sources=[S0.equation(2)],
)
HARD_LIMIT = law(
    "attention.hard-limit",
    "As scores grow apart, attention returns the value of the best key: unlike those of a fully connected layer, the "
    "weights depend on the input, and each query finds its own key.",
    formula=r"\beta \to \infty:\ f(\beta q, k, v)_i \to v_{\arg\max_j e_{ij}},\quad f(\beta k_j, k, v) \to v_j",
    governs=of(DotProductAttention, ScaledDotProductAttention, NadarayaWatson, SelfAttention),
    sources=[S0.equation(2), S1.passage("Self-Attention: comparison with convolution and fully-connected layer")],
)
SCALE = law(
    "attention.scale",
    "The scale of the scores has no error that shows over all elements together or over many batch elements with "
    "independent errors, even where it is far below the rounding of each element.",
    formula=r"\hat\varepsilon = \sum w (o - o^*) g / \sum w g^2 \approx 0,"
    r"\quad \sum_b \langle o_b - o_b^*, g_b \rangle / \sum_b \|g_b\|^2 \approx 0,"
    r"\quad g = \partial o^* / \partial \log(\text{scale})",
    governs=lambda operation: averages_by_scores(operation) or scales_once(operation) or gives_scores(operation),
    sources=[S0.equation(5), S0.equation(6), S2.passage("Encoder Attention")],
)
MAGNITUDES = law(
    "attention.magnitudes",
    "The formula holds for numbers that normal ones do not come near: values of 10¹¹ and subnormal ones, scores "
    "that are all near −120, or beyond 10⁴, a feature that outweighs all others, a key that every query likes and one "
    "that none does, a key that has almost all the weight, and rows of low rank, as those of trained models.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}(x)",
    governs=lambda operation: bool(operation.pooled or operation.linear) and weighs_once(operation),
)
INFINITE_VALUES = law(
    "attention.infinite-values",
    "An infinity at an attendable value reaches its feature of the rows that attend to it, and no other feature: there "
    "the result is that infinity, or NaN, and never a number.",
    formula=r"j \in A_i,\ v_{jc} = \pm\infty \Rightarrow o_{ic} \in \{\pm\infty, \text{NaN}\}",
    governs=lambda operation: operation.weighs_keys and bool(operation.pooled) and operation.pooled in operation.linear,
    sources=[S0.equation(1)],
)
ENSEMBLE_GRADIENT = law(
    "attention.ensemble-gradient",
    "Over the independent errors of many batch elements, no gradient shows an error of gain.",
    formula=r"\hat\varepsilon = \sum_b \langle dx_b - dx_b^*, dx_b^* \rangle / \sum_b \|dx_b^*\|^2 \approx 0",
    governs=lambda operation: bool(operation.pooled or operation.linear) and weighs_once(operation),
    sources=[S0.equation(1)],
    gradients=True,
)
GRADIENT_IDENTITIES = law(
    "attention.gradient-identities",
    "Gradients have the symmetries of the formula. An argument in which the result is linear, times its gradient, is "
    "the result times the cotangent. Queries and keys that meet in inner products alone have the same product with "
    "their gradients. Where scores are inner products, the gradients of all keys add up to 0, since softmax does not "
    "see a shift of all keys. Gradients of attention to parts of the keys, merged, are those of attention to all.",
    formula=r"\langle V, dV \rangle = \langle c, f(V) \rangle,"
    r"\quad \sum_i \langle q_i, dq_i \rangle = \sum_j \langle k_j, dk_j \rangle,\quad \textstyle\sum_j dk_j = 0,"
    r"\quad \nabla \langle c, \operatorname{merge}_p f(q, k_p, v_p) \rangle = \nabla \langle c, f(q, k, v) \rangle",
    governs=lambda operation: any(
        selects(operation) for selects in (linear_in_batches, bilinear_scores, inner_products, merges_parts)
    ),
    sources=[
        S0.equation(1),
        S0.equation(2),
        S0.equation(6),
        S0.equation(8),
        DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation"),
    ],
    gradients=True,
)
SCALE_TRADE = law(
    "attention.scale-trade",
    "A power of two or a sign moved from the keys to the queries changes no bit.",
    formula=r"f(4q, k/4, v) = f(q, k, v),\quad f(-q, -k, v) = f(q, k, v)",
    governs=inner_products,
    sources=[S0.equation(6)],
)
SHARED_INPUTS = law(
    "attention.shared-inputs",
    "The same array passed twice gives what two equal arrays give, in every mode, and each of them its gradient.",
    formula=r"f(x, x) = f(x, \operatorname{copy} x),\quad \nabla_q f(x, x, x) = \nabla_q f(q, k, v),\ q = k = v = x",
    governs=lambda operation: shares_keys(operation) or shares_all(operation),
    sources=[S0.equation(16), S0.equation(17)],
)
