"""Positions: vectors that tell where in the sequence a token stands."""

from typing import Protocol

from jaxtyping import Float

from attnspec.spec.contract.operation import Array_co, operation
from attnspec.spec.contract.sources import S2, S3, S4, VASWANI


@operation(
    chapter="positional",
    formula=r"P_{t,2i} = \sin(t / 10000^{2i/d}),\quad P_{t,2i+1} = \cos(t / 10000^{2i/d})",
    sources=[
        S2.passage("Machine Translation, solution 1"),
        S3.passage("Positional Encoding"),
        S4.passage("Positional Encoding"),
        VASWANI.passage("3.5"),
    ],
)
class SinusoidalPositionalEncoding(Protocol[Array_co]):
    """Sines and cosines of geometrically falling frequencies, interleaved, positions counted from 0.

    Where: n positions t = 0 … n−1 (steps), d ≥ 1 columns; result (n, d) in the backend's default dtype.
    Edges: for odd d the last column is the unpaired sine (semantics `odd_encoding`); n = 0 gives an empty result.
    Errors: a negative n, or d below 1, raises.
    """

    def __call__(self, n: int, d: int) -> Float[Array_co, "{n} {d}"]:
        """The encoding of n positions."""
        ...
