"""Positional encodings: sinusoidal and learned, added or concatenated."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.arithmetic import counted
from attnspec.reference.defining.definition import defines
from attnspec.spec.positional import AddPositions, ConcatPositions, LearnedPositions, SinusoidalPositionalEncoding

__all__ = ["add_positions", "concat_positions", "learned_positions", "sinusoidal_positional_encoding"]


@defines(SinusoidalPositionalEncoding[np.ndarray])
def sinusoidal_positional_encoding(n: int, d: int) -> Float[np.ndarray, "{n} {d}"]:
    """P_{t,2i} = sin(t/10000^{2i/d}), P_{t,2i+1} = cos(t/10000^{2i/d}).

    Powers are computed as 10000^{−2i/d} = exp(−2i ln 10⁴/d). The result is float64.
    """
    pairs = (d + 1) // 2
    t, i = counted(n), counted(pairs)
    frequency = np.exp(-2 * i * np.log(i.dtype.type(10_000)) / d)
    angle = t[:, None] * frequency
    interleaved = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, 2 * pairs)
    return interleaved[:, :d]


@defines(LearnedPositions[np.ndarray])
def learned_positions(table: Float[np.ndarray, "rows d"], n: int) -> Float[np.ndarray, "{n} d"]:
    """P_t = T_t for t = 0 … n−1: the first n rows of the table."""
    return table[:n]


@defines(AddPositions[np.ndarray])
def add_positions(x: Float[np.ndarray, "*batch n d"], p: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "*batch n d"]:
    """Y = X + P."""
    placed: np.ndarray = x + p
    return placed


@defines(ConcatPositions[np.ndarray])
def concat_positions(
    x: Float[np.ndarray, "*batch n d"], p: Float[np.ndarray, "n d_p"]
) -> Float[np.ndarray, "*batch n d+d_p"]:
    """Y = [X; P]."""
    repeated = np.broadcast_to(p, (*x.shape[:-1], p.shape[-1]))
    joined: np.ndarray = np.concatenate([x, repeated], axis=-1)
    return joined
