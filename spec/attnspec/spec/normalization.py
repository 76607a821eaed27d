"""Normalization: from scores to attention weights, over the attendable keys of each row."""

from typing import Protocol

from jaxtyping import Bool, Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import S0, S1, S3, WANG


@operation(
    chapter="normalization",
    formula=r"\alpha_{ij} = \frac{\exp e_{ij}}{\sum_{j' \in A_i} \exp e_{ij'}},\ j \in A_i;\quad 0 \text{ otherwise}",
    sources=[S0.equation(2), S1.passage("Attention: in equations"), S3.passage("The math behind attending")],
)
class Softmax(Protocol[Array]):
    """Softmax of every row over its attendable keys A_i.

    Where: scores (*batch, n, m), mask (*batch, n, m) boolean, True = may attend; weights (*batch, n, m).
    Edges: a masked key has weight exactly 0 whatever its score; a fully masked row is 0 (semantics `fully_masked`);
    scores up to the largest number of the dtype are safe; m = 0 gives an empty result.
    Errors: a mask of rank below 2, or one that does not broadcast, raises.
    """

    def __call__(
        self, scores: Float[Array, "*#batch n m"], *, mask: Bool[Array, "*#batch #n #m"] | None = None
    ) -> Float[Array, "*batch n m"]:
        """Attention weights of every row."""
        ...


@operation(
    chapter="normalization",
    formula=r"\alpha_{ij} = e_{ij} / |A_i|,\ j \in A_i;\quad 0 \text{ otherwise}",
    sources=[S1.passage("Use Attention: dot product + 1/n_k"), WANG.passage("dot product instantiation")],
)
class MeanNormalization(Protocol[Array]):
    """Scores divided by the number of attendable keys |A_i|, as non-local networks do.

    Where: scores (*batch, n, m), mask (*batch, n, m) boolean, True = may attend; weights (*batch, n, m).
    Edges: weights may be negative and need not sum to 1; masked keys and fully masked rows are exactly 0;
    m = 0 gives an empty result.
    Errors: a mask of rank below 2, or one that does not broadcast, raises.
    """

    def __call__(
        self, scores: Float[Array, "*#batch n m"], *, mask: Bool[Array, "*#batch #n #m"] | None = None
    ) -> Float[Array, "*batch n m"]:
        """Attention weights of every row."""
        ...
