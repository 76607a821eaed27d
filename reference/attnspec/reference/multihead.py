"""Multi-head attention: one attention per head on projected inputs, then concatenation."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import (
    additive_attention,
    dot_product_attention,
    project,
    scaled_dot_product_attention,
)
from attnspec.reference.defining.definition import defines
from attnspec.spec.multihead import (
    BiasedMultiHeadAttention,
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    SplitHeads,
)

__all__ = [
    "biased_multi_head_attention",
    "concat_heads_attention",
    "merge_heads",
    "multi_head_additive_attention",
    "multi_head_attention",
    "split_heads",
]


@defines(SplitHeads[np.ndarray])
def split_heads(x: Float[np.ndarray, "*batch n d"], heads: int) -> Float[np.ndarray, "*batch {heads} n p"]:
    """Y_{r,i} = (x_{i,rp}, …, x_{i,rp+p−1}): head r holds p neighbouring features of position i."""
    *batch, n, d = x.shape
    return np.swapaxes(x.reshape(*batch, n, heads, d // heads), -3, -2)


@defines(MergeHeads[np.ndarray])
def merge_heads(x: Float[np.ndarray, "*batch heads n p"]) -> Float[np.ndarray, "*batch n heads*p"]:
    """Yᵢ = [x_{0,i}; …; x_{H−1,i}]: the features of all H heads at position i."""
    *batch, heads, n, p = x.shape
    return np.swapaxes(x, -3, -2).reshape(*batch, n, heads * p)


@defines(MultiHeadAttention[np.ndarray])
def multi_head_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "heads p_q d_q"],
    w_k: Float[np.ndarray, "heads p_q d_k"],
    w_v: Float[np.ndarray, "heads p_v d_v"],
    w_o: Float[np.ndarray, "p_o heads*p_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n p_o"]:
    """oᵢ = W_o [h₁; …; h_h], h_r = softmax(Q_r K_rᵀ/√p_q) V_r with Q_r = QW_{q,r}ᵀ, and so on: heads, mixed by W_o."""
    heads = [
        scaled_dot_product_attention(
            project(query, w_q[r]), project(key, w_k[r]), project(value, w_v[r]), mask=mask, causal=causal
        )
        for r in range(w_q.shape[0])
    ]
    return project(np.concatenate(heads, axis=-1), w_o)


@defines(BiasedMultiHeadAttention[np.ndarray])
def biased_multi_head_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "heads p_q d_q"],
    w_k: Float[np.ndarray, "heads p_q d_k"],
    w_v: Float[np.ndarray, "heads p_v d_v"],
    w_o: Float[np.ndarray, "p_o heads*p_v"],
    b_q: Float[np.ndarray, "heads p_q"],
    b_k: Float[np.ndarray, "heads p_q"],
    b_v: Float[np.ndarray, "heads p_v"],
    b_o: Float[np.ndarray, " p_o"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n p_o"]:
    """oᵢ = W_o [h₁; …; h_h] + b_o, h_r = softmax(Q_r K_rᵀ/√p_q) V_r with Q_r = QW_{q,r}ᵀ + b_{q,r}, and so on."""
    heads = [
        scaled_dot_product_attention(
            project(query, w_q[r]) + b_q[r],
            project(key, w_k[r]) + b_k[r],
            project(value, w_v[r]) + b_v[r],
            mask=mask,
            causal=causal,
        )
        for r in range(w_q.shape[0])
    ]
    result: np.ndarray = project(np.concatenate(heads, axis=-1), w_o) + b_o
    return result


@defines(MultiHeadAdditiveAttention[np.ndarray])
def multi_head_additive_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "heads p_q d_q"],
    w_k: Float[np.ndarray, "heads p_k d_k"],
    w_v: Float[np.ndarray, "heads p_v d_v"],
    w_o: Float[np.ndarray, "p_o heads*p_v"],
    a_q: Float[np.ndarray, "heads h p_q"],
    a_k: Float[np.ndarray, "heads h p_k"],
    a_v: Float[np.ndarray, "heads h"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n p_o"]:
    """oᵢ = W_o [h₁; …; h_h], h_r = Σⱼ softmaxⱼ(a_vᵀ tanh(A_q qᵢ + A_k kⱼ)) vⱼ, with q, k, v projected for head r."""
    heads = [
        additive_attention(
            project(query, w_q[r]),
            project(key, w_k[r]),
            project(value, w_v[r]),
            a_q[r],
            a_k[r],
            a_v[r],
            mask=mask,
            causal=causal,
        )
        for r in range(w_q.shape[0])
    ]
    return project(np.concatenate(heads, axis=-1), w_o)


@defines(ConcatHeadsAttention[np.ndarray])
def concat_heads_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "heads p_q d_q"],
    w_k: Float[np.ndarray, "heads p_q d_k"],
    w_v: Float[np.ndarray, "heads p_v d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n heads*p_v"]:
    """oᵢ = [h₁; …; h_h], h_r = softmax(Q_r K_rᵀ) V_r with Q_r = QW_{q,r}ᵀ, K_r = KW_{k,r}ᵀ, V_r = VW_{v,r}ᵀ."""
    heads = [
        dot_product_attention(
            project(query, w_q[r]), project(key, w_k[r]), project(value, w_v[r]), mask=mask, causal=causal
        )
        for r in range(w_q.shape[0])
    ]
    joined: np.ndarray = np.concatenate(heads, axis=-1)
    return joined
