"""Scoring: one number for every pair of a query and a key, which says how well they match."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.definition import defines
from attnspec.spec.scoring import (
    AdditiveScores,
    DotScores,
    GaussianScores,
    GeneralScores,
    LocationScores,
    ScaledDotScores,
)

__all__ = [
    "additive_scores",
    "dot_scores",
    "gaussian_scores",
    "general_scores",
    "location_scores",
    "scaled_dot_scores",
]


@defines(DotScores[np.ndarray])
def dot_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """E = QKᵀ."""
    scores: np.ndarray = query @ np.swapaxes(key, -1, -2)
    return scores


@defines(ScaledDotScores[np.ndarray])
def scaled_dot_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """E = QKᵀ/√d."""
    d = query.shape[-1]
    # np.sqrt(d) would be a float64: it would turn float32 scores into float64 and round too early for longdouble.
    scores = dot_scores(query, key)
    scaled: np.ndarray = scores / np.sqrt(scores.dtype.type(d))
    return scaled


@defines(AdditiveScores[np.ndarray])
def additive_scores(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    w_q: Float[np.ndarray, "h d_q"],
    w_k: Float[np.ndarray, "h d_k"],
    w_v: Float[np.ndarray, " h"],
) -> Float[np.ndarray, "*batch n m"]:
    """eᵢⱼ = w_vᵀ tanh(W_q qᵢ + W_k kⱼ). All (*batch, n, m, h) hidden units are held in memory."""
    from_query = query @ np.swapaxes(w_q, -1, -2)
    from_key = key @ np.swapaxes(w_k, -1, -2)
    hidden = np.tanh(from_query[..., :, None, :] + from_key[..., None, :, :])
    scores: np.ndarray = hidden @ w_v
    return scores


@defines(GeneralScores[np.ndarray])
def general_scores(
    query: Float[np.ndarray, "*#batch n d_q"],
    key: Float[np.ndarray, "*#batch m d_k"],
    w: Float[np.ndarray, "d_q d_k"],
) -> Float[np.ndarray, "*batch n m"]:
    """E = QWKᵀ."""
    scores: np.ndarray = query @ w @ np.swapaxes(key, -1, -2)
    return scores


@defines(LocationScores[np.ndarray])
def location_scores(
    query: Float[np.ndarray, "*batch n d_q"], w: Float[np.ndarray, "m d_q"]
) -> Float[np.ndarray, "*batch n m"]:
    """E = QWᵀ: each position has its own row of W, so the scores do not depend on keys."""
    scores: np.ndarray = query @ np.swapaxes(w, -1, -2)
    return scores


@defines(GaussianScores[np.ndarray])
def gaussian_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """eᵢⱼ = −½‖qᵢ − kⱼ‖². All (*batch, n, m, d) differences are held in memory."""
    difference = query[..., :, None, :] - key[..., None, :, :]
    scores: np.ndarray = -0.5 * np.sum(difference * difference, axis=-1)
    return scores
