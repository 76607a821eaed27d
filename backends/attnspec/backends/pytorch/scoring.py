"""Scores of queries and keys. Protocols: ``attnspec.spec.scoring``."""

from math import isfinite, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import functional, has_tangents, intercepted
from attnspec.spec import (
    AdditiveScores,
    DotScores,
    GaussianScores,
    GeneralScores,
    LocationScores,
    ScaledDotScores,
    implements,
)

__all__ = [
    "additive_scores",
    "dot_scores",
    "gaussian_scores",
    "general_scores",
    "location_scores",
    "scaled_dot_scores",
]

DIFFERENCES = 2**24
"""Most elements of pairwise differences that a derivative holds in memory."""

_dot = Check("dot_scores")
_scaled = Check("scaled_dot_scores")
_additive = Check("additive_scores")
_general = Check("general_scores")
_location = Check("location_scores")
_gaussian = Check("gaussian_scores")


@implements(DotScores[Tensor])
@lowers
def dot_scores(query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    """q·k for every query and key."""
    _dot(query, key)
    return (widened(query) @ widened(key).mT).to(query.dtype)


@implements(ScaledDotScores[Tensor])
@lowers
def scaled_dot_scores(
    query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]
) -> Float[Tensor, "*batch n m"]:
    """q·k/√d for every query and key, divided before rounding to a half dtype."""
    _scaled(query, key)
    return (widened(query) @ widened(key).mT / sqrt(query.shape[-1])).to(query.dtype)


@implements(AdditiveScores[Tensor])
@lowers
def additive_scores(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    w_q: Float[Tensor, "h d_q"],
    w_k: Float[Tensor, "h d_k"],
    w_v: Float[Tensor, " h"],
) -> Float[Tensor, "*batch n m"]:
    """w_v·tanh(W_q q + W_k k) for every query and key."""
    _additive(query, key, w_q, w_k, w_v)
    return additive.scores(*projections(query, key, w_q, w_k), widened(w_v)).to(query.dtype)


def projections(query: Tensor, key: Tensor, w_q: Tensor, w_k: Tensor) -> tuple[Tensor, Tensor]:
    """Return W_q q and W_k k, not rounded to a half dtype, since their sum may cancel."""
    return widened(query) @ widened(w_q).mT, widened(key) @ widened(w_k).mT


def query_first(query: Tensor, key: Tensor) -> bool:
    """Return whether qᵀWk costs less with W applied to the queries than to the keys."""
    (n, d_q), (m, d_k) = query.shape[-2:], key.shape[-2:]
    return n * d_k * (d_q + m) <= m * d_q * (d_k + n)


@implements(GeneralScores[Tensor])
@lowers
def general_scores(
    query: Float[Tensor, "*#batch n d_q"], key: Float[Tensor, "*#batch m d_k"], w: Float[Tensor, "d_q d_k"]
) -> Float[Tensor, "*batch n m"]:
    """qᵀWk for every query and key."""
    _general(query, key, w)
    q, k, matrix = widened(query), widened(key), widened(w)
    scores = q @ matrix @ k.mT if query_first(query, key) else q @ (k @ matrix.mT).mT
    return scores.to(query.dtype)


@implements(LocationScores[Tensor])
@lowers
def location_scores(query: Float[Tensor, "*batch n d_q"], w: Float[Tensor, "m d_q"]) -> Float[Tensor, "*batch n m"]:
    """Wq for every query."""
    _location(query, w)
    return (widened(query) @ widened(w).mT).to(query.dtype)


def _half_squared_distances(query: Tensor, key: Tensor) -> Tensor:
    distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
    return -0.5 * distance * distance


class _HalfSquaredDistances(torch.autograd.Function):
    """−½‖q−k‖² of (*batch, n, d) and (*batch, m, d); pairs with gradient 0 add nothing, even if the key is NaN."""

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, key: Tensor) -> Tensor:
        """Scores (*batch, n, m)."""
        return _half_squared_distances(query, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save query and key."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of query and key: Σ (k−q) and Σ (q−k), weighted by the gradient of each pair."""
        query, key = (x.contiguous() for x in ctx.saved_tensors)
        by_query = by_key = None
        if ctx.needs_input_grad[0]:
            by_query = -_summed_differences(gradient.contiguous(), query, key)
        if ctx.needs_input_grad[1]:
            by_key = -_summed_differences(gradient.mT.contiguous(), key, query)
        return by_query, by_key


def _summed_differences(weights: Tensor, points: Tensor, others: Tensor) -> Tensor:
    """Σ weight·(point − other) for every point; terms with weight 0 are skipped, even if NaN."""
    # A few features at a time, to never hold all pairs times all features; a compiler fuses that by itself.
    some = points.shape[-1] if torch.compiler.is_compiling() else max(DIFFERENCES // max(weights.numel(), 1), 1)
    shares = weights.unsqueeze(-1)
    parts = zip(torch.split(points, some, -1), torch.split(others, some, -1), strict=True)
    summed = [torch.where(shares != 0, shares * (p.unsqueeze(-2) - o.unsqueeze(-3)), 0.0).sum(-2) for p, o in parts]
    return torch.cat(summed, -1)


def half_squared_distances(query: Tensor, key: Tensor) -> Tensor:
    """−½‖q−k‖² from the differences q−k.

    q·k − ½‖q‖² − ½‖k‖² would be faster, but cancels to noise for close points far from 0.
    """
    if has_tangents():
        difference = query.unsqueeze(-2) - key.unsqueeze(-3)
        return -0.5 * (difference * difference).sum(-1)
    differentiates = recorded(query, key)
    if not functional() and not differentiates:
        return _half_squared_distances(query, key)
    if not intercepted() and query.is_cpu:
        # PyTorch's own derivative is correct if no score overflows, and has less call overhead
        scores = _half_squared_distances(query, key)
        if isfinite(scores.detach().sum()):
            return scores
    if query.shape[:-2] != key.shape[:-2]:
        batch = broadcast(query.shape[:-2], key.shape[:-2])
        query, key = (x.expand(*batch, *x.shape[-2:]) for x in (query, key))
    found: Tensor = _HalfSquaredDistances.apply(query, key)  # type: ignore[no-untyped-call]
    return found


@implements(GaussianScores[Tensor])
@keeps
def gaussian_scores(
    query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]
) -> Float[Tensor, "*batch n m"]:
    """−½‖q−k‖² for every query and key; exactly 0 where they are equal, never positive."""
    _gaussian(query, key)
    return half_squared_distances(widened(query), widened(key)).to(query.dtype)
