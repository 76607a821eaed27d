"""What a third party's type checker sees of the wheel: Protocols, tables and bases, for arrays of any kind."""

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
    """A backend with an array type of its own, of which only the type is looked at."""

    name = "lists"

    def softmax(self, scores: list[float], *, mask: list[float] | None = None) -> list[float]:
        """Ones."""
        return [1.0 for _ in scores]


table: Table[Tensor] = {"dot_scores": scores}
one: DotScores[NDArray] = Plain().dot_scores
another: Softmax[list[float]] = Lists().softmax
