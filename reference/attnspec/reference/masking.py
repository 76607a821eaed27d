"""Masking: which keys a query may attend to. Masks are boolean, True = may attend."""

import numpy as np
from jaxtyping import Bool, Int

from attnspec.reference.defining.definition import defines
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.masking import CausalMask, PaddingMask


@defines(CausalMask[np.ndarray])
def causal_mask(n: int, m: int, *, include_self: bool = True) -> Bool[np.ndarray, "{n} {m}"]:
    """Every position may attend to itself and to earlier ones; without `include_self` to earlier ones only.

    Formula: Mᵢⱼ = [j ≤ i], or [j < i] without `include_self`.
    Where: n queries, m keys (positions); mask (n, m) boolean, aligned top left.
    Source: S2 “Masked Decoder Self-Attention”; S3 “Attention Mapping in the decoder”.
    Edges: without `include_self` the first row is fully masked; keys from n on are attendable by nobody.
    Errors: ShapeError for a negative size, TypeError for one that is no integer.
    """
    query, key = np.arange(n)[:, None], np.arange(m)[None, :]
    return key <= query if include_self else key < query


@defines(PaddingMask[np.ndarray])
def padding_mask(lengths: Int[np.ndarray, "*batch"], m: int) -> Bool[np.ndarray, "*batch {m}"]:
    """The keys below each sequence's length may be attended to, the padding behind them may not.

    Formula: M_bj = [j < ℓ_b]
    Where: lengths (*batch) integers (positions), m keys; mask (*batch, m) boolean, which attention takes as
    `mask[..., None, :]`.
    Source: S2 “Encoder Attention: padding”.
    Edges: length 0 masks everything, length m nothing.
    Errors: ShapeError for a length outside 0..m or a negative m, TypeError for lengths that are no integers.
    """
    outside = lengths[(lengths < 0) | (lengths > m)]
    if outside.size:
        raise ShapeError("padding_mask", "lengths", f"lengths in 0..{m}", outside.flat[0])
    return np.arange(m) < lengths[..., None]


def joint_mask(mask: np.ndarray | None, causal: bool, n: int, m: int) -> np.ndarray | None:
    """The keys that both `mask` and `causal` allow, None if that is all of them."""
    if not causal:
        return mask
    earlier = causal_mask(n, m)
    return earlier if mask is None else mask & earlier
