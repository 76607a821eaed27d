"""Normalization of scores over the attendable keys. Protocols: ``attnspec.spec.normalization``."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.spec import MeanNormalization, Softmax, implements

__all__ = ["mean_normalization", "softmax"]

_softmax = Check("softmax")
_mean = Check("mean_normalization")


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the attendable keys; excluded keys have weight 0 and gradient 0."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # A fully masked row gets scores 0: softmax of −∞ alone is NaN, and so are its gradients.
    filler = torch.where(mask.any(-1, keepdim=True), -torch.inf, 0.0).to(scores.dtype)
    return torch.softmax(torch.where(mask, scores, filler), dim=-1).masked_fill(~mask, 0.0)


@implements(Softmax[Tensor])
def softmax(
    scores: Float[Tensor, "*#batch n m"], *, mask: Bool[Tensor, "*#batch #n #m"] | None = None
) -> Float[Tensor, "*batch n m"]:
    """exp e / Σ exp e over the attendable keys of each row."""
    _softmax(scores, mask)
    return masked_softmax(upcast(scores), mask).to(scores.dtype)


@implements(MeanNormalization[Tensor])
def mean_normalization(
    scores: Float[Tensor, "*#batch n m"], *, mask: Bool[Tensor, "*#batch #n #m"] | None = None
) -> Float[Tensor, "*batch n m"]:
    """Scores divided by the number of attendable keys of each row; 0 for excluded keys."""
    _mean(scores, mask)
    wide, m = upcast(scores), scores.shape[-1]
    if mask is None:
        return (wide / m).to(scores.dtype) if m else scores.clone()
    count = mask.sum(-1, keepdim=True) * (m if mask.shape[-1] == 1 else 1)
    return (torch.where(mask, wide, 0.0) / count.clamp(min=1)).to(scores.dtype)
