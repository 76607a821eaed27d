"""The formula of Bahdanau's context."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import additive_attention
from attnspec.reference.defining.definition import defines
from attnspec.spec.seq2seq import BahdanauContext

__all__ = ["bahdanau_context"]


@defines(BahdanauContext[np.ndarray])
def bahdanau_context(
    state: Float[np.ndarray, "*#batch d_s"],
    annotations: Float[np.ndarray, "*#batch m d_h"],
    w_q: Float[np.ndarray, "h d_s"],
    w_k: Float[np.ndarray, "h d_h"],
    w_v: Float[np.ndarray, " h"],
    *,
    mask: Bool[np.ndarray, "*#batch #m"] | None = None,
) -> Float[np.ndarray, "*batch d_h"]:
    """c = Σ_t softmax_t(w_vᵀ tanh(W_q s + W_k h_t)) h_t."""
    query = state[..., None, :]
    every_query = None if mask is None else mask[..., None, :]
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]
