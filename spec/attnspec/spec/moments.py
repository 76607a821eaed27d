"""Moments: mean and variance of the dot product of two random vectors, which is why scores are scaled.

q and k are independent of each other, the coordinates of each uncorrelated, with E = μ and Var = σ² each.
A scalar `mean` is the common mean of every coordinate and needs `d`; a vector `mean` carries d and forbids another.
"""

from typing import Protocol

from jaxtyping import Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import S0, S2


@operation(
    chapter="moments",
    formula=r"E[q^\top k] = \mu^\top \mu",
    sources=[S2.passage("Justifying Scaled Self-Attention, solution 1")],
    reference_only=True,
)
class DotProductMean(Protocol[Array]):
    """Mean of qᵀk.

    Where: mean (), common to all coordinates, with d; or mean (d) without. Result ().
    Edges: a scalar mean m gives d·m².
    Errors: a scalar mean without d, a vector mean with another d, or d below 1, raises.
    """

    def __call__(self, mean: Float[Array, "*coordinates"], *, d: int | None = None) -> Float[Array, ""]:
        """The mean."""
        ...


@operation(
    chapter="moments",
    formula=r"\operatorname{Var}[q^\top k] = 2\sigma^2 \mu^\top \mu + d\sigma^4",
    sources=[S0.equation(5), S2.passage("Justifying Scaled Self-Attention, solution 2")],
    reference_only=True,
)
class DotProductVariance(Protocol[Array]):
    """Variance of qᵀk.

    Where: mean (), common to all coordinates, with d; or mean (d) without; sigma () > 0. Result ().
    Edges: a scalar mean m gives 2dσ²m² + dσ⁴; centred vectors give dσ⁴, and 1 once a standard normal is scaled by 1/√d.
    Errors: a scalar mean without d, a vector mean with another d, or d below 1, raises.
    """

    def __call__(
        self, mean: Float[Array, "*coordinates"], sigma: Float[Array, ""], *, d: int | None = None
    ) -> Float[Array, ""]:
        """The variance."""
        ...
