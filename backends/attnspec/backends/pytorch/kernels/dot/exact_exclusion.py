"""Attention that leaves excluded keys and values out also where they hold NaN or an infinity.

A kernel multiplies an excluded value by the weight 0, and 0·NaN is NaN. On the CPU, results with a NaN, which may also
be right, are computed again by this module.
"""

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import widened


def exact(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """softmax(scale·QKᵀ)V over the allowed keys, with all scores in memory; no excluded key enters any sum."""
    dtype = query.dtype
    with autocast.off(query):
        return _exact(widened(query), widened(key), widened(value), allowed, scale).to(dtype)


def _exact(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> Tensor:
    attended = allowed.any(-1, keepdim=True)
    query = query.masked_fill(~attended, 0)
    finite = key.isfinite().all(-1)
    scores = scale * (query @ key.masked_fill(~finite.unsqueeze(-1), 0).mT)
    with torch.no_grad():
        raw = scale * (query @ key.mT)
    scores = torch.where(finite.unsqueeze(-2), scores, raw).masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores.masked_fill(~attended, 0), -1).masked_fill(~(allowed & attended), 0)
    pooled = weights @ value.masked_fill(~value.isfinite(), 0)
    pooled = pooled + nonfinite_terms(weights.detach(), value.detach(), allowed)
    return pooled.masked_fill(~attended, 0)


def nonfinite_terms(weights: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """What non-finite values add to the output: NaN, ±inf, or 0 where all of them are excluded."""

    def meets(pairs: Tensor, entries: Tensor) -> Tensor:
        return pairs.to(value.dtype) @ entries.to(value.dtype) > 0

    positive = weights > 0
    up, down = meets(positive, value == torch.inf), meets(positive, value == -torch.inf)
    undefined = meets(allowed, value.isnan()) | meets(allowed & (weights == 0), value.isinf()) | (up & down)
    zero = value.new_zeros(())
    return (
        torch.where(up, torch.inf, zero) + torch.where(down, -torch.inf, zero) + torch.where(undefined, torch.nan, zero)
    )
