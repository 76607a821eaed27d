"""Normalization: from scores to attention weights, over the attendable keys of each row."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.spec.normalization import MeanNormalization, Softmax


@defines(Softmax[np.ndarray])
@overridable
def softmax(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """Softmax of every row over its attendable keys A_i.

    Formula: αᵢⱼ = exp eᵢⱼ / Σ_{j'∈Aᵢ} exp eᵢⱼ' for j ∈ Aᵢ, and 0 otherwise.
    Where: scores (*batch, n, m), mask (*batch, n, m) boolean, True = may attend; weights (*batch, n, m), without unit.
    Source: S0(2); S1 “Attention: in equations”; S3 “The math behind attending”.
    Edges: a masked key has weight exactly 0 whatever its score, NaN included; a fully masked row is 0; scores up to
    the largest number of the dtype are safe; m = 0 gives an empty result.
    Errors: ShapeError for a mask of rank below 2 or one that does not broadcast, TypeError for one not boolean.
    """
    attendable = scores if mask is None else np.where(mask, scores, -np.inf)
    # Shifted by the greatest attendable score: exp cannot overflow, and no masked score can make the others underflow.
    highest = np.max(attendable, axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(attendable - np.where(highest == -np.inf, 0, highest))
    total = np.sum(exponentials, axis=-1, keepdims=True)
    weights: np.ndarray = exponentials / np.where(total == 0, 1, total)
    return weights


@defines(MeanNormalization[np.ndarray])
def mean_normalization(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """Scores divided by the number of attendable keys |A_i|, as non-local networks do.

    Formula: αᵢⱼ = eᵢⱼ/|Aᵢ| for j ∈ Aᵢ, and 0 otherwise.
    Where: scores (*batch, n, m), mask (*batch, n, m) boolean, True = may attend; weights (*batch, n, m), in units of
    the scores.
    Source: S1 “Use Attention: dot product + 1/n_k”; Wang 2018 “dot product instantiation”.
    Edges: weights may be negative and need not sum to 1; masked keys and fully masked rows are exactly 0.
    Errors: ShapeError for a mask of rank below 2 or one that does not broadcast, TypeError for one not boolean.
    """
    attendable = scores if mask is None else np.where(mask, scores, 0)
    everywhere = np.broadcast_to(True if mask is None else mask, attendable.shape)
    count = np.sum(everywhere, axis=-1, keepdims=True)
    weights: np.ndarray = attendable / np.maximum(count, 1).astype(scores.dtype)
    return weights
