"""Boolean masks, True = may attend. Protocols: ``attnspec.spec.masking``."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range
from attnspec.spec import CausalMask, PaddingMask, implements

__all__ = ["causal_mask", "padding_mask"]

_causal = Check("causal_mask")
_padding = Check("padding_mask")


@implements(CausalMask[Tensor])
def causal_mask(n: int, m: int, *, include_self: bool = True) -> Bool[Tensor, "{n} {m}"]:
    """True where j ≤ i (or j < i), on PyTorch's default device."""
    _causal(n, m, include_self=include_self)
    return causal_triangle(n, m, None, include_self=include_self)


@implements(PaddingMask[Tensor])
def padding_mask(lengths: Int[Tensor, "*batch"], m: int) -> Bool[Tensor, "*batch {m}"]:
    """True where j < length: key j is attendable.

    The lengths' range is checked on the CPU alone, and not under transforms such as ``torch.compile``.
    """
    _padding(lengths, m)
    refuse_out_of_range("padding_mask", "lengths", lengths, m)
    return torch.arange(m, device=lengths.device) < lengths[..., None]
