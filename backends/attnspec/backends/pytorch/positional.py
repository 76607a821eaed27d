"""Positional encodings. Protocols: ``attnspec.spec.positional``."""

import torch
from jaxtyping import Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.runtime.autocast import ignores_autocast
from attnspec.backends.pytorch.runtime.devices import float64_device
from attnspec.spec import AddPositions, ConcatPositions, LearnedPositions, SinusoidalPositionalEncoding, implements

__all__ = ["add_positions", "concat_positions", "learned_positions", "sinusoidal_positional_encoding"]

_add = Check("add_positions")
_concat = Check("concat_positions")
_learned = Check("learned_positions")
_sinusoids = Check("sinusoidal_positional_encoding")


def sinusoids(n: int, d: int, *, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Interleaved sines and cosines (n, d).

    Angles are computed in float64: in float32 those of large positions would lose whole digits.
    """
    device = torch.get_default_device() if device is None else torch.device(device)
    place = float64_device(device)
    even = torch.arange(0, d, 2, dtype=torch.float64, device=place)
    angle = torch.arange(n, dtype=torch.float64, device=place)[:, None] / 10000.0 ** (even / d)
    pairs = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
    return pairs[:, :d].to(device, dtype, memory_format=torch.contiguous_format)


@implements(SinusoidalPositionalEncoding[Tensor])
def sinusoidal_positional_encoding(n: int, d: int) -> Float[Tensor, "{n} {d}"]:
    """Interleaved sines and cosines, on PyTorch's default device and in its default dtype."""
    _sinusoids(n, d)
    return sinusoids(n, d, dtype=torch.get_default_dtype(), device=None)


@implements(LearnedPositions[Tensor])
@ignores_autocast
def learned_positions(table: Float[Tensor, "rows d"], n: int) -> Float[Tensor, "{n} d"]:
    """Return a copy of the first n rows."""
    _learned(table, n)
    return table[:n].clone()


@implements(AddPositions[Tensor])
@ignores_autocast
def add_positions(x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d"]) -> Float[Tensor, "*batch n d"]:
    """Return x + p."""
    _add(x, p)
    return x + p


@implements(ConcatPositions[Tensor])
@ignores_autocast
def concat_positions(x: Float[Tensor, "*batch n d"], p: Float[Tensor, "n d_p"]) -> Float[Tensor, "*batch n d+d_p"]:
    """Concatenate the features of x and p, in this order."""
    _concat(x, p)
    return torch.cat((x, p.expand(*x.shape[:-1], p.shape[-1])), -1)
