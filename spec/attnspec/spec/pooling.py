"""Pooling: weighted sums of values."""

from typing import Protocol

from jaxtyping import Bool, Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import S0, S1, S3, S4


@operation(
    chapter="pooling",
    formula=r"o_i = \sum_j \alpha_{ij} v_j",
    sources=[S0.equation(1), S1.passage("Attention: in equations")],
)
class AttentionPooling(Protocol[Array]):
    """Sum of the values, weighted by given attention weights.

    Where: weights (*batch, n, m) of any sign, value (*batch, m, d_v); result (*batch, n, d_v).
    Edges: m = 0 gives 0, n = 0 an empty result. There is no mask: a weight of 0 still multiplies, so 0·NaN is NaN.
    Errors: weights and value of different m, or batches that do not broadcast, raise.
    """

    def __call__(
        self, weights: Float[Array, "*#batch n m"], value: Float[Array, "*#batch m d_v"]
    ) -> Float[Array, "*batch n d_v"]:
        """The pooled values."""
        ...


@operation(
    chapter="pooling",
    formula=r"o = \frac{1}{|A|} \sum_{j \in A} v_j",
    sources=[S3.passage("Example: average pooling is context independent"), S4.passage("Attention Prompt")],
)
class AveragePooling(Protocol[Array]):
    """Mean of the attendable values A, whatever the query.

    Where: value (*batch, m, d_v), mask (*batch, m) boolean, True = may attend; result (*batch, d_v).
    Edges: nothing attendable, or m = 0, gives 0 and zero gradients (semantics `fully_masked`, `no_keys`); masked values
    are left out, NaN and ∞ included.
    Errors: a mask that does not broadcast raises.
    """

    def __call__(
        self, value: Float[Array, "*#batch m d_v"], *, mask: Bool[Array, "*#batch #m"] | None = None
    ) -> Float[Array, "*batch d_v"]:
        """The mean."""
        ...


@operation(
    chapter="pooling",
    formula=r"o_i = \frac{\sum_{j \in A_i} K(q_i - k_j) v_j}{\sum_{j \in A_i} K(q_i - k_j)},\quad"
    r" K(u) = \exp(-\tfrac12 \lVert u \rVert^2)",
    sources=[S4.passage("Attention Prompt")],
)
class NadarayaWatson(Protocol[Array]):
    """Kernel regression: values weighted by a Gaussian of the distance between query and key.

    Where: query (*batch, n, d), key (*batch, m, d), value (*batch, m, d_v), mask (*batch, n, m);
    result (*batch, n, d_v).
    Domain: ‖q − k‖² must not overflow. The quotient is that of a softmax over −½‖q − k‖², also where every K
    underflows (the printed quotient is 0/0 far from the keys).
    Edges: a fully masked row, or m = 0, gives 0 and zero gradients; one attendable key gives its value; masked keys
    and values are left out, NaN and ∞ included; n = 0 gives an empty result.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
    ) -> Float[Array, "*batch n d_v"]:
        """The regression at every query."""
        ...
