"""Scores of queries and keys. Protocols: ``attnspec.spec.scoring``."""

from math import isfinite, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels import additive
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.products import product, wide_product
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import has_tangents, operations_intercepted, under_torch_func
from attnspec.spec import (
    AdditiveScores,
    DotScores,
    GaussianScores,
    GeneralScores,
    LocationScores,
    ScaledDotScores,
    implements,
)

__all__ = ["additive_scores", "dot_scores", "gaussian_scores", "general_scores", "location_scores", "scaled_dot_scores"]

DIFFERENCES = 2**24
"""Most elements of the differences q − k that a derivative holds in memory."""

_dot = Check("dot_scores")
_scaled = Check("scaled_dot_scores")
_additive = Check("additive_scores")
_general = Check("general_scores")
_location = Check("location_scores")
_gaussian = Check("gaussian_scores")


@implements(DotScores[Tensor])
@follows_autocast
def dot_scores(query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]) -> Float[Tensor, "*batch n m"]:
    """q·k for every query and key."""
    _dot(query, key)
    return product(query, key.mT)


@implements(ScaledDotScores[Tensor])
@follows_autocast
def scaled_dot_scores(
    query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]
) -> Float[Tensor, "*batch n m"]:
    """q·k/√d for every query and key, divided before rounding to a half dtype."""
    _scaled(query, key)
    return (wide_product(query, key.mT) / sqrt(query.shape[-1])).to(query.dtype)


@implements(AdditiveScores[Tensor])
@follows_autocast
def additive_scores(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    w_q: Float[Tensor, "h d_q"],
    w_k: Float[Tensor, "h d_k"],
    w_v: Float[Tensor, " h"],
) -> Float[Tensor, "*batch n m"]:
    """w_v·tanh(W_q q + W_k k) for every query and key."""
    _additive(query, key, w_q, w_k, w_v)
    return additive.scores(*projections(query, key, w_q, w_k), upcast(w_v)).to(query.dtype)


def projections(query: Tensor, key: Tensor, w_q: Tensor, w_k: Tensor) -> tuple[Tensor, Tensor]:
    """Return W_q q and W_k k, unrounded, since their sum may cancel."""
    return wide_product(query, w_q.mT), wide_product(key, w_k.mT)


def query_first(query: Tensor, key: Tensor) -> bool:
    """Return whether qᵀWk costs less with W applied to the queries than to the keys."""
    (n, d_q), (m, d_k) = query.shape[-2:], key.shape[-2:]
    return n * d_k * (d_q + m) <= m * d_q * (d_k + n)


@implements(GeneralScores[Tensor])
@follows_autocast
def general_scores(
    query: Float[Tensor, "*#batch n d_q"], key: Float[Tensor, "*#batch m d_k"], w: Float[Tensor, "d_q d_k"]
) -> Float[Tensor, "*batch n m"]:
    """qᵀWk for every query and key."""
    _general(query, key, w)
    if query_first(query, key):
        scores = wide_product(wide_product(query, w), key.mT)
    else:
        scores = wide_product(query, wide_product(key, w.mT).mT)
    return scores.to(query.dtype)


@implements(LocationScores[Tensor])
@follows_autocast
def location_scores(query: Float[Tensor, "*batch n d_q"], w: Float[Tensor, "m d_q"]) -> Float[Tensor, "*batch n m"]:
    """Wq for every query."""
    _location(query, w)
    return product(query, w.mT)


def _half_squared_distances(query: Tensor, key: Tensor) -> Tensor:
    distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
    return -0.5 * distance * distance


class _HalfSquaredDistances(torch.autograd.Function):
    """−½‖q−k‖², whose gradient ignores pairs with cotangent 0, even if the key is NaN."""

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, key: Tensor) -> Tensor:
        """Return scores (*batch, n, m) of queries (*batch, n, d) and keys (*batch, m, d)."""
        return _half_squared_distances(query, key)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return Σ (k−q) and Σ (q−k), weighted by the gradient of each pair."""
        query, key = (x.contiguous() for x in ctx.saved_tensors)
        by_query = by_key = None
        if ctx.needs_input_grad[0]:
            by_query = -_summed_differences(gradient.contiguous(), query, key)
        if ctx.needs_input_grad[1]:
            by_key = -_summed_differences(gradient.mT.contiguous(), key, query)
        return by_query, by_key


def _summed_differences(weights: Tensor, points: Tensor, others: Tensor) -> Tensor:
    """Return Σ weight·(point − other) for every point; terms with weight 0 are skipped."""
    # All pairs times all features may not fit into memory. torch.compile fuses the sum by itself.
    width = points.shape[-1] if torch.compiler.is_compiling() else max(DIFFERENCES // max(weights.numel(), 1), 1)
    shares = weights.unsqueeze(-1)
    parts = zip(torch.split(points, width, -1), torch.split(others, width, -1), strict=True)
    summed = [torch.where(shares != 0, shares * (p.unsqueeze(-2) - o.unsqueeze(-3)), 0.0).sum(-2) for p, o in parts]
    return torch.cat(summed, -1)


def half_squared_distances(query: Tensor, key: Tensor) -> Tensor:
    """−½‖q−k‖² from the differences q−k.

    q·k − ½‖q‖² − ½‖k‖² would be faster, but cancels to noise for close points far from 0.
    """
    if has_tangents():
        difference = query.unsqueeze(-2) - key.unsqueeze(-3)
        return -0.5 * (difference * difference).sum(-1)
    differentiates = needs_gradients(query, key)
    if not under_torch_func() and not differentiates:
        return _half_squared_distances(query, key)
    if not operations_intercepted() and query.is_cpu:
        # If no score overflows, PyTorch's own derivative is correct, and its call overhead is lower.
        scores = _half_squared_distances(query, key)
        if isfinite(scores.detach().sum()):
            return scores
    if query.shape[:-2] != key.shape[:-2]:
        batch = broadcast(query.shape[:-2], key.shape[:-2])
        query, key = (x.expand(*batch, *x.shape[-2:]) for x in (query, key))
    differentiable: Tensor = _HalfSquaredDistances.apply(query, key)  # type: ignore[no-untyped-call]
    return differentiable


@implements(GaussianScores[Tensor])
@ignores_autocast
def gaussian_scores(
    query: Float[Tensor, "*#batch n d"], key: Float[Tensor, "*#batch m d"]
) -> Float[Tensor, "*batch n m"]:
    """−½‖q−k‖² for every query and key; exactly 0 where they are equal, never positive."""
    _gaussian(query, key)
    return half_squared_distances(upcast(query), upcast(key)).to(query.dtype)
