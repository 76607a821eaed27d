"""Attention: values pooled by the softmax of scores over the attendable keys.

Edges: Key j is attendable for query i where `mask` is True. With `causal`, j ≤ i must hold as well. If n ≠ `m`,
`causal` aligns query 0 with key 0 (semantics `causal_alignment`). Keys that are not attendable are left out with their
values, NaN and ∞ included. NaN at an attendable key makes the rows that attend to this key NaN (semantics
`attendable_nan`). An infinite value there makes its feature of these rows infinite; the feature is NaN if +∞ and −∞
meet, or if a kernel splits numbers into parts. Two results are left open: that of NaN or ∞ at a key whose weight rounds
to 0, and that of ∞ in queries or attendable keys. A row whose scores are all −∞ is NaN by the formula and 0 in
PyTorch's fused kernels. A query without attendable keys gives 0 and zero gradients (semantics `fully_masked`). So does
every query if `m` = 0 (semantics `no_keys`). A query with a single attendable key gives the value of that key. An empty
batch gives an empty result. So does `n` = 0.
"""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BAHDANAU, LUONG, S0, S1, S2, S3, S4, VASWANI

__all__ = [
    "AdditiveAttention",
    "AttentionOperations",
    "AttentionTable",
    "CrossAttention",
    "DotProductAttention",
    "GeneralAttention",
    "ProjectedSelfAttention",
    "ScaledDotProductAttention",
    "SelfAttention",
]


