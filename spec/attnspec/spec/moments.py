"""Moments: mean and variance of the dot product of two random vectors, which is why scores are scaled.

Where: q and k are independent of each other, the coordinates of each uncorrelated, with E = μ and Var = σ² each. A
scalar mean is common to all coordinates and needs d. A vector mean has d coordinates, and d is optional.
Errors: A scalar mean without d, or a vector mean with another d, raises.
"""

from typing import Protocol

from jaxtyping import Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import S0, S2

__all__ = ["DotProductMean", "DotProductVariance"]


@operation(
    "dot_product_mean",
    chapter="moments",
    formula=r"E[q^\top k] = \mu^\top \mu",
    sources=[S2.passage("Justifying Scaled Self-Attention, solution 1")],
    reference_only=True,
)
class DotProductMean(Protocol[Array]):
    """Mean of qᵀk.

    Where: The result is in units of mean².
    Edges: A scalar mean m gives d·m².
    """

    def __call__(self, mean: Float[Array, "*coordinates"], *, d: int | None = None) -> Float[Array, ""]: ...


@operation(
    "dot_product_variance",
    chapter="moments",
    formula=r"\operatorname{Var}[q^\top k] = 2\sigma^2 \mu^\top \mu + d\sigma^4",
    sources=[S0.equation(5), S2.passage("Justifying Scaled Self-Attention, solution 2")],
    reference_only=True,
)
class DotProductVariance(Protocol[Array]):
    """Variance of qᵀk.

    Where: sigma is positive and in units of mean, the result in units of mean⁴.
    Edges: A scalar mean m gives 2dσ²m² + dσ⁴. Centred vectors give dσ⁴, and 1 once a standard normal is scaled by 1/√d.
    Errors: A sigma that is not positive raises.
    """

    def __call__(
        self, mean: Float[Array, "*coordinates"], sigma: Float[Array, ""], *, d: int | None = None
    ) -> Float[Array, ""]: ...
