"""Laws of attention.

The selectors read what a Protocol declares (see ``laws.pooling``), and what `Operation` derives from it. ``attended``
are arguments with a row per key. With ``weighs_keys`` all results sum over keys, with ``only_weighs_keys`` they are no
more than that: 0 without keys. ``separate_keys`` are sizes of masked keys that are no queries; ``unordered_keys`` are
those without time order over which all results sum. Sizes in ``order_free`` may be permuted.
"""

from attnspec.spec.attention import DotProductAttention, GeneralAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import DAO, S0, S1, S2, S3, S4
from attnspec.spec.kernels import MergeAttention, SigmoidAttention
from attnspec.spec.laws.pooling import linear_in_batches, weighs_once
from attnspec.spec.multihead import ConcatHeadsAttention, MultiHeadAttention
from attnspec.spec.pooling import NadarayaWatson
from attnspec.spec.scoring import DotScores, GaussianScores, GeneralScores, ScaledDotScores

inner_products = of(DotProductAttention, ScaledDotProductAttention)
"""Attention whose scores are inner products of queries and keys."""

bilinear_scores = of(
    DotProductAttention, ScaledDotProductAttention, GeneralAttention, MultiHeadAttention, ConcatHeadsAttention
)
"""Attention whose scores are linear in queries and keys, with values separate from keys."""

merges_parts = of(MergeAttention)
"""Merging of attention results for parts of the keys."""

adds_keys = of(SigmoidAttention)
"""Attention whose weights of a row are not normalised."""

returns_scores = of(DotScores, ScaledDotScores, GeneralScores, GaussianScores)
"""Operations that return scores, which are their own derivative by the logarithm of the scale."""


def averages_by_scaled_scores(operation: Operation) -> bool:
    """True if scores have a scale and the result is linear in the pooled values."""
    return bool(operation.scores_scale_with) and operation.pooled in operation.linear


def scales_scores_once(operation: Operation) -> bool:
    """True if scores have a scale and keys are weighed once: no layers, no time steps."""
    return bool(operation.scores_scale_with) and weighs_once(operation)


ORDER_FREE = ((Axis.QUERY, Axis.KEY), (Axis.KEY, Axis.QUERY), (Axis.SELF, Axis(0)), (Axis.HEAD, Axis(0)))
"""Kinds of unordered axes, each with a kind that its sizes must not have too.

They are queries that are no keys, keys that are no queries, positions of self-attention, and heads.
"""


def _order_free(operation: Operation, kind: Axis, excluded: Axis) -> bool:
    return any(not operation.axis(size) & excluded for size in operation.order_free(kind))


def keys_may_be_values(operation: Operation) -> bool:
    """True if one array may be passed as keys and values."""
    return len(operation.attended) > 1 and _rows_alike(operation)


def queries_may_be_keys(operation: Operation) -> bool:
    """True if one array may be passed as queries, keys and values, at fitting sizes."""
    several = operation.only_weighs_keys and len(operation.attended) > 1
    return several and any(operation.query_size in leaf.sizes for leaf in operation.queries)


def _rows_alike(operation: Operation) -> bool:
    """True if queries, keys and values have equal axes before their rows: the same heads, or none."""
    return len({x.core[:-2] for x in (*operation.queries, *operation.attended)}) == 1


