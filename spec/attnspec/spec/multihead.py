"""Multi-head attention: several attentions on projections of the same inputs, concatenated.

Edges: As in `attention`. All this holds in every head, before the heads are projected by `w_o`.
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array, sizes
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import PYTORCH, S0, S1, S2, S3, S4, VASWANI

__all__ = [
    "BiasedMultiHeadAttention",
    "ConcatHeadsAttention",
    "MergeHeads",
    "MultiHeadAdditiveAttention",
    "MultiHeadAttention",
    "MultiHeadOperations",
    "MultiHeadParameters",
    "MultiHeadTable",
    "SplitHeads",
]


@dataclass(frozen=True)
class MultiHeadParameters(Generic[Array]):
    """Projections of queries, keys and values for every head, and of the concatenated heads; weights are (out, in)."""

    w_q: Float[Array, "heads p_q d_q"]
    w_k: Float[Array, "heads p_q d_k"]
    w_v: Float[Array, "heads p_v d_v"]
    w_o: Float[Array, "p_o heads*p_v"]


@operation(
    "split_heads",
    chapter="multihead",
    formula=r"Y_{r,i} = (x_{i,rp}, \dots, x_{i,rp+p-1})",
    sources=[S2.passage("Encoder Attention: heads")],
)
class SplitHeads(Protocol[Array]):
    """Features split into heads of equal width, with the head axis before the positions.

    Where: Head r has the features rp … rp+p−1, both counted from 0. The result is in units of x.
    Edges: A width that is no multiple of `heads` raises. NaN and ∞ go with their features.
    """

    def __call__(
        self, x: Annotated[Float[Array, "*batch n d"], sizes(d="heads*p")], heads: int
    ) -> Float[Array, "*batch {heads} n p"]: ...


@operation(
    "merge_heads",
    chapter="multihead",
    formula=r"Y_i = [x_{0,i}; \dots; x_{H-1,i}],\quad H \text{ the heads}",
    sources=[S2.passage("Encoder Attention: heads")],
)
class MergeHeads(Protocol[Array]):
    """The heads of every position concatenated in order, the inverse of `split_heads`.

    Where: The result is in units of x.
    Edges: NaN and ∞ stay in the columns of their head.
    """

    def __call__(self, x: Float[Array, "*batch heads n p"]) -> Float[Array, "*batch n heads*p"]: ...


@operation(
    "multi_head_attention",
    chapter="multihead",
    formula=r"o_i = W_o [h_1; \dots; h_h],\quad"
    r" h_r = \operatorname{softmax}(Q_r K_r^\top / \sqrt{p_q}) V_r,\quad Q_r = Q W_{q,r}^\top,\ \dots",
    sources=[
        *(S0.equation(number) for number in (7, 8, 9, 10, 11)),
        S3.passage("Multi-headed Attention"),
        S4.passage("Multi-Head Attention"),
    ],
    linear="value",
    scores_scale_with={"w_q": 1.0},
)
class MultiHeadAttention(Protocol[Array]):
    """Scaled dot-product attention in heads, concatenated in the order of the heads and projected.

    Where: Weights are (out, in). Scores are divided by √p_q, since p_q is the size multiplied in each head. The mask
    has no head axis: it and `causal` hold in every head. The result is in units of w_o × w_v × value.
    Domain: After projection, Σ|q||k| stays finite.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "heads p_q d_q"],
        w_k: Float[Array, "heads p_q d_k"],
        w_v: Float[Array, "heads p_v d_v"],
        w_o: Float[Array, "p_o heads*p_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n p_o"]: ...


