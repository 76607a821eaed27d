"""Positions. Protocol: ``attnspec.spec.positional``."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.spec import SinusoidalPositionalEncoding, implements

__all__ = ["sinusoidal_positional_encoding"]

_sinusoids = Check("sinusoidal_positional_encoding")


@implements(SinusoidalPositionalEncoding[Tensor])
def sinusoidal_positional_encoding(n: int, d: int) -> Float[Tensor, "{n} {d}"]:
    """Sines and cosines, interleaved, on PyTorch's default device and in its default dtype.

    Angles are computed in float64: in float32 those of large positions would be off by whole digits.
    """
    _sinusoids(n, d)
    even = torch.arange(0, d, 2, dtype=torch.float64)
    angle = torch.arange(n, dtype=torch.float64)[:, None] / 10000.0 ** (even / d)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    return pairs[:, :d].to(torch.get_default_dtype())
