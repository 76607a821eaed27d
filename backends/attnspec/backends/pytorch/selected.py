"""Selected attention. Protocols: ``attnspec.spec.selected``.

Only selected keys and values are gathered, (*batch, heads_k, n, entries, d), so that time and memory do not grow with
the number of all keys.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.products import wide_product
from attnspec.backends.pytorch.runtime.ranges import refuse_out_of_range, refuse_scale_and_cap
from attnspec.spec import BlockMask, IndexerScores, SelectedAttention, TopKeys, implements

__all__ = ["block_mask", "indexer_scores", "selected_attention", "top_keys"]

_scores = Check("indexer_scores")
_top = Check("top_keys")
_selected = Check("selected_attention")
_blocks = Check("block_mask")


@implements(IndexerScores[Tensor])
@follows_autocast
def indexer_scores(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch m d"],
    weights: Float[Tensor, "*#batch n heads"],
) -> Float[Tensor, "*batch n m"]:
    """Rectified products of all heads, summed by one product with the weights of each query."""
    _scores(query, key, weights)
    rectified = wide_product(query, upcast(key).unsqueeze(-3).mT).relu_()
    summed = upcast(weights).unsqueeze(-2) @ rectified.movedim(-3, -2)  # (…, n, 1, heads) by (…, n, heads, m)
    return summed.squeeze(-2).to(query.dtype)


@implements(TopKeys[Tensor])
def top_keys(scores: Float[Tensor, "*batch n m"], count: int) -> Bool[Tensor, "*batch n m"]:
    """PyTorch's topk: which of several equal scores it selects, is not specified."""
    _top(scores, count)
    if count < 1:
        raise ValueError(f"top_keys: count: expected at least 1; got {count}")
    places = scores.topk(min(count, scores.shape[-1]), -1, sorted=False).indices
    selected = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, places, value=True)
    return selected & (scores > -torch.inf)


@implements(SelectedAttention[Tensor])
@follows_autocast
def selected_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    value: Float[Tensor, "*#batch heads_k m d_v"],
    indices: Int[Tensor, "*#batch #heads_k n entries"],
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch heads n d_v"]:
    """softmax(QKᵀ)V over gathered keys and values; −1 reads a row of zeros, whose weight is 0."""
    shape = _selected(query, key, value, indices, scale, causal=causal)
    refuse_scale_and_cap("selected_attention", scale)
    heads_k, m, (n, d) = key.shape[-3], key.shape[-2], query.shape[-2:]
    indices = indices.long()
    refuse_out_of_range("selected_attention", "indices", indices, m - 1, least=-1)
    named = indices >= 0
    if causal:
        named = named & (indices <= torch.arange(n, device=indices.device).unsqueeze(-1))
    rows = torch.where(named, indices, m)
    keys, values = (_gathered(x, rows) for x in (key, value))
    queries = formula.in_groups(upcast(query), heads_k).movedim(-3, -2)  # (…, heads_k, n, group, d)
    allowed = named.unsqueeze(-2)
    scores = formula.dot_products(queries, keys, allowed) * (d**-0.5 if scale is None else scale)
    weights, _ = formula.softmax_and_logarithms(scores, allowed)
    output = formula.pooled(weights, values, allowed).masked_fill(~allowed.any(-1, keepdim=True), 0)
    return output.movedim(-2, -3).to(query.dtype).reshape(shape)


def _gathered(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (…, heads_k, n, entries, d) of x (…, heads_k, m, d), widened; row m is 0."""
    extended = F.pad(upcast(x), (0, 0, 0, 1))
    batch = broadcast(extended.shape[:-2], rows.shape[:-2])
    flat = extended.expand(*batch, *extended.shape[-2:]).reshape(-1, extended.shape[-1])
    starts = torch.arange(batch.numel(), device=rows.device).reshape(*batch, 1, 1) * extended.shape[-2]
    return flat[rows + starts]


@implements(BlockMask[Tensor])
def block_mask(
    blocks: Bool[Tensor, "*batch query_blocks key_blocks"],
    n: int,
    m: int,
    query_block_size: int,
    key_block_size: int,
) -> Bool[Tensor, "*batch {n} {m}"]:
    """Blocks, extended by one that is not attendable, and repeated for every position."""
    _blocks(blocks, n, m, query_block_size, key_block_size)
    for name, size in (("query_block_size", query_block_size), ("key_block_size", key_block_size)):
        if size < 1:
            raise ValueError(f"block_mask: {name}: expected at least 1; got {size}")
    extended = F.pad(blocks, (0, 1, 0, 1))
    row, column = (
        (torch.arange(count, device=blocks.device) // size).clamp(max=last)
        for count, size, last in ((n, query_block_size, blocks.shape[-2]), (m, key_block_size, blocks.shape[-1]))
    )
    return extended[..., row.unsqueeze(-1), column]
