"""Sequence to sequence: the context that a decoder takes from its encoder.

Edges: As in `attention`.
"""

from typing import Generic, Protocol, TypedDict

from jaxtyping import Bool, Float

from attnspec.spec.contract.annotations import Array
from attnspec.spec.contract.registration import operation
from attnspec.spec.contract.sources import BAHDANAU, S0, S3

__all__ = [
    "BahdanauContext",
    "Seq2SeqOperations",
    "Seq2SeqTable",
]


@operation(
    "bahdanau_context",
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(w_v^\top \tanh(W_q s + W_k h_t))\, h_t",
    sources=[S0.equation(16), S3.passage("The math behind attending"), BAHDANAU.passage("3.1")],
    pooled="annotations",
    sharpened={"w_v": 1.0},
)
class BahdanauContext(Protocol[Array]):
    """Bahdanau's context: the decoder's state attends additively to the encoder's annotations.

    Where: The state s is the query, the annotations h_t are keys and values. Weights are (out, in). S0 and S3 query
    with s_{t'−1}, the state before the step, which the caller passes. The context is in units of annotations.
    """

    def __call__(
        self,
        state: Float[Array, "*#batch d_s"],
        annotations: Float[Array, "*#batch m d_h"],
        w_q: Float[Array, "h d_s"],
        w_k: Float[Array, "h d_h"],
        w_v: Float[Array, " h"],
        *,
        mask: Bool[Array, "*#batch #m"] | None = None,
    ) -> Float[Array, "*batch d_h"]: ...


class Seq2SeqOperations(Generic[Array]):
    """The operations of sequence to sequence as methods of a backend class."""

    bahdanau_context: BahdanauContext[Array]


class Seq2SeqTable(TypedDict, Generic[Array], total=False):
    """The operations of sequence to sequence by name."""

    bahdanau_context: BahdanauContext[Array]
