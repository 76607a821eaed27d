"""Positional encoding: vectors that encode the position of a token in its sequence."""

from typing import Annotated, Generic, Protocol, TypedDict

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array, Array_co, sizes
from attnspec.spec.contract.axes import Axis
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S2, S3, S4, VASWANI

__all__ = [
    "AddPositions",
    "ConcatPositions",
    "LearnedPositions",
    "PositionalOperations",
    "PositionalTable",
    "SinusoidalPositionalEncoding",
]


@operation(
    "sinusoidal_positional_encoding",
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
    """Interleaved sines and cosines of geometrically decreasing frequencies, for positions from 0.

    Where: Positions are t = 0 … n−1, angles in radians. The result has the default dtype of the backend, and no unit.
    Edges: For odd d the last column is the unpaired sine (semantics `odd_encoding`). With n = 0 the result is empty.
    """

    def __call__(self, n: int, d: int) -> Float[Array_co, "{n} {d}"]: ...


@operation(
    "learned_positions",
    chapter="positional",
    formula=r"P_t = T_t,\quad t = 0 \dots n - 1",
    sources=[S2.passage("Machine Translation, solution 1")],
)
class LearnedPositions(Protocol[Array]):
    """Learned position encodings: the first n rows of a table of parameters.

    Where: Row t of the table T is the encoding of position t, counted from 0. Units are those of the table.
    Edges: Unused rows have no effect, NaN and ∞ included; their gradient is 0. If there are fewer rows than positions,
    the call raises.
    """

    def __call__(
        self, table: Annotated[Float[Array, "rows d"], sizes(rows="n+spare")], n: int
    ) -> Float[Array, "{n} d"]: ...


@operation(
    "add_positions",
    chapter="positional",
    formula=r"Y = X + P",
    sources=[S2.passage("Input & Positional Embedding"), S4.passage("Positional Encoding"), VASWANI.passage("3.5")],
)
class AddPositions(Protocol[Array]):
    """Embeddings plus the encodings of their positions.

    Where: P is the same for every sequence of a batch, sinusoidal or learned. P and the result are in units of x. S3
    concatenates x and P instead.
    """

    def __call__(self, x: Float[Array, "*batch n d"], p: Float[Array, "n d"]) -> Float[Array, "*batch n d"]: ...


@operation(
    "concat_positions",
    chapter="positional",
    formula=r"Y = [X; P]",
    sources=[S3.passage("Positional Encoding")],
    axes={"d_p": Axis.WIDTH},
)
class ConcatPositions(Protocol[Array]):
    """Embeddings concatenated with the encodings of their positions, features of x first.

    Where: P is the same for every sequence of a batch. S2 and Vaswani 2017 add x and P instead.
    """

    def __call__(self, x: Float[Array, "*batch n d"], p: Float[Array, "n d_p"]) -> Float[Array, "*batch n d+d_p"]: ...


class PositionalOperations(Generic[Array]):
    """The operations of positional encoding as methods of a backend class."""

    sinusoidal_positional_encoding: SinusoidalPositionalEncoding[Array]
    learned_positions: LearnedPositions[Array]
    add_positions: AddPositions[Array]
    concat_positions: ConcatPositions[Array]


class PositionalTable(TypedDict, Generic[Array], total=False):
    """The operations of positional encoding by name, as a typed dictionary."""

    sinusoidal_positional_encoding: SinusoidalPositionalEncoding[Array]
    learned_positions: LearnedPositions[Array]
    add_positions: AddPositions[Array]
    concat_positions: ConcatPositions[Array]
