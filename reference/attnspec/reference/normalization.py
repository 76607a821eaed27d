"""Normalization of scores: softmax over the attendable keys, its logarithm, and division by their number."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Float

from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.reference.masking import with_empty_rows_filled
from attnspec.spec.normalization import MeanNormalization, Softmax

__all__ = ["mean_normalization", "softmax"]

F = TypeVar("F", bound=Callable[..., np.ndarray])


def averages_empty_rows(softmax: F) -> F:
    """Extend a softmax to rows without attendable keys: equal weights if `fully_masked` is "uniform"."""

    @wraps(softmax)
    def as_declared(scores: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
        if mask is not None and choice("fully_masked") == "uniform":
            scores = np.where(np.any(mask, axis=-1, keepdims=True), scores, 0)
        return softmax(scores, mask=with_empty_rows_filled(mask))

    return cast(F, as_declared)


@defines(Softmax[np.ndarray])
@averages_empty_rows
@overridable
def softmax(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """αᵢⱼ = exp(eᵢⱼ − eᵢ) / Σ_{j'∈Aᵢ} exp(eᵢⱼ' − eᵢ) for j ∈ Aᵢ; eᵢ is the greatest attendable score of the row."""
    allowed = np.ones((1, 1), bool) if mask is None else mask
    attendable = np.where(allowed, scores, -np.inf)
    # The shift by the greatest attendable score cancels. With it exp cannot overflow, and a greater masked score cannot
    # make all exponentials underflow.
    highest = np.max(attendable, axis=-1, keepdims=True, initial=-np.inf)
    has_keys = np.any(allowed, axis=-1, keepdims=True)
    exponentials = np.exp(attendable - np.where(has_keys, highest, 0))
    total = np.sum(exponentials, axis=-1, keepdims=True)
    weights: np.ndarray = np.where(allowed, exponentials / np.where(has_keys, total, 1), 0)
    return weights


@overridable
def log_softmax(scores: np.ndarray) -> np.ndarray:
    """log αⱼ = eⱼ − e − log Σ exp(eⱼ' − e); e is the greatest score of a row of scores (*batch, m), m ≥ 1."""
    shifted = scores - np.max(scores, axis=-1, keepdims=True)
    is_greatest = np.arange(scores.shape[-1]) == np.argmax(scores, axis=-1, keepdims=True)
    # The greatest exponential is 1. The sum of the others may be lost in the rounding of 1, hence log1p.
    others = np.sum(np.where(is_greatest, 0, np.exp(shifted)), axis=-1, keepdims=True)
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
    """1/(1 + exp(−x)), computed from exp(−|x|); so nothing overflows and small results keep all digits."""
    decayed = np.exp(-np.abs(x))
    result: np.ndarray = np.where(x >= 0, 1, decayed) / (1 + decayed)
    return result


@overridable
def erf(x: np.ndarray) -> np.ndarray:
    """The error function 2/√π ∫₀ˣ exp(−t²) dt.

    It is 2/π ∫₀^∞ exp(−t²) sin(2xt)/t dt, here by the trapezoidal rule with steps of 3/16. The rule errs by
    erfc(16π/3 − |x|), below 10⁻²¹ for |x| ≤ 7; beyond 7 the result is ±1 within 10⁻²².
    """
    real = x.dtype.type
    bounded = np.minimum(np.maximum(x, -7), 7)
    total = real(0.1875) * bounded
    for n in range(1, 40):
        t = 0.1875 * n
        total = total + np.exp(real(-t * t)) / n * np.sin(real(2 * t) * bounded)
    result: np.ndarray = total / (2 * np.arctan(real(1)))
    return result


def erf_slope(x: Any) -> Any:
    """2/√π exp(−x²), the derivative of erf."""
    return np.exp(-(x * x)) / np.sqrt(np.arctan(x.dtype.type(1)))


@defines(MeanNormalization[np.ndarray])
def mean_normalization(
    scores: Float[np.ndarray, "*#batch n m"], *, mask: Bool[np.ndarray, "*#batch #n #m"] | None = None
) -> Float[np.ndarray, "*batch n m"]:
    """αᵢⱼ = eᵢⱼ/|Aᵢ| for attendable keys j ∈ Aᵢ, and 0 otherwise."""
    attendable = scores if mask is None else np.where(mask, scores, 0)
    full_mask = np.broadcast_to(True if mask is None else mask, attendable.shape)
    count = np.sum(full_mask, axis=-1, keepdims=True)
    weights: np.ndarray = attendable / np.maximum(count, 1).astype(scores.dtype)
    return weights
