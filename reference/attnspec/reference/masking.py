"""The formulas of masks."""

import numpy as np
from jaxtyping import Bool, Int

from attnspec.reference.defining.definition import defines
from attnspec.spec.masking import CausalMask, PaddingMask

__all__ = ["causal_mask", "padding_mask"]


@defines(CausalMask[np.ndarray])
def causal_mask(n: int, m: int, *, include_self: bool = True) -> Bool[np.ndarray, "{n} {m}"]:
    """Mᵢⱼ = [j ≤ i], or [j < i] without `include_self`."""
    query, key = np.arange(n)[:, None], np.arange(m)[None, :]
    return key <= query if include_self else key < query


@defines(PaddingMask[np.ndarray])
def padding_mask(lengths: Int[np.ndarray, "*batch"], m: int) -> Bool[np.ndarray, "*batch {m}"]:
    """M_bj = [j < ℓ_b]."""
    return np.arange(m) < lengths[..., None]


def joint_mask(mask: np.ndarray | None, causal: bool, n: int, m: int) -> np.ndarray | None:
    """The mask of the keys that `mask` and `causal` both allow, (n, m) or with a batch; None if these are all keys."""
    if not causal:
        return mask
    earlier = causal_mask(n, m)
    return earlier if mask is None else mask & earlier
