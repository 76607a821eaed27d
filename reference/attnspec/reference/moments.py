"""Mean and variance of the dot product of two random vectors."""

import numpy as np
from jaxtyping import Float

from attnspec.reference.defining.definition import defines
from attnspec.spec.contract.shapes import ShapeError
from attnspec.spec.moments import DotProductMean, DotProductVariance

__all__ = ["dot_product_mean", "dot_product_variance"]


@defines(DotProductMean[np.ndarray])
def dot_product_mean(mean: Float[np.ndarray, "*coordinates"], *, d: int | None = None) -> Float[np.ndarray, ""]:
    """E[qᵀk] = μᵀμ."""
    d = _coordinates("dot_product_mean", mean, d)
    expected: np.ndarray = np.sum(np.broadcast_to(mean * mean, (d,)))
    return expected


@defines(DotProductVariance[np.ndarray])
def dot_product_variance(
    mean: Float[np.ndarray, "*coordinates"], sigma: Float[np.ndarray, ""], *, d: int | None = None
) -> Float[np.ndarray, ""]:
    """Var[qᵀk] = 2σ²μᵀμ + dσ⁴; ``ValueError`` for a sigma that is not positive."""
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
        raise ShapeError(operation, "d", "a size, since the mean is a scalar", None)
    size = mean.shape[0] if d is None else d
    if size < 1:
        raise ShapeError(operation, "mean", "d of at least 1", tuple(mean.shape))
    if mean.ndim == 1 and mean.shape[0] != size:
        raise ShapeError(operation, "d", f"{mean.shape[0]} (from mean) or None", d)
    return size
