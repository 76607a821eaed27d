"""The chapter `kernels` in plain PyTorch. Protocols: ``attnspec.spec.kernels``. Fast kernels are below.

Scores are in memory as a whole, for heads in their groups: (*batch, heads_k, group, n, m).
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels.dot.exact_exclusion import nonfinite_terms
from attnspec.backends.pytorch.runtime.accumulation import finite, widened
from attnspec.backends.pytorch.runtime.autocast import keeps, lowers
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.ranges import refuse_falling, refuse_outside
from attnspec.backends.pytorch.runtime.transforms import intercepted
from attnspec.spec import (
    AlibiSlopes,
    DocumentMask,
    Dropout,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    RotaryEmbedding,
    SlidingWindowMask,
    VariableLengthAttention,
    implements,
)

__all__ = [
    "alibi_slopes",
    "document_mask",
    "dropout",
    "grouped_query_attention",
    "latent_attention",
    "merge_attention",
    "paged_attention",
    "rotary_embedding",
    "sliding_window_mask",
    "variable_length_attention",
]

_grouped = Check("grouped_query_attention")
_packed = Check("variable_length_attention")
_paged = Check("paged_attention")
_latent = Check("latent_attention")
_merge = Check("merge_attention")
_rotary = Check("rotary_embedding")
_slopes = Check("alibi_slopes")
_window = Check("sliding_window_mask")
_documents = Check("document_mask")
_dropout = Check("dropout")

Window = tuple[int | None, int | None] | None


# Attention in groups of heads -----------------------------------------------------------------------------------------


@implements(GroupedQueryAttention[Tensor])
@lowers
def grouped_query_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    value: Float[Tensor, "*#batch heads_k m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Float[Tensor, "*#batch #heads #n #m"] | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    key_lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """softmax(QKᵀ)V with all options, keys and values shared by the heads of a group without copies."""
    shape = _grouped(query, key, value, mask, scale, window, softcap, bias, slopes, sinks, key_lengths, causal=causal)
    n, m = query.shape[-2], key.shape[-2]
    refuse_outside("grouped_query_attention", "key_lengths", key_lengths, m)
    allowed = joined(mask, causal_triangle(n, m, query.device) if causal else None)
    allowed = joined(allowed, None if window is None else near(n, m, window, query.device))
    if key_lengths is not None:
        allowed = joined(allowed, torch.arange(m, device=query.device) < key_lengths[..., None, None])
    return attention_in_groups(
        query, key, value, allowed, shape, scale=scale, softcap=softcap, bias=bias, slopes=slopes, sinks=sinks
    )


def attention_in_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    shape: tuple[int, ...],
    *,
    scale: float | None,
    softcap: float | None,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output of this shape, and logarithms, under a mask (*batch, n, m) that joins all conditions."""
    dtype, heads_k, (n, d), m = query.dtype, key.shape[-3], query.shape[-2:], key.shape[-2]
    allowed = None if allowed is None else allowed[..., None, None, :, :].expand(*allowed.shape[:-2], 1, 1, n, m)
    values = widened(value).unsqueeze(-3)
    scores = dot_products(in_groups(widened(query), heads_k), widened(key).unsqueeze(-3), allowed)
    scores = scores * (d**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + in_groups(widened(bias), heads_k)
    if slopes is not None:
        distance = (torch.arange(n, device=query.device)[:, None] - torch.arange(m, device=query.device)).abs()
        scores = scores - widened(slopes).view(heads_k, -1, 1, 1) * distance.to(scores.dtype)
    if sinks is not None:
        column = widened(sinks).view(heads_k, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
        values = torch.nn.functional.pad(values, (0, 0, 0, 1))
        allowed = None if allowed is None else torch.nn.functional.pad(allowed, (0, 1), value=True)
    weights, logarithms = softmax_and_logarithms(scores, allowed)
    output = pooled(weights, values, allowed).to(dtype)
    return output.reshape(shape), logarithms.to(dtype).expand(output.shape[:-1]).reshape(shape[:-1])


def joined(mask: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Both conditions; None allows everything."""
    return more if mask is None else mask if more is None else mask & more


def near(n: int, m: int, window: Window, device: torch.device | str | None) -> Tensor:
    """Booleans (n, m): key j is within the window around query i."""
    return within(torch.arange(m, device=device) - torch.arange(n, device=device)[:, None], window)


def within(behind: Tensor, window: Window) -> Tensor:
    """Where a key that is so far behind its query is within a window."""
    left, right = (None, None) if window is None else window
    found = torch.ones_like(behind, dtype=torch.bool) if left is None else behind >= -left
    return found if right is None else found & (behind <= right)


def in_groups(x: Tensor, heads_k: int) -> Tensor:
    """x (*batch, heads, n, d) as (*batch, heads_k, group, n, d); heads of size 1 as (*batch, 1, 1, n, d)."""
    return (
        x.unsqueeze(-3)
        if x.shape[-3] == 1
        else x.reshape(*x.shape[:-3], heads_k, x.shape[-3] // heads_k, *x.shape[-2:])
    )


def dot_products(query: Tensor, key: Tensor, allowed: Tensor | None) -> Tensor:
    """QKᵀ, of which NaN and infinities at pairs that are not allowed reach no gradient."""
    if allowed is None or (not intercepted() and query.is_cpu and finite(query) and finite(key)):
        return query @ key.mT
    query = query.masked_fill(~allowed.any(-1, keepdim=True), 0)
    usable = key.isfinite().all(-1)
    scores = query @ key.masked_fill(~usable.unsqueeze(-1), 0).mT
    with torch.no_grad():
        raw = query @ key.mT
    return torch.where(usable.unsqueeze(-2), scores, raw)


def softmax_and_logarithms(scores: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights of the allowed keys and log Σ exp of every row: 0 and −∞ without any, with gradients 0."""
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:-1], -torch.inf)
    if allowed is None:
        return torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    some = allowed.any(-1, keepdim=True)
    filled = torch.where(allowed, scores, torch.where(some, -torch.inf, 0.0).to(scores.dtype))
    weights = torch.softmax(filled, -1).masked_fill(~allowed, 0.0)
    return weights, torch.logsumexp(filled, -1).masked_fill(~some.squeeze(-1), -torch.inf)


def pooled(weights: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """Σ αv, in which values that are not allowed are left out whatever they are."""
    if allowed is None or (not intercepted() and value.is_cpu and finite(value)):
        return weights @ value
    kept = weights @ value.masked_fill(~value.isfinite(), 0)
    return kept + nonfinite_terms(weights.detach(), value.detach(), allowed)


# Sequences in one tensor, and in pages --------------------------------------------------------------------------------


@implements(VariableLengthAttention[Tensor])
@lowers
def variable_length_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    value: Float[Tensor, "*#batch heads_k m d_v"],
    query_ends: Int[Tensor, " ends"],
    key_ends: Int[Tensor, " ends"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """Attention under a mask of pairs of one sequence, at positions counted from its first."""
    shape = _packed(query, key, value, query_ends, key_ends, scale, window, softcap, causal=causal)
    n, m = query.shape[-2], key.shape[-2]
    refuse_falling("variable_length_attention", "query_ends", query_ends, n)
    refuse_falling("variable_length_attention", "key_ends", key_ends, m)
    (of_query, at_query), (of_key, at_key) = places(query_ends, n), places(key_ends, m)
    behind = at_key - at_query[:, None]
    allowed = (of_query[:, None] == of_key) & within(behind, window)
    allowed = allowed & (behind <= 0) if causal else allowed
    return attention_in_groups(query, key, value, allowed, shape, scale=scale, softcap=softcap)


def places(ends: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The sequence of each of so many packed positions, and the position in it."""
    every = torch.arange(count, device=ends.device)
    sequence = torch.bucketize(every, ends[1:-1].contiguous().to(every.dtype), right=True)
    return sequence, every - ends[sequence]


@implements(PagedAttention[Tensor])
@lowers
def paged_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key_pages: Float[Tensor, "pages heads_k page d"],
    value_pages: Float[Tensor, "pages heads_k page d_v"],
    block_table: Int[Tensor, "*#batch blocks"],
    key_lengths: Int[Tensor, "*#batch"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """Attention to the rows of the pages, gathered in the order of the table."""
    shape = _paged(query, key_pages, value_pages, block_table, key_lengths, scale, window, softcap, causal=causal)
    n, m = query.shape[-2], block_table.shape[-1] * key_pages.shape[-2]
    refuse_outside("paged_attention", "block_table", block_table, key_pages.shape[0] - 1)
    refuse_outside("paged_attention", "key_lengths", key_lengths, m)
    lengths = key_lengths[..., None, None]
    keys = torch.arange(m, device=query.device)
    behind = keys - (lengths - n + torch.arange(n, device=query.device)[:, None])
    allowed = (keys < lengths) & within(behind, window)
    allowed = allowed & (behind <= 0) if causal else allowed
    key, value = (pages[block_table.long()].movedim(-4, -3).flatten(-3, -2) for pages in (key_pages, value_pages))
    return attention_in_groups(query, key, value, allowed, shape, scale=scale, softcap=softcap)


# Latent keys, and parts -----------------------------------------------------------------------------------------------


@implements(LatentAttention[Tensor])
@lowers
def latent_attention(
    query: Float[Tensor, "*#batch heads n d"],
    query_rope: Float[Tensor, "*#batch heads n d_r"],
    latent: Float[Tensor, "*#batch m d_c"],
    key_rope: Float[Tensor, "*#batch m d_r"],
    w_k: Float[Tensor, "heads d d_c"],
    w_v: Float[Tensor, "heads d_v d_c"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch heads n d_v"]:
    """The absorbed form where fewer queries than keys are projected, else the plain one."""
    shape = _latent(query, query_rope, latent, key_rope, w_k, w_v, mask, scale, causal=causal)
    n, m, dtype = query.shape[-2], latent.shape[-2], query.dtype
    allowed = joined(mask, causal_triangle(n, m, query.device) if causal else None)
    allowed = None if allowed is None else allowed.unsqueeze(-3).expand(*allowed.shape[:-2], 1, n, m)
    query, query_rope, rows, rotated, w_k, w_v = map(
        widened, (query, query_rope, latent.unsqueeze(-3), key_rope.unsqueeze(-3), w_k, w_v)
    )
    scale = (query.shape[-1] + query_rope.shape[-1]) ** -0.5 if scale is None else scale
    absorbed = n < m
    queries, keys = (query @ w_k, rows) if absorbed else (query, rows @ w_k.mT)
    scores = dot_products(queries, keys, allowed) + dot_products(query_rope, rotated, allowed)
    weights, _ = softmax_and_logarithms(scale * scores, allowed)
    if absorbed:
        return (pooled(weights, rows, allowed) @ w_v.mT).to(dtype).reshape(shape)
    return pooled(weights, rows @ w_v.mT, allowed).to(dtype).reshape(shape)


@implements(MergeAttention[Tensor])
@keeps
def merge_attention(
    outputs: Float[Tensor, "*#batch parts d_v"], log_sum_exps: Float[Tensor, "*#batch parts"]
) -> tuple[Float[Tensor, "*batch d_v"], Float[Tensor, "*batch"]]:
    """Outputs weighed by the softmax of the logarithms."""
    shape = _merge(outputs, log_sum_exps)
    scores = widened(log_sum_exps).unsqueeze(-2)
    with_keys = scores != -torch.inf
    weights, logarithms = softmax_and_logarithms(scores, with_keys)
    output = pooled(weights, widened(outputs), with_keys).squeeze(-2)
    logarithms = logarithms.squeeze(-1).expand(shape[:-1]).clone()
    return output.to(outputs.dtype), logarithms.to(outputs.dtype)


# Positions and masks --------------------------------------------------------------------------------------------------


@implements(RotaryEmbedding[Tensor])
@keeps
def rotary_embedding(
    x: Float[Tensor, "*#batch n d"], positions: Int[Tensor, "*#batch n"] | None = None, *, theta: float = 10000.0
) -> Float[Tensor, "*batch n d"]:
    """Neighbours turned together, by angles that are computed in float64."""
    _rotary(x, positions, theta)
    n, d = x.shape[-2:]
    t = torch.arange(n, device=x.device) if positions is None else positions
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    angle = t.to(torch.float64).unsqueeze(-1) * frequency
    wide = widened(x)
    cosine, sine = angle.cos().to(wide.dtype), angle.sin().to(wide.dtype)
    first, second = wide[..., 0::2], wide[..., 1::2]
    turned = torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1)
    return turned.flatten(-2).to(x.dtype)


@implements(AlibiSlopes[Tensor])
def alibi_slopes(heads: int) -> Float[Tensor, "{heads}"]:
    """Powers of two, on PyTorch's default device and in its default dtype."""
    _slopes(heads)
    below = 1 << (heads.bit_length() - 1)
    exponents = [8 * (r + 1) / below for r in range(below)] + [4 * (2 * r + 1) / below for r in range(heads - below)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


@implements(SlidingWindowMask[Tensor])
def sliding_window_mask(
    n: int, m: int, *, window: tuple[int | None, int | None] | None = None
) -> Bool[Tensor, "{n} {m}"]:
    """Key j is near query i where i − left ≤ j ≤ i + right; on PyTorch's default device."""
    _window(n, m, window)
    return near(n, m, window, None)


@implements(DocumentMask[Tensor])
def document_mask(
    query_documents: Int[Tensor, "*#batch n"], key_documents: Int[Tensor, "*#batch m"]
) -> Bool[Tensor, "*batch n m"]:
    """Equal numbers."""
    _documents(query_documents, key_documents)
    return query_documents.unsqueeze(-1) == key_documents.unsqueeze(-2)


@implements(Dropout[Tensor])
@keeps
def dropout(
    weights: Float[Tensor, "*#batch n m"], *, keep: Bool[Tensor, "*#batch #n #m"] | None = None, rate: float = 0.0
) -> Float[Tensor, "*batch n m"]:
    """Weights over 1 − rate where kept."""
    _dropout(weights, keep, rate)
    larger = (widened(weights) / (1 - rate)).to(weights.dtype)
    return larger if keep is None else torch.where(keep, larger, 0.0)
