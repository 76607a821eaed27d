"""Pooling: weighted sums and means of values."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import with_empty_rows_filled
from attnspec.reference.normalization import softmax
from attnspec.reference.scoring import gaussian_scores
from attnspec.spec.pooling import AttentionPooling, AveragePooling, NadarayaWatson

__all__ = ["attention_pooling", "average_pooling", "nadaraya_watson"]


@defines(AttentionPooling[np.ndarray])
def attention_pooling(
    weights: Float[np.ndarray, "*#batch n m"], value: Float[np.ndarray, "*#batch m d_v"]
) -> Float[np.ndarray, "*batch n d_v"]:
    """O = AV: row i of the weights A mixes the rows of V into the result of query i."""
    result: np.ndarray = weights @ value
    return result


@defines(AveragePooling[np.ndarray])
def average_pooling(
    value: Float[np.ndarray, "*#batch m d_v"], *, mask: Bool[np.ndarray, "*#batch #m"] | None = None
) -> Float[np.ndarray, "*batch d_v"]:
    """o = (1/|A|) Σ_{j∈A} vⱼ, the mean of the attendable values."""
    mask = with_empty_rows_filled(mask)
    attendable = value if mask is None else np.where(mask[..., None], value, 0)
    full_mask = np.broadcast_to(True if mask is None else mask, attendable.shape[:-1])
    count = np.sum(full_mask, axis=-1, keepdims=True)
    mean: np.ndarray = np.sum(attendable, axis=-2) / np.maximum(count, 1).astype(value.dtype)
    return mean


@defines(NadarayaWatson[np.ndarray])
def nadaraya_watson(
    query: Float[np.ndarray, "*#batch n d"],
    key: Float[np.ndarray, "*#batch m d"],
    value: Float[np.ndarray, "*#batch m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
) -> Float[np.ndarray, "*batch n d_v"]:
    """oᵢ = Σ_{j∈Aᵢ} αᵢⱼvⱼ; αᵢⱼ = K(qᵢ−kⱼ) / Σ_{j'∈Aᵢ} K(qᵢ−kⱼ') is the softmax of −½‖qᵢ−kⱼ‖²."""
    return pooled(softmax(gaussian_scores(query, key), mask=mask), value, mask)


def pooled(weights: np.ndarray, value: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Sum the values by weight without the masked ones; their NaN and ∞ have no effect.

    Where: weights (*batch, n, m), 0 where masked; value (*batch, m, d_v); mask (*batch, n, m) or None; result
    (*batch, n, d_v).
    """
    mask = with_empty_rows_filled(mask)
    if mask is None or np.all(np.isfinite(value)):
        return attention_pooling(weights, value)
    # A matrix product does not leave out a term of weight 0: 0·NaN and 0·∞ are NaN. A value that is not finite may be
    # masked for some queries and attendable for others, so terms are left out pair by pair.
    terms = np.where(mask[..., None], weights[..., :, :, None] * value[..., None, :, :], 0)
    result: np.ndarray = np.sum(terms, axis=-2)
    return result
