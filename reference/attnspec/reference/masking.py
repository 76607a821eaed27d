"""Masks: boolean, True = may attend."""

import numpy as np
from jaxtyping import Bool, Int

from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.spec.masking import CausalMask, PaddingMask

__all__ = ["causal_mask", "padding_mask"]


@defines(CausalMask[np.ndarray])
def causal_mask(n: int, m: int, *, include_self: bool = True) -> Bool[np.ndarray, "{n} {m}"]:
    """Mᵢⱼ = [j ≤ i]: query i may attend to keys up to i; without `include_self`, [j < i]."""
    query, key = np.arange(n)[:, None], np.arange(m)[None, :]
    return key <= query if include_self else key < query


@defines(PaddingMask[np.ndarray])
def padding_mask(lengths: Int[np.ndarray, "*batch"], m: int) -> Bool[np.ndarray, "*batch {m}"]:
    """M_bj = [j < ℓ_b]: the keys within the length ℓ_b of sequence b."""
    return np.arange(m) < lengths[..., None]


def joint_mask(mask: np.ndarray | None, causal: bool, n: int, m: int) -> np.ndarray | None:
    """Combine `mask` and `causal` into one mask (n, m) or (*batch, n, m); None if all keys are allowed."""
    if not causal:
        return mask
    earlier = beyond_diagonal(n, m) <= 0
    return earlier if mask is None else mask & earlier


def with_empty_rows_filled(mask: np.ndarray | None) -> np.ndarray | None:
    """The mask (…, n, m); rows without attendable keys get all keys if `fully_masked` is "uniform"."""
    if mask is None or choice("fully_masked") != "uniform":
        return mask
    filled: np.ndarray = mask | ~np.any(mask, axis=-1, keepdims=True)
    return filled


def beyond_diagonal(n: int, m: int, key_lengths: np.ndarray | None = None) -> np.ndarray:
    """j − i for query i and key j, (n, m); j − i − (m − n) if causal masks are aligned bottom right.

    If queries are aligned at key lengths ℓ (semantics `length_alignment`), it is j − i − (ℓ − n), (*batch, n, m).
    """
    offset: int | np.ndarray = m - n if choice("causal_alignment") == "bottom-right" else 0
    if key_lengths is not None and choice("length_alignment") == "at-length":
        offset = key_lengths[..., None, None] - n
    beyond: np.ndarray = np.arange(m) - np.arange(n)[:, None] - offset
    return beyond
