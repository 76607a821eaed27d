"""Sequence to sequence: what a decoder reads of its encoder."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.attention import additive_attention
from attnspec.reference.defining.definition import defines
from attnspec.spec.seq2seq import BahdanauContext


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
    """Bahdanau's context: the decoder's state attends additively to the encoder's annotations.

    Formula: c = Σ_t softmax_t(w_vᵀ tanh(W_q s + W_k h_t)) h_t
    Where: state s (*batch, d_s), annotations h_t (*batch, m, d_h) as keys and values, w_q (h, d_s), w_k (h, d_h),
    w_v (h), mask (*batch, m) boolean, True = may attend; context (*batch, d_h), in units of annotations.
    Source: S0(16); S3 “The math behind attending”; Bahdanau 2015 “3.1”.
    Edges: nothing attendable, or m = 0, gives 0; NaN at a masked annotation does not reach the result.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
    query = state[..., None, :]
    every_query = None if mask is None else mask[..., None, :]
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]
