"""Scoring: a number for every pair of a query and a key (S0(3))."""

from typing import Protocol

from jaxtyping import Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import LUONG, S0, S1, S2, S3, S4


@operation(
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top k_j",
    sources=[S0.equation(3), S1.passage("Attention: in equations"), S3.passage("Example: Dot-Product Attention")],
)
class DotScores(Protocol[Array]):
    """Dot product of every query with every key.

    Where: query (*batch, n, d), key (*batch, m, d); scores (*batch, n, m).
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: a query and a key of different d, or batches that do not broadcast, raise.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]:
        """Scores of every query against every key."""
        ...


@operation(
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top k_j / \sqrt{d}",
    sources=[
        S0.equation(5),
        S2.passage("Justifying Scaled Self-Attention"),
        S3.passage("Attention Mapping"),
        S4.passage("Scoring Function"),
    ],
)
class ScaledDotScores(Protocol[Array]):
    """Dot product of every query with every key, divided by the square root of their size.

    Where: query (*batch, n, d), key (*batch, m, d); scores (*batch, n, m); d is the size actually multiplied.
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: a query and a key of different d, or batches that do not broadcast, raise.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]:
        """Scores of every query against every key."""
        ...


@operation(
    chapter="scoring",
    formula=r"e_{ij} = w_v^\top \tanh(W_q q_i + W_k k_j)",
    sources=[S0.equation(4)],
)
class AdditiveScores(Protocol[Array]):
    """Additive scores: a perceptron with one hidden layer on every query and key.

    Where: query (*batch, n, d_q), key (*batch, m, d_k), w_q (h, d_q), w_k (h, d_k), w_v (h); scores (*batch, n, m).
    Edges: tanh saturates, so any finite input gives |e| ≤ ‖w_v‖₁; n = 0 or m = 0 gives an empty result.
    Errors: weights whose sizes do not fit query, key or one another, or batches that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        w_q: Float[Array, "h d_q"],
        w_k: Float[Array, "h d_k"],
        w_v: Float[Array, " h"],
    ) -> Float[Array, "*batch n m"]:
        """Scores of every query against every key."""
        ...


@operation(
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top W k_j",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("general")],
)
class GeneralScores(Protocol[Array]):
    """Luong's general scores: a bilinear form of query and key.

    Where: query (*batch, n, d_q), key (*batch, m, d_k), w (d_q, d_k); scores (*batch, n, m).
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: a matrix that does not fit query and key, or batches that do not broadcast, raise.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d_q"], key: Float[Array, "*#batch m d_k"], w: Float[Array, "d_q d_k"]
    ) -> Float[Array, "*batch n m"]:
        """Scores of every query against every key."""
        ...


@operation(
    chapter="scoring",
    formula=r"e_{ij} = (W q_i)_j",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("location")],
)
class LocationScores(Protocol[Array]):
    """Luong's location scores: from the query alone, one row of weights for each position.

    Where: query (*batch, n, d_q), w (m, d_q); scores (*batch, n, m).
    Edges: n = 0 or m = 0 gives an empty result.
    Errors: a matrix that does not fit the query raises.
    """

    def __call__(self, query: Float[Array, "*batch n d_q"], w: Float[Array, "m d_q"]) -> Float[Array, "*batch n m"]:
        """Scores of every query against every position."""
        ...


@operation(
    chapter="scoring",
    formula=r"e_{ij} = -\tfrac12 \lVert q_i - k_j \rVert^2",
    sources=[S4.passage("Attention Prompt")],
)
class GaussianScores(Protocol[Array]):
    """Logarithm of the Gaussian kernel, up to its constant: minus half the squared distance.

    Where: query (*batch, n, d), key (*batch, m, d); scores (*batch, n, m), never positive.
    Domain: ‖q − k‖² must not overflow. S4 writes the kernel of one-dimensional inputs; d > 1 sums over coordinates.
    Edges: a query equal to a key scores 0; n = 0 or m = 0 gives an empty result.
    Errors: a query and a key of different d, or batches that do not broadcast, raise.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]:
        """Scores of every query against every key."""
        ...
