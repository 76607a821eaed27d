"""Third-party code that mypy must reject: `# E: code text` names the error of its line."""

from typing import Any

import numpy as np
from torch import Tensor

from attnspec.backends.bases.contract import Operations, Table
from attnspec.backends.bases.numpy import NumPyBackend
from attnspec.backends.bases.torch import TorchBackend
from attnspec.backends.pytorch import nn
from attnspec.reference import dot_scores as reference_dot_scores
from attnspec.spec import (
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


@implements(DotScores[Tensor])  # E: arg-type expected "DotScores[Tensor]"
def another_name(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


@implements(Softmax[Tensor])  # E: arg-type expected "Softmax[Tensor]"
def no_mask(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


@implements(DotScores[Tensor])  # E: arg-type expected "DotScores[Tensor]"
def another_array(query: np.ndarray[Any, Any], key: np.ndarray[Any, Any]) -> Tensor:
    raise TypeError


@implements(DotScores[Tensor])  # E: arg-type expected "DotScores[Tensor]"
def another_result(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return query, key


@implements(Softmax[Tensor])  # E: arg-type expected "Softmax[Tensor]"
def mask_needed(scores: Tensor, *, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


@implements(LSTMCell[Tensor])  # E: arg-type expected "LSTMCell[Tensor]"
def another_tree(
    x: Tensor, state: tuple[Tensor, Tensor], parameters: EncoderLayerParameters[Tensor]
) -> tuple[Tensor, Tensor]:
    return state


@implements(LSTMCell[Tensor])  # E: arg-type expected "LSTMCell[Tensor]"
def another_array_in_the_tree(
    x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[bytes]
) -> tuple[Tensor, Tensor]:
    return state


@implements(LSTMCell[Tensor])  # E: arg-type expected "LSTMCell[Tensor]"
def one_result_for_two(x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[Tensor]) -> Tensor:
    return x


@implements(LSTMCell[Tensor])  # E: arg-type expected "LSTMCell[Tensor]"
def three_results(
    x: Tensor, state: tuple[Tensor, Tensor], parameters: LSTMParameters[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    return x, x, x


@implements(LSTMCell[Tensor])  # E: arg-type expected "LSTMCell[Tensor]"
def flat_state(x: Tensor, h: Tensor, c: Tensor, parameters: LSTMParameters[Tensor]) -> tuple[Tensor, Tensor]:
    return h, c


@implements(EncoderLayer[Tensor])  # E: arg-type expected "EncoderLayer[Tensor]"
def fewer_words(
    x: Tensor, parameters: EncoderLayerParameters[Tensor], *, mask: Tensor | None = None, norm: bool = True
) -> Tensor:
    return x


@implements(EncoderLayer[Tensor])  # E: arg-type expected "EncoderLayer[Tensor]"
def no_norm(x: Tensor, parameters: EncoderLayerParameters[Tensor], *, mask: Tensor | None = None) -> Tensor:
    return x


def inside(parameters: EncoderLayerParameters[Tensor]) -> MultiHeadParameters[bytes]:
    return parameters.attention  # E: return-value "MultiHeadParameters[Tensor]"


def misspelt_field(parameters: EncoderLayerParameters[Tensor]) -> Tensor:
    return parameters.attention.w_x  # E: attr-defined "w_x"


def one_too_many(query: Tensor, key: Tensor, scale: float) -> Tensor:
    return scale * query @ key.mT


class Mine(TorchBackend):
    name = "mine"

    def dot_scores(self, q: Tensor, key: Tensor) -> Tensor:  # E: override supertype
        return q @ key.mT

    def scaled_dot_product_attention(  # E: override supertype
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        return value


class Plain(NumPyBackend):
    name = "plain"

    def dot_scores(self, query: Tensor, key: Tensor) -> Tensor:  # E: override supertype
        return query @ key.mT


class Strange(Operations[bytes]):
    def softmax(self, scores: bytes, *, mask: bytes | None = None) -> str:  # E: override supertype
        return ""


table: Table[Tensor] = {"dot_scores": one_too_many}  # E: typeddict-item "DotScores[Tensor]"
misspelt: Table[Tensor] = {"dot_score": one_too_many}  # E: typeddict-unknown-key "dot_score"
as_protocol: DotScores[Tensor] = one_too_many  # E: assignment "DotScores[Tensor]"
elsewhere: ScaledDotProductAttention[Tensor] = one_too_many  # E: assignment "ScaledDotProductAttention[Tensor]"
of_another_array: DotScores[Tensor] = reference_dot_scores  # E: assignment "DotScores[Tensor]"
no_conversion: Converts[bytes] = Mine()  # E: assignment "Converts[bytes]"
unknown_limit = Limits(dtype=("float32",))  # E: call-arg "dtype"
unknown_choice = Semantics(fully_masked="zeros")  # E: arg-type "fully_masked"
unknown_question = Semantics(fully_maskd="zero")  # E: call-arg "fully_maskd"
called_wrongly = reference_dot_scores(query=np.zeros((1, 1)), keys=np.zeros((1, 1)))  # E: call-arg "keys"
without_heads = nn.MultiHeadAttention(8)  # E: call-arg "num_heads"
unknown_argument = nn.LayerNorm(8)(Tensor(3, 8), mask=None)  # E: call-arg "mask"
another_kind: int = nn.LayerNorm(8)(Tensor(3, 8))  # E: assignment "Tensor"
another_record = nn.LSTMCell.from_record(nn.LayerNorm(8).record())  # E: arg-type "LSTMParameters[Tensor]"
