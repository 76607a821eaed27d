"""Normalization: from scores to attention weights, over the attendable keys of each row.

Edges: A masked key has weight exactly 0 whatever its score, NaN included. A fully masked row is 0 (semantics
`fully_masked`). With m = 0 the result is empty.
"""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S0, S1, S3, WANG

__all__ = ["MeanNormalization", "NormalizationOperations", "NormalizationTable", "Softmax"]


@operation(
    "softmax",
    chapter="normalization",
    formula=r"\alpha_{ij} = \frac{\exp e_{ij}}{\sum_{j' \in A_i} \exp e_{ij'}},\ j \in A_i;\quad 0 \text{ otherwise}",
    sources=[
        S0.equation(2),
        S1.passage("Attention: in equations"),
        S3.passage("The math behind “attending to the input”"),
    ],
    scores_scale_with={"scores": 1.0},
)
class Softmax(Protocol[Array]):
    """Softmax of every row over its attendable keys A_i.

    Where: Weights have no unit.
    Edges: Scores up to the largest number of the dtype neither overflow nor give NaN. A score of −∞ has weight
    exp −∞ = 0. If all attendable scores of a row are −∞, their weights are 0/0 = NaN (semantics `minus_infinity`). A
    score of +∞ has weight ∞/∞ = NaN; the other attendable keys of its row have weight NaN or 0. A score of NaN makes
    the weights of all attendable keys of its row NaN (semantics `attendable_nan`).
    """

    def __call__(
        self, scores: Float[Array, "*#batch n m"], *, mask: Bool[Array, "*#batch #n #m"] | None = None
    ) -> Float[Array, "*batch n m"]: ...


@operation(
    "mean_normalization",
    chapter="normalization",
    formula=r"\alpha_{ij} = e_{ij} / |A_i|,\ j \in A_i;\quad 0 \text{ otherwise}",
    sources=[S1.passage("Use Attention: dot product + 1/n_k"), WANG.passage("dot product instantiation")],
    linear="scores",
)
class MeanNormalization(Protocol[Array]):
    """Scores divided by the number of attendable keys |A_i|, as non-local networks do.

    Where: Weights are in units of the scores.
    Edges: Weights may be negative and need not sum to 1.
    """

    def __call__(
        self, scores: Float[Array, "*#batch n m"], *, mask: Bool[Array, "*#batch #n #m"] | None = None
    ) -> Float[Array, "*batch n m"]: ...


class NormalizationOperations(Generic[Array]):
    """The operations of normalization as methods of a backend class."""

    softmax: Softmax[Array]
    mean_normalization: MeanNormalization[Array]


class NormalizationTable(TypedDict, Generic[Array], total=False):
    """The operations of normalization by name, as a typed dictionary."""

    softmax: Softmax[Array]
    mean_normalization: MeanNormalization[Array]
