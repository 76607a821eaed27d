"""Attention: scores, normalised by softmax over the attendable keys, pool the values.

Every formula has the same edges, written here once. Key j is attendable for query i where `mask` is True and, with
`causal`, j ≤ i (top left also when n ≠ m). Terms that are not attendable are left out, NaN and ∞ included. A row
without attendable keys is 0, as is every row when m = 0.
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


@defines(DotProductAttention[np.ndarray])
def dot_product_attention(
    query: Float[np.ndarray, "*#batch n d"],
    key: Float[np.ndarray, "*#batch m d"],
    value: Float[np.ndarray, "*#batch m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d_v"]:
    """Attention with the dot product as score.

    Formula: O = softmax(QKᵀ)V
    Where: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask (*batch, n, m);
    result (*batch, n, d_v), in units of value.
    Source: S1 “Attention: definition”; S2 “Generalized Attention in Matrix Form”; S3 “Example: Dot-Product Attention”.
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
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
    """Attention with the scaled dot product as score.

    Formula: O = softmax(QKᵀ/√d)V
    Where: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask (*batch, n, m);
    result (*batch, n, d_v), in units of value; d is the size of the vectors actually multiplied.
    Source: S0(6); S3 “Attention Mapping”; S4 “Scoring Function”.
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
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
    """Attention with Luong's general score.

    Formula: O = softmax(QWKᵀ)V
    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w (d_q, d_k), mask (*batch, n, m);
    result (*batch, n, d_v), in units of value.
    Source: S2 “Luong Attention, footnote 1”; Luong 2015 “general”.
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
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
    """Attention with the additive score.

    Formula: oᵢ = Σⱼ softmaxⱼ(w_vᵀ tanh(W_q qᵢ + W_k kⱼ)) vⱼ
    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w_q (h, d_q), w_k (h, d_k), w_v (h),
    mask (*batch, n, m); result (*batch, n, d_v), in units of value.
    Source: S0(1); S0(2); S0(4).
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
    return attend(additive_scores(query, key, w_q, w_k, w_v), value, mask, causal)


@defines(SelfAttention[np.ndarray])
def self_attention(
    x: Float[np.ndarray, "*#batch n d"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #n"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n d"]:
    """Self-attention without weights: every x is query, key and value, scored by the scaled dot product.

    Formula: yᵢ = Σⱼ softmaxⱼ(xᵢᵀxⱼ/√d) xⱼ
    Where: x (*batch, n, d), mask (*batch, n, n); result (*batch, n, d), in units of x.
    Source: S0(17); S1 “Self-Attention”; S4 “Self-Attention”.
    Edges: as the module says.
    Errors: ShapeError for a mask that does not broadcast.
    """
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
    """Self-attention whose queries, keys and values are linear maps of x.

    Formula: Y = softmax(QKᵀ/√d_k)V with Q = XW_qᵀ, K = XW_kᵀ, V = XW_vᵀ.
    Where: x (*batch, n, d_x), w_q (d_k, d_x), w_k (d_k, d_x), w_v (d_v, d_x), mask (*batch, n, n);
    result (*batch, n, d_v), in units of w_v × x.
    Source: S1 “Self-Attention: independent linear transformations”; S2 “Encoder Attention”.
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or a mask that does not broadcast.
    """
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
    """Attention of one sequence to another: queries from x, keys and values from a memory.

    Formula: Y = softmax(QKᵀ/√d_k)V with Q = XW_qᵀ, K = MW_kᵀ, V = MW_vᵀ.
    Where: x (*batch, n, d_x), memory (*batch, m, d_m), w_q (d_k, d_x), w_k (d_k, d_m), w_v (d_v, d_m),
    mask (*batch, n, m); result (*batch, n, d_v), in units of w_v × memory.
    Source: S2 “Encoder-Decoder Attention”; S3 “Attending to the input (encoder)”;
    Vaswani 2017 “encoder-decoder attention”.
    Edges: as the module says.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
    return scaled_dot_product_attention(project(x, w_q), project(memory, w_k), project(memory, w_v), mask=mask)


def attend(scores: np.ndarray, value: np.ndarray, mask: np.ndarray | None, causal: bool) -> np.ndarray:
    """Pool the values (*batch, m, d_v) by the softmax of scores (*batch, n, m) over the attendable keys."""
    n, m = scores.shape[-2:]
    attendable = joint_mask(mask, causal, n, m)
    return pooled(softmax(scores, mask=attendable), value, attendable)


def project(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Linear map of every row: x (*batch, n, d), w (p, d) as (out, in); result (*batch, n, p)."""
    projected: np.ndarray = x @ np.swapaxes(w, -1, -2)
    return projected
