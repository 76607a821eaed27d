"""Protocols, tables and bases of the wheel, as a third party's type checker sees them."""

import numpy as np
from torch import Tensor

from attnspec.backends.bases.contract import Operations, Table
from attnspec.backends.bases.numpy import NDArray, NumPyBackend
from attnspec.spec import DotScores, Semantics, Softmax, implements


@implements(DotScores[Tensor])
def scores(query: Tensor, key: Tensor) -> Tensor:
    """QKᵀ by PyTorch."""
    return query @ key.mT


class Plain(NumPyBackend):
    """QKᵀ by NumPy."""

    name = "plain"
    semantics = Semantics()

    def dot_scores(self, query: NDArray, key: NDArray) -> NDArray:
        """QKᵀ by NumPy."""
        product: NDArray = query @ np.swapaxes(key, -1, -2)
        return product


class Lists(Operations[list[float]]):
    """A backend whose arrays are lists; only its types are checked."""

    name = "lists"

    def softmax(self, scores: list[float], *, mask: list[float] | None = None) -> list[float]:
        """Ones."""
        return [1.0 for _ in scores]


table: Table[Tensor] = {"dot_scores": scores}
numpy_scores: DotScores[NDArray] = Plain().dot_scores
list_softmax: Softmax[list[float]] = Lists().softmax
