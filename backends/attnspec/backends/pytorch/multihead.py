"""Multi-head attention operations. Protocols: ``attnspec.spec.multihead``."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention
from attnspec.backends.pytorch.kernels.additive import plain
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.runtime.accumulation import projected, widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.spec import (
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    MultiHeadParameters,
    SplitHeads,
    implements,
)

__all__ = [
    "concat_heads_attention",
    "merge_heads",
    "multi_head_additive_attention",
    "multi_head_attention",
    "split_heads",
]

_additive_heads = Check("multi_head_additive_attention")
_concat = Check("concat_heads_attention")
_multi_head = Check("multi_head_attention")
_split = Check("split_heads")
_merge = Check("merge_heads")


JOINED = 2**14
"""Most elements of w_q for which one product with w_q, w_k and w_v joined costs less than three."""


FEW_TERMS = 2**15
"""Most additive terms per head for which plain operations on all heads are faster than one kernel per head."""


def per_head(x: Tensor, w: Tensor) -> Tensor:
    """Project (*batch, n, d) with (heads, p, d) to (*batch, heads, n, p), by one product for all heads."""
    heads, p, d = w.shape
    joined = projected(x, w.reshape(heads * p, d))
    return joined.view(*joined.shape[:-1], heads, p).transpose(-3, -2)


def _of_itself(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Project x with several weights of one shape, by one product."""
    heads, p, d = weights[0].shape
    joined = projected(x, torch.cat([w.reshape(heads * p, d) for w in weights]))
    parts = joined.view(*joined.shape[:-1], len(weights), heads, p).unbind(-3)
    return [part.transpose(-3, -2) for part in parts]


@implements(SplitHeads[Tensor])
@keeps
def split_heads(x: Float[Tensor, "*batch n d"], heads: int) -> Float[Tensor, "*batch {heads} n p"]:
    """Split the features into heads, as a contiguous copy."""
    _split(x, heads)
    by_position = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
    return by_position.transpose(-3, -2).clone(memory_format=torch.contiguous_format)


@implements(MergeHeads[Tensor])
@keeps
def merge_heads(x: Float[Tensor, "*batch heads n p"]) -> Float[Tensor, "*batch n heads*p"]:
    """Merge the heads' features, as a contiguous copy."""
    _merge(x)
    return x.transpose(-3, -2).clone(memory_format=torch.contiguous_format).flatten(-2)


@implements(MultiHeadAttention[Tensor])
@lowers
def multi_head_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "heads p_q d_q"],
    w_k: Float[Tensor, "heads p_q d_k"],
    w_v: Float[Tensor, "heads p_v d_v"],
    w_o: Float[Tensor, "p_o heads*p_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n p_o"]:
    """Scaled dot-product attention in every head, concatenated and projected."""
    _multi_head(query, key, value, w_q, w_k, w_v, w_o, mask, causal=causal)
    return projected(_in_heads(query, key, value, (w_q, w_k, w_v), mask, causal), w_o)


def attend_in_heads(
    x: Tensor, memory: Tensor, parameters: MultiHeadParameters[Tensor], mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    """Multi-head attention of x (*batch, n, d) to a memory (or x itself), without checking arguments."""
    p = parameters
    return projected(_in_heads(x, memory, memory, (p.w_q, p.w_k, p.w_v), mask, causal), p.w_o)


def _in_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    causal: bool,
) -> Tensor:
    """Concatenated attention of all heads, with weights (w_q, w_k, w_v)."""
    in_every_head = None if mask is None else mask.unsqueeze(-3)
    w_q, w_k, w_v = weights
    if query is key is value and w_q.numel() <= JOINED and w_q.shape == w_k.shape == w_v.shape:
        of_query, of_key, of_value = _of_itself(query, weights)
    else:
        of_query, of_key, of_value = per_head(query, w_q), per_head(key, w_k), per_head(value, w_v)
    heads = dot_attention(of_query, of_key, of_value, mask=in_every_head, causal=causal, in_layer=True)
    return heads.transpose(-3, -2).flatten(-2)


@implements(MultiHeadAdditiveAttention[Tensor])
@lowers
def multi_head_additive_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "heads p_q d_q"],
    w_k: Float[Tensor, "heads p_k d_k"],
    w_v: Float[Tensor, "heads p_v d_v"],
    w_o: Float[Tensor, "p_o heads*p_v"],
    a_q: Float[Tensor, "heads h p_q"],
    a_k: Float[Tensor, "heads h p_k"],
    a_v: Float[Tensor, "heads h"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n p_o"]:
    """Additive attention in every head: one head after another, or all together if they have few terms."""
    _additive_heads(query, key, value, w_q, w_k, w_v, w_o, a_q, a_k, a_v, mask, causal=causal)
    if (
        query.is_cpu
        and w_q.shape[0]
        and query.shape[-2] * key.shape[-2] * a_q.shape[1] * _entries(query, key, value, mask) <= FEW_TERMS
    ):
        a, b = (widened(per_head(x, w)) @ widened(own).mT for x, w, own in ((query, w_q, a_q), (key, w_k, a_k)))
        in_every_head, w = None if mask is None else mask.unsqueeze(-3), widened(a_v)[:, None, None]
        pooled = plain.attention_in_memory(a, b, w, widened(per_head(value, w_v)), mask=in_every_head, causal=causal)
        return projected(pooled.to(query.dtype).transpose(-3, -2).flatten(-2), w_o)
    heads = [
        additive_attention(
            projected(query, w_q[r]), projected(key, w_k[r]), projected(value, w_v[r]), a_q[r], a_k[r], a_v[r],
            mask=mask, causal=causal,
        )
        for r in range(w_q.shape[0])
    ]  # fmt: skip
    return projected(torch.cat(heads, -1), w_o)


def _entries(*operands: Tensor | None) -> int:
    """Return the number of entries of the broadcast batch."""
    return broadcast(*[x.shape[:-2] for x in operands if x is not None]).numel()


@implements(ConcatHeadsAttention[Tensor])
@lowers
def concat_heads_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "heads p_q d_q"],
    w_k: Float[Tensor, "heads p_q d_k"],
    w_v: Float[Tensor, "heads p_v d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n heads*p_v"]:
    """Scaled dot-product attention in every head, concatenated."""
    _concat(query, key, value, w_q, w_k, w_v, mask, causal=causal)
    return _in_heads(query, key, value, (w_q, w_k, w_v), mask, causal)
