"""Attention in three steps: score the keys, normalize by softmax, sum the values by weight.

Every formula below differs only in its first step, the score of a query and a key; :func:`attend` holds the others.
"""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import joint_mask
from attnspec.reference.normalization import softmax
from attnspec.reference.pooling import pooled
from attnspec.reference.scoring import additive_scores, dot_scores, general_scores, scaled_dot_scores
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)

__all__ = [
    "additive_attention",
    "cross_attention",
    "dot_product_attention",
    "general_attention",
    "projected_self_attention",
    "scaled_dot_product_attention",
    "self_attention",
]


@defines(DotProductAttention[np.ndarray])
def dot_product_attention(
    query: Float[np.ndarray, "*#batch n d"],
    key: Float[np.ndarray, "*#batch m d"],
    value: Float[np.ndarray, "*#batch m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """O = softmax(QKᵀ)V: each query averages the values, weighted by its match with the keys."""
    return attend(dot_scores(query, key), value, mask, causal)


@defines(ScaledDotProductAttention[np.ndarray])
def scaled_dot_product_attention(
    query: Float[np.ndarray, "*#batch n d"],
    key: Float[np.ndarray, "*#batch m d"],
    value: Float[np.ndarray, "*#batch m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """O = softmax(QKᵀ/√d)V: division by √d gives scores of random vectors variance 1."""
    return attend(scaled_dot_scores(query, key), value, mask, causal)


@defines(GeneralAttention[np.ndarray])
def general_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w: Float[np.ndarray, "d_q d_k"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """O = softmax(QWKᵀ)V: the matrix W compares queries and keys of different sizes."""
    return attend(general_scores(query, key, w), value, mask, causal)


@defines(AdditiveAttention[np.ndarray])
def additive_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "h d_q"],
    w_k: Float[np.ndarray, "h d_k"],
    w_v: Float[np.ndarray, " h"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """oᵢ = Σⱼ softmaxⱼ(w_vᵀ tanh(W_q qᵢ + W_k kⱼ)) vⱼ: a small network scores each pair."""
    return attend(additive_scores(query, key, w_q, w_k, w_v), value, mask, causal)


@defines(SelfAttention[np.ndarray])
def self_attention(
    x: Float[np.ndarray, "*#batch n d"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d"]:
    """yᵢ = Σⱼ softmaxⱼ(xᵢᵀxⱼ/√d) xⱼ, with X as queries, keys and values at once."""
    return scaled_dot_product_attention(x, x, x, mask=mask, causal=causal)


@defines(ProjectedSelfAttention[np.ndarray])
def projected_self_attention(
    x: Float[np.ndarray, "*#batch n d_x"],
    w_q: Float[np.ndarray, "d_k d_x"],
    w_k: Float[np.ndarray, "d_k d_x"],
    w_v: Float[np.ndarray, "d_v d_x"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """Y = softmax(QKᵀ/√d_k)V with Q = XW_qᵀ, K = XW_kᵀ, V = XW_vᵀ."""
    return scaled_dot_product_attention(project(x, w_q), project(x, w_k), project(x, w_v), mask=mask, causal=causal)


@defines(CrossAttention[np.ndarray])
def cross_attention(
    x: Float[np.ndarray, "*#batch n d_x"],
    memory: Float[np.ndarray, "*#batch m d_m"],
    w_q: Float[np.ndarray, "d_k d_x"],
    w_k: Float[np.ndarray, "d_k d_m"],
    w_v: Float[np.ndarray, "d_v d_m"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
) -> Float[np.ndarray, "*batch n d_v"]:
    """Y = softmax(QKᵀ/√d_k)V, the attention of X to the memory M: Q = XW_qᵀ, K = MW_kᵀ, V = MW_vᵀ."""
    return scaled_dot_product_attention(project(x, w_q), project(memory, w_k), project(memory, w_v), mask=mask)


def attend(scores: np.ndarray, value: np.ndarray, mask: np.ndarray | None, causal: bool) -> np.ndarray:
    """Average values (*batch, m, d_v) by softmax of the attendable scores (*batch, n, m)."""
    n, m = scores.shape[-2:]
    attendable = joint_mask(mask, causal, n, m)
    return pooled(softmax(scores, mask=attendable), value, attendable)


def project(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Multiply every row of x (*batch, n, d) by w (p, d) = (out, in): (*batch, n, p)."""
    projected: np.ndarray = x @ np.swapaxes(w, -1, -2)
    return projected
