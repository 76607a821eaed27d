"""Third-party code that mypy must accept."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.contract import Operations, Table
from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.pytorch import nn
from attnspec.conformance import ConformanceSuite
from attnspec.reference import dot_scores as reference_dot_scores
from attnspec.spec import (
    Backend,
    Converts,
    DotScores,
    EncoderLayer,
    EncoderLayerParameters,
    Limits,
    LSTMCell,
    LSTMParameters,
    MultiHeadParameters,
    ScaledDotProductAttention,
    Semantics,
    Softmax,
    implements,
)


@implements(DotScores[Tensor])
def scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.mT


@implements(Softmax[Tensor])
def weights(
    scores: Float[Tensor, "*#batch n m"], *, mask: Bool[Tensor, "*#batch #n #m"] | None = None
) -> Float[Tensor, "*batch n m"]:
    return scores.softmax(-1)


def more(query: Tensor, key: Tensor, scale: float = 1.0, **options: Any) -> Tensor:
    """Arguments beyond the contract have defaults."""
    return scale * query @ key.mT


@implements(LSTMCell[Tensor])
def lstm_cell(x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[Tensor]) -> tuple[Tensor, Tensor]:
    h, c = state
    return h, c + x @ parameters.w_xi


class State(NamedTuple):
    """A pair with names."""

    h: Tensor
    c: Tensor


@implements(LSTMCell[Tensor])
def with_names(x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[Tensor]) -> State:
    """A NamedTuple where the Protocol says tuple."""
    return State(*state)


@implements(EncoderLayer[Tensor])
def encoder_layer(
    x: Tensor, parameters: EncoderLayerParameters[Tensor], *, mask: Tensor | None = None, norm: str = "post"
) -> Tensor:
    """Any word is more than two words."""
    inner: MultiHeadParameters[Tensor] = parameters.attention
    return x @ inner.w_o


@implements(EncoderLayer[Tensor])
def without_features(
    x: Tensor, parameters: EncoderLayerParameters[Tensor], *, mask: Tensor | None = None, **others: object
) -> Tensor:
    """Features that are not there are left to `others`."""
    return x


class Mine(TorchBackend):
    name = "mine"
    limits = Limits(dtypes=("float32",))
    semantics = {"masked_nonfinite": "propagates"}
    dot_scores = staticmethod(scores)
    lstm_cell = staticmethod(lstm_cell)

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        return value


class Plain(NumPyBackend):
    name = "plain"

    def dot_scores(self, query: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return reference_dot_scores(query, key)


class Strange(Operations[bytes]):
    name = "strange"
    semantics = Semantics(no_keys="error")

    def dot_scores(self, query: bytes, key: bytes) -> bytes:
        return query + key


class TestMine(ConformanceSuite):
    backend = Mine()
    operations = ("dot_scores",)


table: Table[Tensor] = {"dot_scores": scores, "softmax": weights, "encoder_layer": encoder_layer}
narrow = Limits(features=("norm=pre",))
as_protocol: DotScores[Tensor] = more
of_method: ScaledDotProductAttention[Tensor] = Mine().scaled_dot_product_attention
backends: list[Backend] = [Mine(), Plain(), Strange()]
converts: Converts[Tensor] = Mine()

layer = nn.TransformerEncoderLayer(8, 2, norm_first=True)
features: Tensor = nn.TransformerEncoder(layer, 2)(Tensor(3, 8), mask=None)
of_layer: EncoderLayerParameters[Tensor] = layer.record()
again: nn.TransformerEncoderLayer = nn.TransformerEncoderLayer.from_record(of_layer)
attended: Tensor = nn.MultiHeadAttention(8, 2)(features, features, features, causal=True)
hidden, memory = nn.LSTMCell(8, 4)(attended)
loaded: nn.LSTMCell = nn.LSTMCell.from_record(nn.LSTMCell(8, 4).record())
