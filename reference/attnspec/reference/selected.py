"""Selected attention: scores of the indexer, the keys that have the greatest, and attention to them alone."""

import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.reference.attention import attend
from attnspec.reference.defining.definition import defines
from attnspec.reference.defining.overriding import overridable
from attnspec.reference.kernels import add_groups, merge_groups, scaled, split_groups
from attnspec.spec.selected import BlockMask, IndexerScores, SelectedAttention, TopKeys

__all__ = ["block_mask", "indexer_scores", "selected_attention", "top_keys"]


@defines(IndexerScores[np.ndarray])
def indexer_scores(
    query: Float[np.ndarray, "*#batch heads n d"],
    key: Float[np.ndarray, "*#batch m d"],
    weights: Float[np.ndarray, "*#batch n heads"],
) -> Float[np.ndarray, "*batch n m"]:
    """I = Σ_r w_r max(0, Q_r Kᵀ): rectified products of every head, weighted by the query."""
    rectified = np.maximum(query @ np.swapaxes(key[..., None, :, :], -1, -2), 0)
    scores: np.ndarray = (np.swapaxes(weights, -1, -2)[..., None] * rectified).sum(-3)
    return scores


@defines(TopKeys[np.ndarray])
def top_keys(scores: Float[np.ndarray, "*batch n m"], count: int) -> Bool[np.ndarray, "*batch n m"]:
    """Mᵢⱼ = [sᵢⱼ is one of the k greatest of sᵢ]; of equal scores, the first ones here."""
    return highest(scores, count, scores > -np.inf)


@overridable
def highest(scores: np.ndarray, count: int, among: np.ndarray) -> np.ndarray:
    """Mask of the `count` greatest scores (*batch, m) among those at which `among` is True.

    If these are fewer, all of them are selected.
    """
    order = np.argsort(-np.where(among, scores, -np.inf), axis=-1, kind="stable")
    selected: np.ndarray = among & (np.argsort(order, axis=-1) < count)
    return selected


@defines(SelectedAttention[np.ndarray])
def selected_attention(
    query: Float[np.ndarray, "*#batch heads n d"],
    key: Float[np.ndarray, "*#batch heads_k m d"],
    value: Float[np.ndarray, "*#batch heads_k m d_v"],
    indices: Int[np.ndarray, "*#batch #heads_k n entries"],
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Float[np.ndarray, "*batch heads n d_v"]:
    """O = softmax(λQKᵀ)V over the keys that are named; all heads of a group share them."""
    heads_k, m = key.shape[-3:-1]
    products = split_groups(query, heads_k) @ np.swapaxes(add_groups(key), -1, -2)
    selected = add_groups(selection_mask(indices, m))
    return merge_groups(attend(scaled(products, query.shape[-1], scale), add_groups(value), selected, causal))


def selection_mask(indices: np.ndarray, m: int) -> np.ndarray:
    """Mask (…, n, m) of the keys that indices (…, n, k) name."""
    mask = np.zeros((*indices.shape[:-1], m + 1), bool)  # the last column is that of −1
    np.put_along_axis(mask, indices, True, axis=-1)
    return mask[..., :m]


@defines(BlockMask[np.ndarray])
def block_mask(
    blocks: Bool[np.ndarray, "*batch query_blocks key_blocks"],
    n: int,
    m: int,
    query_block_size: int,
    key_block_size: int,
) -> Bool[np.ndarray, "*batch {n} {m}"]:
    """M_ij = B_ab with a = ⌊i/p⌋ and b = ⌊j/q⌋; False beyond the blocks."""
    *batch, rows, columns = blocks.shape
    extended = np.zeros((*batch, rows + 1, columns + 1), bool)
    extended[..., :rows, :columns] = blocks
    row, column = np.arange(n) // query_block_size, np.arange(m) // key_block_size
    return extended[..., np.minimum(row, rows)[:, None], np.minimum(column, columns)]
