"""Sequence to sequence. Protocol: ``attnspec.spec.seq2seq``."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import BahdanauContext, implements

__all__ = ["bahdanau_context"]

_bahdanau = Check("bahdanau_context")


@implements(BahdanauContext[Tensor])
@lowers
def bahdanau_context(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w_q: Float[Tensor, "h d_s"],
    w_k: Float[Tensor, "h d_h"],
    w_v: Float[Tensor, " h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Additive attention of one query, the state, to the annotations."""
    _bahdanau(state, annotations, w_q, w_k, w_v, mask)
    rows = None if mask is None else mask.unsqueeze(-2)
    context = additive_attention(state.unsqueeze(-2), annotations, annotations, w_q, w_k, w_v, mask=rows)
    return context.squeeze(-2)
