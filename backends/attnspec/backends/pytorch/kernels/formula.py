"""Grouped-query attention by PyTorch's operations, with scores (*batch, heads_k, group, n, m) in memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.visible import relative_positions
from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import finite, upcast
from attnspec.backends.pytorch.runtime.products import operand, wide_product
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


class Scoring(NamedTuple):
    """Steps from products to scores: scale (1/√d if None), cap, distance times slopes, bias.

    ``sinks`` are set only for half dtypes: their results stay unrounded until sinks are added, to be rounded once.
    """

    scale: float | None = None
    softcap: float | None = None
    bias: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scoring: Scoring,
              offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (*batch, heads, n, d_v) and log Σ exp (*batch, heads, n), widened. Batches are not expanded.

    ``allowed`` (*#batch, #heads, #n, #m) joins all conditions. Distances are |i + offset − j|, with ``offsets``
    (*batch).
    """
    scores, allowed = scores_and_mask(query, key, allowed, scoring, offsets)
    values = operand(value).unsqueeze(-3)
    weights, logarithms = softmax_and_logarithms(scores, allowed)
    output = pooled(weights, values, allowed)
    if allowed is not None:  # stops a NaN in the incoming gradient of a row without an attendable key
        output = output.masked_fill(~allowed.any(-1, keepdim=True), 0)
    return output.flatten(-4, -3), logarithms.expand(output.shape[:-1]).flatten(-3, -2)


def scores_and_mask(query: Tensor, key: Tensor, allowed: Tensor | None, scoring: Scoring,
                    offsets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Scores (*batch, heads_k, group, n, m), widened, and ``allowed`` in groups."""
    heads_k, (n, d), m = key.shape[-3], query.shape[-2:], key.shape[-2]
    allowed = None if allowed is None else in_groups(allowed.expand(*allowed.shape[:-2], n, m), heads_k)
    scores = dot_products(in_groups(operand(query), heads_k), operand(key).unsqueeze(-3), allowed)
    scores = scores * (d**-0.5 if scoring.scale is None else scoring.scale)
    if scoring.softcap is not None:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    if scoring.bias is not None:
        scores = scores + in_groups(upcast(scoring.bias), heads_k)
    if scoring.slopes is not None:
        penalty = linear_penalty(scoring.slopes, relative_positions(n, m, offsets, query.device))
        scores = scores - in_groups(penalty, heads_k)
    return scores, allowed


def linear_penalty(slopes: Tensor, relative: Tensor) -> Tensor:
    """Slopes (heads,) times distances, widened: (*batch, heads, n, m); ``relative`` (*batch, n, m) has signs."""
    wide = upcast(slopes)
    return wide[:, None, None] * relative.abs().to(wide.dtype).unsqueeze(-3)


def output_of(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Output only, in the dtype of the operands, with autocast off."""
    with autocast.off(query):
        return attention(query, key, value, allowed, Scoring(scale))[0].to(query.dtype)


def with_sinks(output: Tensor, logarithms: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add to every row one key with score ``sinks`` (heads) and value zero."""
    sunk = torch.logaddexp(logarithms, upcast(sinks).unsqueeze(-1))
    return output * (logarithms - sunk).exp().unsqueeze(-1), sunk


def in_groups(x: Tensor, heads_k: int) -> Tensor:
    """x (*batch, heads, n, d) as (*batch, heads_k, group, n, d); heads of size 1 as (*batch, 1, 1, n, d)."""
    *batch, heads, n, d = x.shape
    return x.unsqueeze(-3) if heads == 1 else x.reshape(*batch, heads_k, heads // max(heads_k, 1), n, d)


def dot_products(query: Tensor, key: Tensor, allowed: Tensor | None) -> Tensor:
    """QKᵀ; NaN and infinities of excluded pairs reach no gradient."""
    if allowed is None or (not operations_intercepted() and query.is_cpu and finite(query) and finite(key)):
        return wide_product(query, key.mT)
    query = query.masked_fill(~allowed.any(-1, keepdim=True), 0)
    finite_keys = key.isfinite().all(-1)
    scores = wide_product(query, key.masked_fill(~finite_keys.unsqueeze(-1), 0).mT)
    with torch.no_grad():
        unguarded = wide_product(query, key.mT)
    return torch.where(finite_keys.unsqueeze(-2), scores, unguarded)


def softmax_and_logarithms(scores: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and log Σ exp of rows; 0 and −∞, with gradients 0, without allowed keys."""
    if not scores.shape[-1]:
        return scores, scores.sum(-1) - torch.inf
    if allowed is None:
        return torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    has_key = allowed.any(-1, keepdim=True)
    filled = torch.where(allowed, scores, torch.where(has_key, -torch.inf, 0.0).to(scores.dtype))
    weights = torch.softmax(filled, -1).masked_fill(~allowed, 0.0)
    return weights, torch.logsumexp(filled, -1).masked_fill(~has_key.squeeze(-1), -torch.inf)


def pooled(weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Σ αv over allowed values; excluded values have no effect, even NaN."""
    if allowed is None or (not operations_intercepted() and value.is_cpu and finite(value)):
        return wide_product(weights, value)
    finite_part = wide_product(weights, value.masked_fill(~value.isfinite(), 0))
    return finite_part + nonfinite_terms(weights.detach(), value.detach(), allowed)


def nonfinite_terms(weights: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Contribution of non-finite values to the output: NaN, ±inf, or 0 where all are excluded."""

    def any_pair(pairs: Tensor, entries: Tensor) -> Tensor:
        return pairs.to(value.dtype) @ entries.to(value.dtype) > 0

    positive = weights > 0
    up, down = any_pair(positive, value == torch.inf), any_pair(positive, value == -torch.inf)
    undefined = any_pair(allowed, value.isnan()) | any_pair(allowed & (weights == 0), value.isinf()) | (up & down)
    zero = value.new_zeros(())
    return (
        torch.where(up, torch.inf, zero) + torch.where(down, -torch.inf, zero) + torch.where(undefined, torch.nan, zero)
    )