PERMUTATION_EQUIVARIANCE = law(
    "attention.permutation-equivariance",
    "Queries have no order, nor have keys with their values, heads, or sequences and graphs without positions. "
    "Permuting them permutes the rows or columns of the results that belong to them and changes nothing else.",
    formula=r"f(Pq, k, v) = P f(q, k, v),\quad f(q, Pk, Pv; MP^\top) = f(q, k, v; M),\quad f(PX) = P f(X)",
    governs=lambda operation: any(_order_free(operation, *kinds) for kinds in ORDER_FREE),
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
SINGLE_KEY_RETURNS_ITS_VALUE = law(
    "attention.single-key-returns-its-value",
    "With a single attendable key, the result is its value, whatever its score.",
    formula=r"A_i = \{j\} \Rightarrow o_i = v_j",
    governs=lambda operation: bool(operation.pooled) and operation.weighs_keys,
    sources=[S0.equation(2)],
)
DUPLICATED_KEYS_CHANGE_NOTHING = law(
    "attention.duplicated-keys-change-nothing",
    "Repeating every key, with its value and its column of the mask, changes nothing.",
    formula=r"f(q, [k; k], [v; v]) = f(q, k, v)",
    governs=lambda operation: bool(operation.unordered_keys) and not adds_keys(operation),
    sources=[S0.equation(2)],
)
SPLIT_AND_MERGE = law(
    "attention.split-and-merge",
    "Attention over two halves of the keys, each weighted by its sum of exponentials, gives attention over all keys.",
    formula=r"o = \frac{Z_1 o_1 + Z_2 o_2}{Z_1 + Z_2},\quad Z = \sum_j \exp e_j",
    governs=lambda operation: bool(operation.separate_keys) and operation.pooled in operation.linear,
    sources=[S0.equation(2)],
)
HARDMAX_LIMIT = law(
    "attention.hardmax-limit",
    "As the scores grow apart, attention returns the value of the best key. Its weights depend on the input, unlike "
    "those of a fully connected layer: each query finds its own key.",
    formula=r"\beta \to \infty:\ f(\beta q, k, v)_i \to v_{\arg\max_j e_{ij}},\quad f(\beta k_j, k, v) \to v_j",
    governs=of(DotProductAttention, ScaledDotProductAttention, NadarayaWatson, SelfAttention),
    sources=[S0.equation(2), S1.passage("Self-Attention: comparison with convolution and fully-connected layer")],
)
UNBIASED_SCALE = law(
    "attention.unbiased-scale",
    "The scale of the scores has no systematic error. Even an error far below the rounding of one element would show "
    "over all elements together, or over many batch elements with independent rounding errors.",
    # w is 1/σ², with the standard deviation σ of an element's rounding error.
    formula=r"\hat\varepsilon = \sum w (o - o^*) g / \sum w g^2 \approx 0,"
    r"\quad \sum_b \langle o_b - o_b^*, g_b \rangle / \sum_b \|g_b\|^2 \approx 0,"
    r"\quad g = \partial o^* / \partial \log(\text{scale})",
    governs=lambda operation: (
        averages_by_scaled_scores(operation) or scales_scores_once(operation) or returns_scores(operation)
    ),
    sources=[S0.equation(5), S0.equation(6), S2.passage("Encoder Attention")],
)
EXTREME_MAGNITUDES = law(
    "attention.extreme-magnitudes",
    "The formula holds far from the magnitudes of normal random numbers: for values of 10¹¹ and subnormal values; for "
    "queries of 0; for scores all near −120, or beyond 10⁴; for one feature that outweighs all others; for a key that "
    "every query prefers or avoids; for a key with almost all the weight; for scores that rise along the keys; for "
    "rows of low rank, as in trained models.",
    formula=r"|f(x) - f^*(x)| \le \text{budget}(x)",
    governs=lambda operation: bool(operation.pooled or operation.linear) and weighs_once(operation),
)
INFINITE_VALUES_PROPAGATE = law(
    "attention.infinite-values-propagate",
    "An infinite value at an attendable key makes its feature infinite or NaN, never a finite number, in every row "
    "that attends to the key. No other feature changes.",
    formula=r"j \in A_i,\ v_{jc} = \pm\infty \Rightarrow o_{ic} \in \{\pm\infty, \text{NaN}\}",
    governs=lambda operation: operation.weighs_keys and bool(operation.pooled) and operation.pooled in operation.linear,
    sources=[S0.equation(1)],
)
UNBIASED_GRADIENT = law(
    "attention.unbiased-gradient",
    "Gradients have no common factor that is too large or too small. Even an error of the factor far below the "
    "rounding of one element would show over many batch elements with independent rounding errors.",
    formula=r"\hat\varepsilon = \sum_b \langle dx_b - dx_b^*, dx_b^* \rangle / \sum_b \|dx_b^*\|^2 \approx 0",
    governs=lambda operation: bool(operation.pooled or operation.linear) and weighs_once(operation),
    sources=[S0.equation(1)],
    gradients=True,
)
GRADIENT_IDENTITIES = law(
    "attention.gradient-identities",
    "Gradients keep the symmetries of the formula. An argument in which the result is linear has the same inner "
    "product with its gradient as the result has with the cotangent. Queries and keys that meet only in inner "
    "products have the same inner product with their gradients. Where scores are inner products, the gradients of "
    "all keys add up to 0: shifting all keys shifts all scores of a query alike, which softmax ignores. Merging "
    "attention over parts of the keys gives the gradients of attention over all keys.",
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
QUERY_KEY_SCALE_EXCHANGE = law(
    "attention.query-key-scale-exchange",
    "Moving a power of two or a sign from the keys to the queries changes no bit of the result.",
    formula=r"f(4q, k/4, v) = f(q, k, v),\quad f(-q, -k, v) = f(q, k, v)",
    governs=inner_products,
    sources=[S0.equation(6)],
)
SAME_ARRAY_PASSED_TWICE = law(
    "attention.same-array-passed-twice",
    "Passing one array for two arguments gives what two equal arrays give, in every mode of the framework. Each "
    "argument gets its own gradient.",
    formula=r"f(x, x) = f(x, \operatorname{copy} x),\quad \nabla_q f(x, x, x) = \nabla_q f(q, k, v),\ q = k = v = x",
    governs=lambda operation: keys_may_be_values(operation) or queries_may_be_keys(operation),
    sources=[S0.equation(16), S0.equation(17)],
)
