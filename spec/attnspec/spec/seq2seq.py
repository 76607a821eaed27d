"""Sequence to sequence: what a decoder reads of its encoder."""

from typing import Protocol

from jaxtyping import Bool, Float

from attnspec.spec.contract.operation import Array, operation
from attnspec.spec.contract.sources import BAHDANAU, S0, S3


@operation(
    chapter="seq2seq",
    formula=r"c = \sum_t \operatorname{softmax}_t(w_v^\top \tanh(W_q s + W_k h_t))\, h_t",
    sources=[S0.equation(16), S3.passage("The math behind attending"), BAHDANAU.passage("3.1")],
)
class BahdanauContext(Protocol[Array]):
    """Bahdanau's context: the decoder's state attends additively to the encoder's annotations.

    Where: state s (*batch, d_s), annotations h_t (*batch, m, d_h) as keys and values, w_q (h, d_s), w_k (h, d_h),
    w_v (h), mask (*batch, m) boolean, True = may attend; context (*batch, d_h). S0 and S3 query with s_{t'−1}: the
    state before the step, which the caller passes.
    Edges: nothing attendable, or m = 0, gives 0 and zero gradients (semantics `fully_masked`, `no_keys`); one
    attendable annotation gives itself; masked annotations are left out, NaN and ∞ included.
    Errors: sizes that do not agree, or batches or a mask that do not broadcast, raise.
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
    ) -> Float[Array, "*batch d_h"]:
        """The context of every state."""
        ...
