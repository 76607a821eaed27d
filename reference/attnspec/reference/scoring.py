"""Scoring: a number for every pair of a query and a key."""

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


@defines(DotScores[np.ndarray])
def dot_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """Dot product of every query with every key.

    Formula: eᵢⱼ = qᵢᵀkⱼ, that is E = QKᵀ.
    Where: query (*batch, n, d), key (*batch, m, d); scores (*batch, n, m), in units of query × key.
    Source: S0(3); S1 “Attention: in equations”; S3 “Example: Dot-Product Attention”.
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for a query and a key of different d, or batches that do not broadcast.
    """
    scores: np.ndarray = query @ np.swapaxes(key, -1, -2)
    return scores


@defines(ScaledDotScores[np.ndarray])
def scaled_dot_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """Dot product of every query with every key, divided by the square root of their size.

    Formula: eᵢⱼ = qᵢᵀkⱼ/√d, that is E = QKᵀ/√d.
    Where: query (*batch, n, d), key (*batch, m, d); scores (*batch, n, m), in units of query × key; d is the size
    actually multiplied.
    Source: S0(5); S2 “Justifying Scaled Self-Attention”; S3 “Attention Mapping”; S4 “Scoring Function”.
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for a query and a key of different d, or batches that do not broadcast.
    """
    d = query.shape[-1]
    # The root is taken in the dtype of the scores: np.sqrt(d) would be a float64, which turns float32 scores into
    # float64 and rounds too early for longdouble.
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
    """Additive scores: a perceptron with one hidden layer on every query and key.

    Formula: eᵢⱼ = w_vᵀ tanh(W_q qᵢ + W_k kⱼ)
    Where: query (*batch, n, d_q), key (*batch, m, d_k), w_q (h, d_q), w_k (h, d_k), w_v (h); scores (*batch, n, m),
    in units of w_v. The hidden layer takes (*batch, n, m, h) numbers of memory.
    Source: S0(4).
    Edges: tanh saturates: |e| ≤ ‖w_v‖₁; n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for weights that do not fit query, key or one another, or batches that do not broadcast.
    """
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
    """Luong's general scores: a bilinear form of query and key.

    Formula: eᵢⱼ = qᵢᵀWkⱼ, that is E = QWKᵀ.
    Where: query (*batch, n, d_q), key (*batch, m, d_k), w (d_q, d_k); scores (*batch, n, m), in units of
    query × w × key.
    Source: S2 “Luong Attention, footnote 1”; Luong 2015 “general”.
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for a matrix that does not fit query and key, or batches that do not broadcast.
    """
    scores: np.ndarray = query @ w @ np.swapaxes(key, -1, -2)
    return scores


@defines(LocationScores[np.ndarray])
def location_scores(
    query: Float[np.ndarray, "*batch n d_q"], w: Float[np.ndarray, "m d_q"]
) -> Float[np.ndarray, "*batch n m"]:
    """Luong's location scores: from the query alone, one row of weights for each position.

    Formula: eᵢⱼ = (Wqᵢ)ⱼ, that is E = QWᵀ.
    Where: query (*batch, n, d_q), w (m, d_q); scores (*batch, n, m), in units of query × w.
    Source: S2 “Luong Attention, footnote 1”; Luong 2015 “location”.
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for a matrix that does not fit the query.
    """
    scores: np.ndarray = query @ np.swapaxes(w, -1, -2)
    return scores


@defines(GaussianScores[np.ndarray])
def gaussian_scores(
    query: Float[np.ndarray, "*#batch n d"], key: Float[np.ndarray, "*#batch m d"]
) -> Float[np.ndarray, "*batch n m"]:
    """Logarithm of the Gaussian kernel, up to its constant: minus half the squared distance.

    Formula: eᵢⱼ = −½‖qᵢ − kⱼ‖²
    Where: query (*batch, n, d), key (*batch, m, d), in units of the kernel's width; scores (*batch, n, m), none
    positive. The differences take (*batch, n, m, d) numbers of memory.
    Source: S4 “Attention Prompt”.
    Edges: a query equal to a key scores 0; n = 0 or m = 0 gives an empty result.
    Errors: ShapeError for a query and a key of different d, or batches that do not broadcast.
    """
    difference = query[..., :, None, :] - key[..., None, :, :]
    scores: np.ndarray = -0.5 * np.sum(difference * difference, axis=-1)
    return scores
