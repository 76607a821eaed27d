"""Scoring: a number for every pair of a query and a key (S0(3)).

Edges: With n = 0 or m = 0 the result is empty.
"""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import LUONG, S0, S1, S2, S3, S4

__all__ = [
    "AdditiveScores",
    "DotScores",
    "GaussianScores",
    "GeneralScores",
    "LocationScores",
    "ScaledDotScores",
    "ScoringOperations",
    "ScoringTable",
]


@operation(
    "dot_scores",
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top k_j",
    sources=[S0.equation(3), S1.passage("Attention: in equations"), S3.passage("Example: Dot-Product Attention")],
    linear="query key",
)
class DotScores(Protocol[Array]):
    """Dot product of every query with every key.

    Where: Scores are in units of query × key.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "scaled_dot_scores",
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top k_j / \sqrt{d}",
    sources=[
        S0.equation(5),
        S2.passage("Justifying Scaled Self-Attention"),
        S3.passage("Attention Mapping"),
        S4.passage("Scoring Function"),
    ],
    linear="query key",
)
class ScaledDotScores(Protocol[Array]):
    """Dot product of every query with every key, divided by √d.

    Where: d is the size of the vectors that are multiplied. Scores are in units of query × key.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "additive_scores",
    chapter="scoring",
    formula=r"e_{ij} = w_v^\top \tanh(W_q q_i + W_k k_j)",
    sources=[S0.equation(4)],
    linear="w_v",
)
class AdditiveScores(Protocol[Array]):
    """Additive scores: a perceptron with one hidden layer, applied to every query–key pair.

    Where: Weights are (out, in). Scores are in units of w_v.
    Edges: For any finite input |e| ≤ ‖w_v‖₁, since tanh saturates.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d_q"],
        key: Float[Array, "*#batch m d_k"],
        w_q: Float[Array, "h d_q"],
        w_k: Float[Array, "h d_k"],
        w_v: Float[Array, " h"],
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "general_scores",
    chapter="scoring",
    formula=r"e_{ij} = q_i^\top W k_j",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("general")],
    linear="query key w",
)
class GeneralScores(Protocol[Array]):
    """Luong's general scores: a bilinear form of query and key.

    Where: Scores are in units of query × w × key.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d_q"], key: Float[Array, "*#batch m d_k"], w: Float[Array, "d_q d_k"]
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "location_scores",
    chapter="scoring",
    formula=r"e_{ij} = (W q_i)_j",
    sources=[S2.passage("Luong Attention, footnote 1"), LUONG.passage("location")],
    linear="query w",
)
class LocationScores(Protocol[Array]):
    """Luong's location scores, from the query alone: one row of weights per key position.

    Where: w has a row for every scored position. Scores are in units of query × w.
    """

    def __call__(self, query: Float[Array, "*batch n d_q"], w: Float[Array, "m d_q"]) -> Float[Array, "*batch n m"]: ...


@operation(
    "gaussian_scores",
    chapter="scoring",
    formula=r"e_{ij} = -\tfrac12 \lVert q_i - k_j \rVert^2",
    sources=[S4.passage("Attention Prompt")],
)
class GaussianScores(Protocol[Array]):
    """Logarithm of the Gaussian kernel, up to its constant: minus half the squared distance.

    Where: The kernel has width 1; query and key are in units of it. Scores are never positive. S4 writes the kernel for
    one-dimensional inputs; for d > 1 the squares are summed over coordinates.
    Domain: ‖q − k‖² does not overflow.
    Edges: A query equal to a key scores 0.
    """

    def __call__(
        self, query: Float[Array, "*#batch n d"], key: Float[Array, "*#batch m d"]
    ) -> Float[Array, "*batch n m"]: ...


class ScoringOperations(Generic[Array]):
    """The operations of scoring as methods of a backend class."""

    dot_scores: DotScores[Array]
    scaled_dot_scores: ScaledDotScores[Array]
    additive_scores: AdditiveScores[Array]
    general_scores: GeneralScores[Array]
    location_scores: LocationScores[Array]
    gaussian_scores: GaussianScores[Array]


class ScoringTable(TypedDict, Generic[Array], total=False):
    """The operations of scoring by name, as a typed dictionary."""

    dot_scores: DotScores[Array]
    scaled_dot_scores: ScaledDotScores[Array]
    additive_scores: AdditiveScores[Array]
    general_scores: GeneralScores[Array]
    location_scores: LocationScores[Array]
    gaussian_scores: GaussianScores[Array]
