"""Pooling: weighted sums of values."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.normalization import softmax
from attnspec.reference.scoring import gaussian_scores
from attnspec.spec.pooling import AttentionPooling, AveragePooling, NadarayaWatson


@defines(AttentionPooling[np.ndarray])
def attention_pooling(
    weights: Float[np.ndarray, "*#batch n m"], value: Float[np.ndarray, "*#batch m d_v"]
) -> Float[np.ndarray, "*batch n d_v"]:
    """Sum of the values, weighted by given attention weights.

    Formula: oᵢ = Σⱼ αᵢⱼ vⱼ, that is O = AV.
    Where: weights (*batch, n, m) of any sign, value (*batch, m, d_v); result (*batch, n, d_v), in units of
    weights × value.
    Source: S0(1); S1 “Attention: in equations”.
    Edges: m = 0 gives 0. There is no mask: a weight of 0 still multiplies, so 0·NaN is NaN.
    Errors: ShapeError for weights and value of different m, or batches that do not broadcast.
    """
    result: np.ndarray = weights @ value
    return result


@defines(AveragePooling[np.ndarray])
def average_pooling(
    value: Float[np.ndarray, "*#batch m d_v"], *, mask: Bool[np.ndarray, "*#batch #m"] | None = None
) -> Float[np.ndarray, "*batch d_v"]:
    """Mean of the attendable values A, whatever the query.

    Formula: o = (1/|A|) Σ_{j∈A} vⱼ
    Where: value (*batch, m, d_v), mask (*batch, m) boolean, True = may attend; result (*batch, d_v), in units of value.
    Source: S3 “Example: average pooling is context independent”; S4 “Attention Prompt”.
    Edges: nothing attendable, or m = 0, gives 0; NaN at a masked value does not reach the result.
    Errors: ShapeError for a mask that does not broadcast, TypeError for one that is not boolean.
    """
    attendable = value if mask is None else np.where(mask[..., None], value, 0)
    everywhere = np.broadcast_to(True if mask is None else mask, attendable.shape[:-1])
    count = np.sum(everywhere, axis=-1, keepdims=True)
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
    """Kernel regression: values weighted by a Gaussian of the distance between query and key.

    Formula: oᵢ = Σ_{j∈Aᵢ} K(qᵢ−kⱼ)vⱼ / Σ_{j∈Aᵢ} K(qᵢ−kⱼ) with K(u) = exp(−½‖u‖²), as a softmax over −½‖qᵢ−kⱼ‖².
    Where: query (*batch, n, d), key (*batch, m, d), in units of the kernel's width, value (*batch, m, d_v),
    mask (*batch, n, m); result (*batch, n, d_v), in units of value.
    Source: S4 “Attention Prompt”.
    Edges: a fully masked row, or m = 0, gives 0; far from all keys, where every K underflows, the nearest key decides.
    Errors: ShapeError for sizes that do not agree, or batches or a mask that do not broadcast.
    """
    return pooled(softmax(gaussian_scores(query, key), mask=mask), value, mask)


def pooled(weights: np.ndarray, value: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Sum of the values with weights that are 0 where masked, as in attention: masked terms are left out.

    Where: weights (*batch, n, m), value (*batch, m, d_v), mask (*batch, n, m) or None; result (*batch, n, d_v).
    """
    if mask is None or np.all(np.isfinite(value)):
        return attention_pooling(weights, value)
    # In a product the weight 0 leaves a term out only while it is finite, for 0·NaN and 0·∞ are NaN. A value that is
    # not finite may be masked for some queries and attendable for others, so the terms are chosen pair by pair.
    terms = np.where(mask[..., None], weights[..., :, :, None] * value[..., None, :, :], 0)
    result: np.ndarray = np.sum(terms, axis=-2)
    return result
