"""Multi-head attention: several attentions on projections of the same inputs, concatenated and projected back."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import project, scaled_dot_product_attention
from attnspec.reference.defining.definition import defines
from attnspec.spec.multihead import MultiHeadAttention


@defines(MultiHeadAttention[np.ndarray])
def multi_head_attention(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    value: Float[np.ndarray, "*#batch m d_v"],
    w_q: Float[np.ndarray, "h p_q d_q"],
    w_k: Float[np.ndarray, "h p_q d_k"],
    w_v: Float[np.ndarray, "h p_v d_v"],
    w_o: Float[np.ndarray, "p_o h*p_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[np.ndarray, "*batch n p_o"]:
    """Scaled dot-product attention in h heads, concatenated in the order of the heads and projected.

    Formula: oᵢ = W_o [h₁; …; h_h] with h_r = softmax(Q_r K_rᵀ/√p_q) V_r, Q_r = QW_{q,r}ᵀ, K_r = KW_{k,r}ᵀ,
    V_r = VW_{v,r}ᵀ.
    Where: query (*batch, n, d_q), key (*batch, m, d_k), value (*batch, m, d_v), w_q (h, p_q, d_q), w_k (h, p_q, d_k),
    w_v (h, p_v, d_v), w_o (p_o, h·p_v), mask (*batch, n, m), which holds in every head; result (*batch, n, p_o), in
    units of w_o × w_v × value.
    Source: S0(7); S0(8); S0(9); S0(10); S0(11); S3 “Multi-headed Attention”; S4 “Multi-Head Attention”.
    Edges: a query without attendable keys, or m = 0, gives 0; NaN at a masked key or value does not reach the result.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
    heads = [
        scaled_dot_product_attention(
            project(query, w_q[r]), project(key, w_k[r]), project(value, w_v[r]), mask=mask, causal=causal
        )
        for r in range(w_q.shape[0])
    ]
    return project(np.concatenate(heads, axis=-1), w_o)