@operation(
    "biased_multi_head_attention",
    chapter="multihead",
    formula=r"o_i = W_o [h_1; \dots; h_h] + b_o,\quad"
    r" h_r = \operatorname{softmax}(Q_r K_r^\top / \sqrt{p_q}) V_r,\quad Q_r = Q W_{q,r}^\top + b_{q,r},\ \dots",
    sources=[PYTORCH.passage("MultiheadAttention: bias"), VASWANI.passage("3.2.2 Multi-head attention")],
    scores_scale_with={"w_q": 1.0, "b_q": 1.0},
)
class BiasedMultiHeadAttention(Protocol[Array]):
    """Multi-head attention whose projections have biases, as in PyTorch, BERT and GPT-2.

    Where: All is as in `multi_head_attention`. b_q, b_k and b_v are added to the projected queries, keys and values of
    a head before its scores are divided by √p_q; b_o is added once, to the sum over all heads. The result is in units
    of b_o, which are those of w_o × b_v.
    Domain: After projection, Σ|q||k| stays finite.
    Edges: A row without an attendable key is b_o (semantics `fully_masked`).
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "heads p_q d_q"],
        w_k: Float[Array, "heads p_q d_k"],
        w_v: Float[Array, "heads p_v d_v"],
        w_o: Float[Array, "p_o heads*p_v"],
        b_q: Float[Array, "heads p_q"],
        b_k: Float[Array, "heads p_q"],
        b_v: Float[Array, "heads p_v"],
        b_o: Float[Array, " p_o"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n p_o"]: ...


@operation(
    "multi_head_additive_attention",
    chapter="multihead",
    formula=r"o_i = W_o [h_1; \dots; h_h],\quad h_{r,i} = \sum_j \operatorname{softmax}_j(a_{v,r}^\top"
    r" \tanh(A_{q,r} q_{r,i} + A_{k,r} k_{r,j}))\, v_{r,j},\quad q_{r,i} = W_{q,r} q_i,\ \dots",
    sources=[S0.equation(4), S0.equation(7), S0.equation(10)],
    linear="value",
    scores_scale_with={"a_v": 1.0},
)
class MultiHeadAdditiveAttention(Protocol[Array]):
    """Multi-head attention with the additive score: the function f in S0's heads is additive attention.

    Where: Weights are (out, in): w_q, w_k and w_v project into the heads; a_q, a_k and a_v are the scorer of each head.
    The mask has no head axis: it and `causal` hold in every head. Units are those of `multi_head_attention`.
    Domain: No projection overflows. The scores of a head are at most ‖a_v‖₁.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "heads p_q d_q"],
        w_k: Float[Array, "heads p_k d_k"],
        w_v: Float[Array, "heads p_v d_v"],
        w_o: Float[Array, "p_o heads*p_v"],
        a_q: Float[Array, "heads h p_q"],
        a_k: Float[Array, "heads h p_k"],
        a_v: Float[Array, "heads h"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n p_o"]: ...


@operation(
    "concat_heads_attention",
    chapter="multihead",
    formula=r"o_i = [h_1; \dots; h_h],\quad"
    r" h_r = \operatorname{softmax}(Q_r K_r^\top) V_r,\quad Q_r = Q W_{q,r}^\top,\ \dots",
    sources=[S1.passage("Multi-Head Self-Attention")],
    linear="value",
    scores_scale_with={"w_q": 1.0},
)
class ConcatHeadsAttention(Protocol[Array]):
    """Dot-product attention in heads, concatenated in the order of the heads and not projected.

    Where: Weights are (out, in). Scores are not divided: S1's A = QᵀK has no scale, unlike `multi_head_attention`. The
    mask has no head axis: it and `causal` hold in every head. The result is in units of w_v × value.
    Domain: After projection, Σ|q||k| stays finite.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        value: Float[Array, "*#batch m d_v"],
        w_q: Float[Array, "heads p_q d_q"],
        w_k: Float[Array, "heads p_q d_k"],
        w_v: Float[Array, "heads p_v d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
        causal: bool = False,
    ) -> Float[Array, "*batch n heads*p_v"]: ...


class MultiHeadOperations(Generic[Array]):
    """The operations of multi-head attention as methods of a backend class."""

    split_heads: SplitHeads[Array]
    merge_heads: MergeHeads[Array]
    multi_head_attention: MultiHeadAttention[Array]
    biased_multi_head_attention: BiasedMultiHeadAttention[Array]
    multi_head_additive_attention: MultiHeadAdditiveAttention[Array]
    concat_heads_attention: ConcatHeadsAttention[Array]


class MultiHeadTable(TypedDict, Generic[Array], total=False):
    """The operations of multi-head attention by name, as a typed dictionary."""

    split_heads: SplitHeads[Array]
    merge_heads: MergeHeads[Array]
    multi_head_attention: MultiHeadAttention[Array]
    biased_multi_head_attention: BiasedMultiHeadAttention[Array]
    multi_head_additive_attention: MultiHeadAdditiveAttention[Array]
    concat_heads_attention: ConcatHeadsAttention[Array]
