"""Normalization: softmax and its relatives over the attendable keys."""

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.spec.normalization import MeanNormalization, Softmax

__all__ = ["mean_normalization", "softmax"]


@defines(Softmax[np.ndarray])
@overridable
def softmax(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """αᵢⱼ = exp(eᵢⱼ − eᵢ) / Σ_{j'∈Aᵢ} exp(eᵢⱼ' − eᵢ) for j ∈ Aᵢ, with eᵢ the greatest attendable score of the row."""
    allowed = np.ones((1, 1), bool) if mask is None else mask
    attendable = np.where(allowed, scores, -np.inf)
    # Shift by the greatest attendable score: exp cannot overflow, and no masked score can make the others underflow.
    highest = np.max(attendable, axis=-1, keepdims=True, initial=-np.inf)
    some = np.any(allowed, axis=-1, keepdims=True)
    exponentials = np.exp(attendable - np.where(some, highest, 0))
    total = np.sum(exponentials, axis=-1, keepdims=True)
    weights: np.ndarray = np.where(allowed, exponentials / np.where(some, total, 1), 0)
    return weights


@overridable
def log_softmax(scores: np.ndarray) -> np.ndarray:
    """log αⱼ = eⱼ − e − log Σ exp(eⱼ' − e) for scores (*batch, m), m ≥ 1, with e the greatest score of a row."""
    shifted = scores - np.max(scores, axis=-1, keepdims=True)
    greatest = np.arange(scores.shape[-1]) == np.argmax(scores, axis=-1, keepdims=True)
    # The greatest exponential is 1. The sum of the others may be lost in the rounding of 1, hence log1p.
    others = np.sum(np.where(greatest, 0, np.exp(shifted)), axis=-1, keepdims=True)
    logarithms: np.ndarray = shifted - np.log1p(others)
    return logarithms


@overridable
def log_sum_exp(scores: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
    """log Σ exp eⱼ (*batch, n) over the attendable keys of scores (*batch, n, m); −∞ for a row without keys."""
    allowed = np.ones((1, 1), bool) if mask is None else mask
    attendable = np.where(allowed, scores, -np.inf)
    highest = np.max(attendable, axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(highest), highest, 0)
    logarithms: np.ndarray = (shift + np.log(np.sum(np.exp(attendable - shift), axis=-1, keepdims=True)))[..., 0]
    return logarithms


@overridable
def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−x)), elementwise, from exp(−|x|): it cannot overflow, and small results keep all digits."""
    least = np.exp(-np.abs(x))
    result: np.ndarray = np.where(x >= 0, 1, least) / (1 + least)
    return result


@defines(MeanNormalization[np.ndarray])
def mean_normalization(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """αᵢⱼ = eᵢⱼ/|Aᵢ| for j ∈ Aᵢ, and 0 otherwise."""
    attendable = scores if mask is None else np.where(mask, scores, 0)
    everywhere = np.broadcast_to(True if mask is None else mask, attendable.shape)
    count = np.sum(everywhere, axis=-1, keepdims=True)
    weights: np.ndarray = attendable / np.maximum(count, 1).astype(scores.dtype)
    return weights
