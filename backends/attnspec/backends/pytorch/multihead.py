"""Multi-head attention operations. Protocols: ``attnspec.spec.multihead``."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.attention import additive_attention
from attnspec.backends.pytorch.kernels.additive import plain
from attnspec.backends.pytorch.kernels.dot.sdpa import attend as dot_attention
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.products import project, wide_linear
from attnspec.spec import (
    BiasedMultiHeadAttention,
    ConcatHeadsAttention,
    MergeHeads,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    MultiHeadParameters,
    SplitHeads,
    implements,
)

__all__ = [
    "biased_multi_head_attention",
    "concat_heads_attention",
    "merge_heads",
    "multi_head_additive_attention",
    "multi_head_attention",
    "split_heads",
]

_additive_heads = Check("multi_head_additive_attention")
_concat = Check("concat_heads_attention")
_multi_head = Check("multi_head_attention")
_biased = Check("biased_multi_head_attention")
_split = Check("split_heads")
_merge = Check("merge_heads")

MOST_JOINED_ELEMENTS = 2**14
"""Most elements of w_q for which one product with w_q, w_k, w_v joined beats three."""

MOST_PLAIN_TERMS = 2**15
"""Most terms of a head, batch·n·m·h; up to these, plain operations on all heads beat a kernel per head."""


def per_head(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Project (*batch, n, d) to (*batch, heads, n, p), by one product for all heads; b is (heads, p)."""
    heads, p, d = w.shape
    joined = wide_linear(x, w.reshape(heads * p, d), None if b is None else b.flatten()).to(x.dtype)
    return joined.view(*joined.shape[:-1], heads, p).transpose(-3, -2)


def _project_together(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None) -> list[Tensor]:
    """Project x with several weights of one shape by one product with the weights joined."""
    heads, p, d = weights[0].shape
    bias = None if biases is None else torch.cat([b.flatten() for b in biases])
    joined = wide_linear(x, torch.cat([w.reshape(heads * p, d) for w in weights]), bias).to(x.dtype)
    parts = joined.view(*joined.shape[:-1], len(weights), heads, p).unbind(-3)
    return [part.transpose(-3, -2) for part in parts]


@implements(SplitHeads[Tensor])
@ignores_autocast
def split_heads(x: Float[Tensor, "*batch n d"], heads: int) -> Float[Tensor, "*batch {heads} n p"]:
    """Split the features into heads, as a contiguous copy."""
    _split(x, heads)
    by_position = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
    return by_position.transpose(-3, -2).clone(memory_format=torch.contiguous_format)


@implements(MergeHeads[Tensor])
@ignores_autocast
def merge_heads(x: Float[Tensor, "*batch heads n p"]) -> Float[Tensor, "*batch n heads*p"]:
    """Merge the heads' features, as a contiguous copy."""
    _merge(x)
    return x.transpose(-3, -2).clone(memory_format=torch.contiguous_format).flatten(-2)


@implements(MultiHeadAttention[Tensor])
@follows_autocast
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
    return project(_attention_of_heads(query, key, value, (w_q, w_k, w_v), mask, causal), w_o)


@implements(BiasedMultiHeadAttention[Tensor])
@follows_autocast
def biased_multi_head_attention(
    query: Float[Tensor, "*#batch n d_q"],
    key: Float[Tensor, "*#batch m d_k"],
    value: Float[Tensor, "*#batch m d_v"],
    w_q: Float[Tensor, "heads p_q d_q"],
    w_k: Float[Tensor, "heads p_q d_k"],
    w_v: Float[Tensor, "heads p_v d_v"],
    w_o: Float[Tensor, "p_o heads*p_v"],
    b_q: Float[Tensor, "heads p_q"],
    b_k: Float[Tensor, "heads p_q"],
    b_v: Float[Tensor, "heads p_v"],
    b_o: Float[Tensor, " p_o"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n p_o"]:
    """Scaled dot-product attention in every head, concatenated and projected, with biases in the products."""
    _biased(query, key, value, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask, causal=causal)
    heads = _attention_of_heads(query, key, value, (w_q, w_k, w_v), mask, causal, biases=(b_q, b_k, b_v))
    return wide_linear(heads, w_o, b_o).to(query.dtype)


def attend_in_heads(
    x: Tensor, memory: Tensor, parameters: MultiHeadParameters[Tensor], mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    """Return multi-head attention of x (*batch, n, d) to a memory, without checks."""
    p = parameters
    return project(_attention_of_heads(x, memory, memory, (p.w_q, p.w_k, p.w_v), mask, causal), p.w_o)


def _attention_of_heads(
    query: Tensor, key: Tensor, value: Tensor, weights: tuple[Tensor, Tensor, Tensor], mask: Tensor | None,
    causal: bool, scale: float | None = None, biases: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Concatenated attention of all heads, with weights (w_q, w_k, w_v); ``scale`` is 1/√p_q by default."""
    mask_of_heads = None if mask is None else mask.unsqueeze(-3)
    w_q, w_k, w_v = weights
    if query is key is value and w_q.numel() <= MOST_JOINED_ELEMENTS and w_q.shape == w_k.shape == w_v.shape:
        q, k, v = _project_together(query, weights, biases)
    else:
        b_q, b_k, b_v = biases or (None, None, None)
        q, k, v = per_head(query, w_q, b_q), per_head(key, w_k, b_k), per_head(value, w_v, b_v)
    heads = dot_attention(q, k, v, mask=mask_of_heads, causal=causal, scale=scale, in_layer=True)
    return heads.transpose(-3, -2).flatten(-2)


@implements(MultiHeadAdditiveAttention[Tensor])
@follows_autocast
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
    """Additive attention in every head: one by one, or small heads all together."""
    _additive_heads(query, key, value, w_q, w_k, w_v, w_o, a_q, a_k, a_v, mask, causal=causal)
    if (
        query.is_cpu
        and w_q.shape[0]
        and query.shape[-2] * key.shape[-2] * a_q.shape[1] * _batch_size(query, key, value, mask) <= MOST_PLAIN_TERMS
    ):
        a, b = (upcast(per_head(x, w)) @ upcast(scorer).mT for x, w, scorer in ((query, w_q, a_q), (key, w_k, a_k)))
        mask_of_heads, w = None if mask is None else mask.unsqueeze(-3), upcast(a_v)[:, None, None]
        pooled = plain.attention_in_memory(a, b, w, upcast(per_head(value, w_v)), mask=mask_of_heads, causal=causal)
        return project(pooled.to(query.dtype).transpose(-3, -2).flatten(-2), w_o)
    heads = [
        additive_attention(
            project(query, w_q[r]), project(key, w_k[r]), project(value, w_v[r]), a_q[r], a_k[r], a_v[r],
            mask=mask, causal=causal,
        )
        for r in range(w_q.shape[0])
    ]  # fmt: skip
    return project(torch.cat(heads, -1), w_o)


def _batch_size(*operands: Tensor | None) -> int:
    return broadcast(*[x.shape[:-2] for x in operands if x is not None]).numel()


@implements(ConcatHeadsAttention[Tensor])
@follows_autocast
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
    """Dot-product attention in every head, concatenated."""
    _concat(query, key, value, w_q, w_k, w_v, mask, causal=causal)
    return _attention_of_heads(query, key, value, (w_q, w_k, w_v), mask, causal, scale=1.0)
