"""Positions: vectors that tell where in the sequence a token stands."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.arithmetic import counted
from attnspec.reference.defining.definition import defines
from attnspec.spec.positional import SinusoidalPositionalEncoding


@defines(SinusoidalPositionalEncoding[np.ndarray])
def sinusoidal_positional_encoding(n: int, d: int) -> Float[np.ndarray, "{n} {d}"]:
    """Sines and cosines of geometrically falling frequencies, interleaved, positions counted from 0.

    Formula: P_{t,2i} = sin(t/10000^{2i/d}), P_{t,2i+1} = cos(t/10000^{2i/d}), with 10000^{−2i/d} = exp(−2i ln 10⁴/d).
    Where: n positions t = 0 … n−1 (steps), d ≥ 1 columns; result (n, d), float64, without unit, angles in radians.
    Source: S2 “Machine Translation, solution 1”; S3 “Positional Encoding”; S4 “Positional Encoding”;
    Vaswani 2017 “3.5”.
    Edges: for odd d the last column is the unpaired sine; n = 0 gives an empty result.
    Errors: ShapeError for a negative n or d below 1, TypeError for a size that is no integer.
    """
    pairs = (d + 1) // 2
    t, i = counted(n), counted(pairs)
    frequency = np.exp(-2 * i * np.log(i.dtype.type(10_000)) / d)
    angle = t[:, None] * frequency
    interleaved = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, 2 * pairs)
    return interleaved[:, :d]
