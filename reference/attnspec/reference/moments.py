"""Moments: mean and variance of the dot product of two random vectors, which is why scores are scaled.

q and k are independent of each other, the coordinates of each uncorrelated, with E = μ and Var = σ² each.
"""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.definition import defines
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.moments import DotProductMean, DotProductVariance


@defines(DotProductMean[np.ndarray])
def dot_product_mean(mean: Float[np.ndarray, "*coordinates"], *, d: int | None = None) -> Float[np.ndarray, ""]:
    """Mean of qᵀk.

    Formula: E[qᵀk] = μᵀμ
    Where: mean μ (), common to all coordinates, with d; or mean (d) without; result (), in units of mean².
    Source: S2 “Justifying Scaled Self-Attention, solution 1”.
    Edges: a scalar mean m gives d·m².
    Errors: ShapeError for a scalar mean without d, a vector mean with another d, a mean of higher rank, or d below 1.
    """
    d = _coordinates("dot_product_mean", mean, d)
    expected: np.ndarray = np.sum(np.broadcast_to(mean * mean, (d,)))
    return expected


@defines(DotProductVariance[np.ndarray])
def dot_product_variance(
    mean: Float[np.ndarray, "*coordinates"], sigma: Float[np.ndarray, ""], *, d: int | None = None
) -> Float[np.ndarray, ""]:
    """Variance of qᵀk.

    Formula: Var[qᵀk] = 2σ²μᵀμ + dσ⁴
    Where: mean μ (), common to all coordinates, with d; or mean (d) without; sigma σ () > 0, in units of mean;
    result (), in units of mean⁴.
    Source: S0(5); S2 “Justifying Scaled Self-Attention, solution 2”.
    Edges: a scalar mean m gives 2dσ²m² + dσ⁴; centred vectors give dσ⁴, and 1 once a standard normal is scaled by 1/√d.
    Errors: ShapeError for a scalar mean without d, a vector mean with another d, a mean of higher rank, or d below 1;
    ValueError for a sigma that is not positive.
    """
    d = _coordinates("dot_product_variance", mean, d)
    if not sigma > 0:
        raise ValueError(f"dot_product_variance: sigma: expected a number > 0; got {sigma}")
    square = sigma * sigma
    variance: np.ndarray = 2 * square * dot_product_mean(mean, d=d) + d * square * square
    return variance


def _coordinates(operation: str, mean: np.ndarray, d: int | None) -> int:
    if mean.ndim > 1:
        raise ShapeError(operation, "mean", "shape () or (d,)", tuple(mean.shape))
    if mean.ndim == 0 and d is None:
        raise ShapeError(operation, "d", "a size, for the mean is a scalar", None)
    size = mean.shape[0] if d is None else d
    if size < 1:
        raise ShapeError(operation, "mean", "d of at least 1", tuple(mean.shape))
    if mean.ndim == 1 and mean.shape[0] != size:
        raise ShapeError(operation, "d", f"{mean.shape[0]} (from mean) or None", d)
    return size
