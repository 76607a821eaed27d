"""Weighted sums of values. Protocols: ``attnspec.spec.pooling``."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels.formula import nonfinite_terms
from attnspec.backends.pytorch.normalization import masked_softmax
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.products import operand, product, wide_product
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted
from attnspec.backends.pytorch.scoring import half_squared_distances
from attnspec.spec import AttentionPooling, AveragePooling, NadarayaWatson, implements

__all__ = ["attention_pooling", "average_pooling", "nadaraya_watson"]

_attention = Check("attention_pooling")
_average = Check("average_pooling")
_regression = Check("nadaraya_watson")


def pool(weights: Tensor, mask: Tensor | None, value: Tensor) -> Tensor:
    """Return Σ αv over the attendable keys; masked values, even NaN, have no effect."""
    if mask is None:
        return wide_product(weights, value)
    # A finite sum proves that all terms are finite, in a tenth of the time of testing each.
    if not operations_intercepted() and value.device.type == "cpu" and bool(value.detach().sum().isfinite()):
        return wide_product(weights, value)
    finite = torch.isfinite(value)
    # From here on no branch depends on values, so that the CPU does not wait for a GPU.
    allowed = mask.expand(*mask.shape[:-1], value.shape[-2])
    finite_part = wide_product(weights, torch.where(finite, value, 0.0))
    return finite_part + nonfinite_terms(weights.detach(), value.detach(), allowed)


@implements(AttentionPooling[Tensor])
@follows_autocast
def attention_pooling(
    weights: Float[Tensor, "*#batch n m"], value: Float[Tensor, "*#batch m d_v"]
) -> Float[Tensor, "*batch n d_v"]:
    """Σ αv; the weights are not normalized."""
    _attention(weights, value)
    return product(weights, value)


@implements(AveragePooling[Tensor])
def average_pooling(
    value: Float[Tensor, "*#batch m d_v"], *, mask: Bool[Tensor, "*#batch #m"] | None = None
) -> Float[Tensor, "*batch d_v"]:
    """Mean of the attendable values."""
    _average(value, mask)
    wide, m = upcast(value), value.shape[-2]
    if mask is None:
        return (wide.sum(-2) / max(m, 1)).to(value.dtype)
    count = mask.sum(-1, keepdim=True) * (m if mask.shape[-1] == 1 else 1)
    return (torch.where(mask[..., None], wide, 0.0).sum(-2) / count.clamp(min=1)).to(value.dtype)


@implements(NadarayaWatson[Tensor])
@ignores_autocast
def nadaraya_watson(
    query: Float[Tensor, "*#batch n d"],
    key: Float[Tensor, "*#batch m d"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
) -> Float[Tensor, "*batch n d_v"]:
    """Σ Kv / Σ K with Gaussian kernels K, as a softmax over log K."""
    _regression(query, key, value, mask)
    weights = masked_softmax(half_squared_distances(upcast(query), upcast(key)), mask)
    return pool(weights, mask, operand(value)).to(value.dtype)
