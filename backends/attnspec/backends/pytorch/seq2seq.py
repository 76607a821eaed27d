"""Sequence to sequence. Protocols: ``attnspec.spec.seq2seq``."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention, dot_attention
from attnspec.backends.pytorch.runtime.accumulation import product
from attnspec.backends.pytorch.runtime.autocast import lowers
from attnspec.spec import (
    BahdanauContext,
    LuongContextDot,
    LuongContextGeneral,
    LuongContextLocation,
    implements,
)

__all__ = ["bahdanau_context", "luong_context_dot", "luong_context_general", "luong_context_location"]

_dot = Check("luong_context_dot")
_general = Check("luong_context_general")
_location = Check("luong_context_location")
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
    query, rows = state.unsqueeze(-2), _for_query(mask)
    return additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=rows).squeeze(-2)


def _for_query(mask: Tensor | None) -> Tensor | None:
    """A mask of annotations (*batch, m) with an axis for the only query."""
    return None if mask is None else mask.unsqueeze(-2)


def _context(query: Tensor, key: Tensor, annotations: Tensor, mask: Tensor | None) -> Tensor:
    """Annotations (*batch, m, d_h) pooled by the dot products of a query (*batch, d) with keys (*batch, m, d)."""
    rows = _for_query(mask)
    return dot_attention(query.unsqueeze(-2), key, annotations, mask=rows, causal=False, scale=1.0).squeeze(-2)


@implements(LuongContextDot[Tensor])
@lowers
def luong_context_dot(
    state: Float[Tensor, "*#batch d_h"],
    annotations: Float[Tensor, "*#batch m d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Attention of one query, the state, to the annotations."""
    _dot(state, annotations, mask)
    return _context(state, annotations, annotations, mask)


@implements(LuongContextGeneral[Tensor])
@lowers
def luong_context_general(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "d_s d_h"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """The same with the state multiplied by W, which costs less than the annotations would."""
    _general(state, annotations, w, mask)
    return _context(product(state.unsqueeze(-2), w).squeeze(-2), annotations, annotations, mask)


@implements(LuongContextLocation[Tensor])
@lowers
def luong_context_location(
    state: Float[Tensor, "*#batch d_s"],
    annotations: Float[Tensor, "*#batch m d_h"],
    w: Float[Tensor, "m d_s"],
    *,
    mask: Bool[Tensor, "*#batch #m"] | None = None,
) -> Float[Tensor, "*batch d_h"]:
    """Scores from the state alone are dot products with keys that are the rows of W."""
    _location(state, annotations, w, mask)
    return _context(state, w, annotations, mask)
