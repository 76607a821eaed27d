"""Laws of attention in kernels: grouped heads, caps, biases, sinks, packed and paged caches."""

from attnspec.spec.contract.axes import Axis, Part
from attnspec.spec.contract.law import law, of
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.sources import (
    AINSLIE,
    BELTAGY,
    DAO,
    DEEPSEEK,
    GEMMA,
    KRELL,
    KWON,
    PRESS,
    SRIVASTAVA,
    SU,
    XIAO,
)
from attnspec.spec.kernels import (
    AlibiSlopes,
    DocumentMask,
    Dropout,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    RotaryEmbedding,
    SlidingWindowMask,
    VariableLengthAttention,
)


def _in_groups(operation: Operation) -> bool:
    """True if heads of the queries share heads of the keys."""
    return bool(operation.sizes_of(Axis.GROUP))


GROUPS = law(
    "kernels.groups",
    "Every head of the queries is attention to the head of the keys that its group shares: one group, a group for each "
    "head, and all between.",
    formula=r"f(q, k, v)_r = f(q_r, k_{\lfloor r / g \rfloor}, v_{\lfloor r / g \rfloor})",
    governs=_in_groups,
    sources=[AINSLIE.passage("2.2 Grouped-query attention")],
)
CAP = law(
    "kernels.cap",
    "A great cap changes nothing, and under a small one all attendable keys have equal weights.",
    formula=r"c \to \infty:\ f(x; c) \to f(x),\quad c \to 0:\ f(x; c) \to f(x; \lambda = 0)",
    governs=lambda operation: bool(operation.part(Part.CAP)),
    sources=[GEMMA.passage("2 Model architecture: logit soft-capping")],
)
BIAS = law(
    "kernels.bias",
    "Slopes are a bias that falls with the distance; a sink is one more key with its score as bias and a value of 0, "
    "for the output and for the logarithm.",
    formula=r"f(x; m) = f(x; B_{rij} = -m_r |i - j|),\quad f(q, k, v; b) = f(q, [k; 0], [v; 0]; B = [0, b])",
    governs=of(GroupedQueryAttention),
    sources=[
        PRESS.passage("3 Attention with linear biases"),
        XIAO.passage("3.3 Pre-training LLMs with attention sinks"),
    ],
)
LOGARITHM = law(
    "kernels.logarithm",
    "Repeating all keys adds log 2 to the logarithm and leaves the output; adding a number to all scores adds it. The "
    "logarithm of a row without attendable keys is −∞, or that of its sink, and the output is 0.",
    formula=r"\ell(q, [k; k]) = \ell(q, k) + \log 2,\quad \ell(s + c) = \ell(s) + c,"
    r"\quad A_i = \emptyset \Rightarrow o_i = 0,\ \ell_i = -\infty\ \text{or}\ b",
    governs=of(GroupedQueryAttention),
    sources=[DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation")],
)
PACKED = law(
    "kernels.packed",
    "Packed sequences give what each of them gives alone.",
    formula=r"f([q_1; q_2], [k_1; k_2], [v_1; v_2]) = [f(q_1, k_1, v_1); f(q_2, k_2, v_2)]",
    governs=of(VariableLengthAttention),
    sources=[KRELL.passage("Abstract")],
)
CONTIGUOUS = law(
    "kernels.contiguous",
    "A paged cache gives what its rows give in one piece; what stands in pages that no element uses, and behind the "
    "last row, has no effect, NaN and ∞ included.",
    formula=r"f(q, K, V; t, \ell) = g(q, [K_t], [V_t]; \ell),"
    r"\quad j \ge \ell \Rightarrow f \text{ does not depend on } (k_j, v_j)",
    governs=of(PagedAttention),
    sources=[KWON.passage("4.1 PagedAttention")],
)
PLAIN_AND_ABSORBED = law(
    "kernels.plain-and-absorbed",
    "Latent attention is that of keys and values projected for every head, and that of projected queries to the latent "
    "vectors themselves, in one group.",
    formula=r"f = g([q; \hat q], [W^K c; \hat k], W^V c) = W^V g([{W^K}^\top q; \hat q], [c; \hat k], c)",
    governs=of(LatentAttention),
    sources=[DEEPSEEK.passage("2.1.2 Low-rank key-value joint compression")],
)
MERGED = law(
    "kernels.merged",
    "Attention to parts of the keys, merged by their logarithms, is attention to all; empty parts do not count, and "
    "merged to nothing where there are no others: 0 and −∞.",
    formula=r"\operatorname{merge}_p f(q, k_p, v_p) = f(q, k, v)",
    governs=of(MergeAttention),
    sources=[DAO.passage("3.1 An efficient attention algorithm with tiling and recomputation")],
)
ROTATION = law(
    "kernels.rotation",
    "A rotary embedding keeps the length of every row, leaves position 0 as it is, and makes inner products depend on "
    "the distance of positions alone.",
    formula=r"\|R_t x\| = \|x\|,\quad R_0 x = x,"
    r"\quad \langle R_s q, R_t k \rangle = \langle R_{s+c} q, R_{t+c} k \rangle",
    governs=of(RotaryEmbedding),
    sources=[SU.passage("3.2.2 General form")],
)
SLOPE_HALVES = law(
    "kernels.slope-halves",
    "Slopes of a power of two of heads fall by one factor, from it to 2⁻⁸; other heads have every other slope of twice "
    "as many.",
    formula=r"m_{r+1} / m_r = m_0,\ m_{H-1} = 2^{-8};\quad m_{H+r}(h) = m_{2r}(2H)",
    governs=of(AlibiSlopes),
    sources=[PRESS.passage("3 Attention with linear biases")],
)
MASKS = law(
    "kernels.masks",
    "A window is the intersection of its left and its right part. Without reach on either side it is the diagonal; "
    "open to the left, without reach to the right, it is the causal mask. "
    "The names of documents do not matter, and exchanging queries and keys transposes their mask.",
    formula=r"M_{l,r} = M_{l,\infty} \wedge M_{\infty,r},\quad M_{0,0} = I,\quad M_{\infty,0} = [j \le i];"
    r"\quad M(\pi D, \pi E) = M(D, E),\quad M(E, D) = M(D, E)^\top",
    governs=of(SlidingWindowMask, DocumentMask),
    sources=[BELTAGY.passage("3.1 Attention pattern: sliding window"), KRELL.passage("Abstract")],
)
DROPOUT_MEAN = law(
    "kernels.dropout-mean",
    "Over masks that keep every weight equally often, the mean is the weight itself.",
    formula=r"\operatorname{E}[K] = 1 - p \Rightarrow \operatorname{E}[f(\alpha; K)] = \alpha",
    governs=of(Dropout),
    sources=[SRIVASTAVA.passage("4 Model description")],
)
