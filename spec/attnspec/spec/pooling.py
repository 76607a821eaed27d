"""Pooling: weighted sums of values."""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S0, S1, S3, S4

__all__ = ["AttentionPooling", "AveragePooling", "NadarayaWatson", "PoolingOperations", "PoolingTable"]


@operation(
    "attention_pooling",
    chapter="pooling",
    formula=r"o_i = \sum_j \alpha_{ij} v_j",
    sources=[S0.equation(1), S1.passage("Attention: in equations")],
    linear="weights value",
)
class AttentionPooling(Protocol[Array]):
    """Sum of the values, weighted by attention weights.

    Where: Weights may have any sign. The result is in units of weights × value.
    Edges: With m = 0 the result is 0, with n = 0 it is empty. There is no mask: a weight of 0 does not leave its value
    out, and 0·NaN is NaN.
    """

    def __call__(
        self, weights: Float[Array, "*#batch n m"], value: Float[Array, "*#batch m d_v"]
    ) -> Float[Array, "*batch n d_v"]: ...


@operation(
    "average_pooling",
    chapter="pooling",
    formula=r"o = \frac{1}{|A|} \sum_{j \in A} v_j",
    sources=[S3.passage("Example: average pooling is context independent"), S4.passage("Attention Prompt")],
    pooled="value",
    linear="value",
)
class AveragePooling(Protocol[Array]):
    """Mean of the attendable values A, independent of any query.

    Where: The result is in units of value.
    Edges: If no value is attendable, or m = 0, the mean and its gradients are 0 (semantics `fully_masked`, `no_keys`).
    Masked values are left out, NaN and ∞ included.
    """

    def __call__(
        self, value: Float[Array, "*#batch m d_v"], *, mask: Bool[Array, "*#batch #m"] | None = None
    ) -> Float[Array, "*batch d_v"]: ...


@operation(
    "nadaraya_watson",
    chapter="pooling",
    formula=r"o_i = \frac{\sum_{j \in A_i} K(q_i - k_j) v_j}{\sum_{j \in A_i} K(q_i - k_j)},\quad"
    r" K(u) = \exp(-\tfrac12 \lVert u \rVert^2)",
    sources=[S4.passage("Attention Prompt")],
    pooled="value",
    linear="value",
    scores_scale_with={"query": 0.5, "key": 0.5},
)
class NadarayaWatson(Protocol[Array]):
    """Kernel regression: values weighted by a Gaussian of the distance between query and key.

    Where: Query and key are in units of the kernel's width, the result in units of value.
    Domain: ‖q − k‖² does not overflow.
    Edges: As in `attention`. Far from all keys every K underflows, and the printed quotient is 0/0. The weights are
    still the softmax of −½‖q − k‖², so that the nearest key decides.
    """

    def __call__(
        self,
        query: Float[Array, "*#batch n d"],
        key: Float[Array, "*#batch m d"],
        value: Float[Array, "*#batch m d_v"],
        *,
        mask: Bool[Array, "*#batch #n #m"] | None = None,
    ) -> Float[Array, "*batch n d_v"]: ...


class PoolingOperations(Generic[Array]):
    """The operations of pooling as methods of a backend class."""

    attention_pooling: AttentionPooling[Array]
    average_pooling: AveragePooling[Array]
    nadaraya_watson: NadarayaWatson[Array]


class PoolingTable(TypedDict, Generic[Array], total=False):
    """The operations of pooling by name, as a typed dictionary."""

    attention_pooling: AttentionPooling[Array]
    average_pooling: AveragePooling[Array]
    nadaraya_watson: NadarayaWatson[Array]