@operation(
    "dot_product_attention",
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q K^\top) V",
    sources=[
        S1.passage("Attention: definition"),
        S1.passage("Use Attention: Q = K = V = X"),
        S2.passage("Generalized Attention in Matrix Form"),
        S3.passage("Example: Dot-Product Attention"),
    ],
    pooled="value",
    linear="value",
    scores_scale_with={"query": 1.0},
)
class DotProductAttention(Protocol[Array]):
    """Attention with the dot product as score.

    Where: The result is in units of value.
    Domain: Σ|q||k| does not overflow.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "scaled_dot_product_attention",
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q K^\top / \sqrt{d}) V",
    sources=[S0.equation(6), S3.passage("Attention Mapping"), S4.passage("Scoring Function")],
    pooled="value",
    linear="value",
    scores_scale_with={"query": 1.0},
)
class ScaledDotProductAttention(Protocol[Array]):
    """Attention with the scaled dot product as score.

    Where: d is the size of the multiplied vectors. The result is in units of value.
    Domain: Σ|q||k| does not overflow.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "general_attention",
    chapter="attention",
    formula=r"O = \operatorname{softmax}(Q W K^\top) V",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("general")],
    pooled="value",
    linear="value",
    scores_scale_with={"query": 1.0},
)
class GeneralAttention(Protocol[Array]):
    """Attention with Luong's general score.

    Where: The result is in units of value.
    Domain: Σ|q||W||k| does not overflow.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w: Float[Array, "d_q d_k"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "additive_attention",
    chapter="attention",
    formula=r"o_i = \sum_j \operatorname{softmax}_j(w_v^\top \tanh(W_q q_i + W_k k_j))\, v_j",
    sources=[S0.equation(1), S0.equation(2), S0.equation(4), BAHDANAU.passage("3.1")],
    pooled="value",
    linear="value",
    scores_scale_with={"w_v": 1.0},
)
class AdditiveAttention(Protocol[Array]):
    """Attention with the additive score: Bahdanau's attention for any queries, keys and values.

    Where: Bahdanau's decoder queries with its state, and keys and values are both the annotations: see
    `bahdanau_context` in the chapter seq2seq. Weights are (out, in). The result is in units of value.
    Domain: W_q q and W_k k do not overflow; however large they are, tanh saturates and the result is finite.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "h d_q"],
        w_k: Float[Array, "h d_k"],
        w_v: Float[Array, " h"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "self_attention",
    chapter="attention",
    formula=r"y_i = \sum_j \operatorname{softmax}_j(x_i^\top x_j / \sqrt{d})\, x_j",
    sources=[S0.equation(17), S4.passage("Self-Attention")],
    axes={"n": Axis.SELF},
    pooled="x",
)
class SelfAttention(Protocol[Array]):
    """Self-attention without weights: each row of x is query, key and value.

    Where: S0 leaves the score open; here it is the scaled dot product, S0(5). S1's Q = K = V = X has no 1/√d: compute
    it as `dot_product_attention` of x, x and x. The result is in units of x.
    Domain: Σ|x||x| does not overflow.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d"],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d"]: ...


@operation(
    "projected_self_attention",
    chapter="attention",
    formula=r"Y = \operatorname{softmax}(Q K^\top / \sqrt{d_k}) V,"
    r"\quad Q = X W_q^\top,\ K = X W_k^\top,\ V = X W_v^\top",
    sources=[S1.passage("Self-Attention: independent linear transformations"), S2.passage("Encoder Attention")],
    axes={"n": Axis.SELF},
    linear="w_v",
    scores_scale_with={"w_q": 1.0},
)
class ProjectedSelfAttention(Protocol[Array]):
    """Self-attention whose queries, keys and values are linear maps of x.

    Where: Weights are (out, in). The result is in units of w_v × x. S1's form has no 1/√d_k: compute it as
    `dot_product_attention` of the projections.
    Domain: After projection, Σ|q||k| stays finite.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d_x"],
        w_q: Float[Array, "d_k d_x"],
        w_k: Float[Array, "d_k d_x"],
        w_v: Float[Array, "d_v d_x"],
        *,
        mask: Bool[Array, "*#batch #n #n"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "cross_attention",
    chapter="attention",
    formula=r"Y = \operatorname{softmax}(Q K^\top / \sqrt{d_k}) V,"
    r"\quad Q = X W_q^\top,\ K = M W_k^\top,\ V = M W_v^\top",
    sources=[
        S2.passage("Encoder-Decoder Attention"),
        S3.passage("Attending to the input (encoder)"),
        VASWANI.passage("encoder-decoder attention"),
    ],
    linear="w_v",
    scores_scale_with={"w_q": 1.0},
)
class CrossAttention(Protocol[Array]):
    """Attention of one sequence to another: queries from x, keys and values from a memory.

    Where: Weights are (out, in). The result is in units of w_v × memory. There is no causal flag, since x and memory
    share no time axis.
    Domain: After projection, Σ|q||k| stays finite.
    """

    def __call__(
        self,
        x: Float[Array, "*#batch n d_x"],
        memory: Float[Array, "*#batch m d_m"],
        w_q: Float[Array, "d_k d_x"],
        w_k: Float[Array, "d_k d_m"],
        w_v: Float[Array, "d_v d_m"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
    ) -> Float[Array, "*batch n d_v"]: ...


class AttentionOperations(Generic[Array]):
    """The operations of attention as methods of a backend class."""

    dot_product_attention: DotProductAttention[Array]
    scaled_dot_product_attention: ScaledDotProductAttention[Array]
    general_attention: GeneralAttention[Array]
    additive_attention: AdditiveAttention[Array]
    self_attention: SelfAttention[Array]
    projected_self_attention: ProjectedSelfAttention[Array]
    cross_attention: CrossAttention[Array]


class AttentionTable(TypedDict, Generic[Array], total=False):
    """The operations of attention by name, as a typed dictionary."""

    dot_product_attention: DotProductAttention[Array]
    scaled_dot_product_attention: ScaledDotProductAttention[Array]
    general_attention: GeneralAttention[Array]
    additive_attention: AdditiveAttention[Array]
    self_attention: SelfAttention[Array]
    projected_self_attention: ProjectedSelfAttention[Array]
    cross_attention: CrossAttention[Array]
