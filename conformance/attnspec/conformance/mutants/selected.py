"""Mutants of selected attention: its indexer, the choice of keys, attention to them, and masks of blocks.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.selected import BlockMask, IndexerScores, SelectedAttention, TopKeys

# Indexer --------------------------------------------------------------------------------------------------------------

of_indexer = partial(mutant, operations=(IndexerScores,))
"""Decorator of a mutant of the indexer."""


@of_indexer(
    "indexer without ReLU",
    replaces="rectified",
    breaks=("selected.indexer-rectifies-products",),
    source="huggingface/transformers#44360: GlmMoeDsaIndexer sums weighted products of either sign",
)
def not_rectified(correct: Formulas, products: Numbers) -> Numbers:
    """Negative products count, too."""
    return products


@of_indexer(
    "ReLU of the indexer after the sum over heads",
    breaks=("selected.indexer-heads-add", "selected.indexer-rectifies-products"),
    source="max(0, ·) around the sum where the report has it around each product",
)
class RectifiedSum(Formulas):
    """Products are weighted and summed over heads, then rectified."""

    def rectified(self, products: Numbers) -> Numbers:
        """The products."""
        return products

    def summed_heads(self, terms: Numbers) -> Numbers:
        """The rectified sum over heads."""
        return super().rectified(super().summed_heads(terms))


@of_indexer(
    "ReLU of the indexer after the weights",
    breaks=("selected.indexer-rectifies-products", "operation.oracle"),
    source="weights multiplied into the queries before the product, which only positive ones may be",
)
class RectifiedTerms(Formulas):
    """Products times weights are rectified: negative weights act as the positive ones of opposite products."""

    def rectified(self, products: Numbers) -> Numbers:
        """The products."""
        return products

    def weighted_heads(self, products: Numbers, weights: Numbers) -> Numbers:
        """The rectified weighted products."""
        return super().rectified(super().weighted_heads(products, weights))


@of_indexer(
    "weights of the indexer ignored",
    replaces="weighted_heads",
    breaks=("selected.indexer-rectifies-products",),
    source="a plain sum over heads, as in the prototype of a port",
)
def unweighted(correct: Formulas, products: Numbers, weights: Numbers) -> Numbers:
    """All heads count alike."""
    return Formulas.weighted_heads(correct, products, weights * weights.dtype.type(0) + weights.dtype.type(1))


@of_indexer(
    "weights of the indexer from the first query",
    replaces="weighted_heads",
    breaks=("operation.oracle", "selected.indexer-rectifies-products"),
    source="weights per head where they are per query and head",
)
def weights_of_first_query(correct: Formulas, products: Numbers, weights: Numbers) -> Numbers:
    """All queries have the weights of the first one."""
    return Formulas.weighted_heads(correct, products, weights[..., :1, :])


@of_indexer(
    "indexer averages over heads",
    replaces="summed_heads",
    breaks=("selected.indexer-heads-add",),
    source="mean(dim=heads), which ranks keys alike but is another score",
)
def mean_over_heads(correct: Formulas, terms: Numbers) -> Numbers:
    """The sum over heads is divided by their number."""
    return Formulas.summed_heads(correct, terms) / terms.dtype.type(max(terms.shape[-3], 1))


# Greatest scores ------------------------------------------------------------------------------------------------------

of_top = partial(mutant, operations=(TopKeys,), breaks=("selected.top-keys-are-greatest",))
"""Decorator of a mutant that selects other keys."""


@of_top(
    "all keys of the k-th greatest score selected",
    replaces="ranks",
    source="scores >= kth, which selects more than k keys where scores are equal",
)
def every_tied_key(correct: Formulas, scores: Numbers) -> Numbers:
    """The rank of a key is the number of greater scores: equal ones share it."""
    return np.sum(scores[..., None, :] > scores[..., None], axis=-1)


@of_top(
    "no key of a tied k-th greatest score selected",
    replaces="ranks",
    source="scores > kth, which leaves out the k-th key and all that equal it",
)
def no_tied_key(correct: Formulas, scores: Numbers) -> Numbers:
    """The rank of a key is the number of other scores not below it."""
    return np.sum(scores[..., None, :] >= scores[..., None], axis=-1) - 1


@of_top(
    "least scores selected",
    replaces="ranks",
    source="an ascending sort",
)
def least_scores(correct: Formulas, scores: Numbers) -> Numbers:
    """Ranks count from the least score."""
    return Formulas.ranks(correct, -scores)


@of_top(
    "hidden keys selected to make up k",
    replaces="visible_keys",
    source="sgl-project/sglang#30645: rows with fewer visible keys than k get indices of others",
)
def hidden_keys(correct: Formulas, scores: Numbers) -> Numbers:
    """Scores of −∞ are selected where no others are left."""
    return np.ones(scores.shape, bool)


@of_top(
    "scores of the k greatest keys compared in bfloat16",
    replaces="ranks",
    source="axolotl-ai-cloud/axolotl#3832: rounded scores, which exchange keys near the k-th",
)
def ranked_in_bfloat16(correct: Formulas, scores: Numbers) -> Numbers:
    """Scores that bfloat16 cannot tell apart count as equal."""
    with np.errstate(over="ignore"):
        shortened = (scores.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return Formulas.ranks(correct, shortened)


@of_top(
    "magnitudes of scores ranked",
    replaces="ranks",
    source="a radix sort of bits that leaves the sign out",
)
def ranked_magnitudes(correct: Formulas, scores: Numbers) -> Numbers:
    """Negative scores rank by their magnitude; −∞ stays last."""
    return Formulas.ranks(correct, np.where(scores == -np.inf, scores, np.abs(scores)))


# Attention to selected keys -------------------------------------------------------------------------------------------

of_attention = partial(mutant, operations=(SelectedAttention,))
"""Decorator of a mutant of attention to selected keys."""


@of_attention(
    "index of −1 names the last key",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "selected.order-of-selection", "selected.unselected-keys"),
    source="key[indices] in a language where −1 is the last row",
)
def last_for_none(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """−1 reads the last key."""
    return Formulas.selected_keys(correct, np.where(indices < 0, m - 1, indices), m)


@of_attention(
    "index of −1 names the first key",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "selected.order-of-selection", "selected.unselected-keys"),
    source="clamp(min=0) before a gather that no mask follows",
)
def first_for_none(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """−1 reads the first key."""
    return Formulas.selected_keys(correct, np.maximum(indices, min(m, 1) - 1), m)


@of_attention(
    "indices end at the first −1",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "selected.order-of-selection"),
    source="a loop over the selected keys that stops at −1",
)
def stops_at_none(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """Indices behind a −1 are not read."""
    return Formulas.selected_keys(correct, np.where(np.cumsum(indices < 0, axis=-1) > 0, -1, indices), m)


@of_attention(
    "last selected key dropped",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="a tile of k − 1 indices",
)
def without_last_index(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """The last of several indices is not read."""
    return Formulas.selected_keys(correct, indices[..., :-1] if indices.shape[-1] > 1 else indices, m)


@of_attention(
    "indices of selected attention ignored",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "selected.unselected-keys", "operation.oracle"),
    source="a fallback to dense attention",
)
def all_keys(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """Queries attend to all keys, whatever indices name."""
    return np.ones((*indices.shape[:-1], m), bool)


@of_attention(
    "indices of the first query for all",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="a table of indices per sequence, as for one query in decoding",
)
def indices_of_first_query(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """All queries attend to the keys of the first one."""
    return Formulas.selected_keys(correct, np.broadcast_to(indices[..., :1, :], indices.shape), m)


@of_attention(
    "indices of the first key head for all",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="NSA's indices per group read as those of DSA, which all heads share",
)
def indices_of_first_head(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """All key heads have the indices of the first one."""
    return Formulas.selected_keys(correct, np.broadcast_to(indices[..., :1, :, :], indices.shape), m)


@of_attention(
    "indices counted from 1",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="positions of tokens that count the one before",
)
def counted_from_one(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """Index j reads key j − 1; 0 names no key."""
    return Formulas.selected_keys(correct, np.maximum(indices - 1, -1), m)


@of_attention(
    "indices within blocks of 16 keys",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="an offset within a page used as the row of the cache",
)
def within_first_block(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """Indices count from the beginning of their block: all keys are read from the first."""
    return Formulas.selected_keys(correct, np.where(indices < 0, -1, indices % 16), m)


@of_attention(
    "indices in int8",
    replaces="selected_keys",
    breaks=("selected.selection-is-mask", "operation.oracle"),
    source="indices packed into bytes: 128 is −128",
)
def indices_in_bytes(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """Indices from 128 on are negative and name no key."""
    return Formulas.selected_keys(correct, np.maximum(indices.astype(np.int8).astype(np.int64), -1), m)


@of_attention(
    "all keys where none is selected",
    replaces="selected_keys",
    breaks=("selected.unselected-keys", "selected.selection-is-mask"),
    source="an empty selection taken for no selection",
)
def all_for_none(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """A query that selects no keys attends to all."""
    return Formulas.selected_keys(correct, indices, m) | np.all(indices < 0, axis=-1)[..., None]


@of_attention(
    "weights of all keys, sum of the selected",
    replaces="weighted",
    breaks=("selected.selection-is-mask", "operation.oracle", "operation.gradient"),
    source="softmax over all keys, whose other weights are then set to 0",
)
def softmax_before_selection(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers
) -> tuple[Numbers, Numbers]:
    """The weights of the selected keys do not sum to 1."""
    weights = correct.softmax(scores)
    weights = np.where(attendable, weights, weights.dtype.type(0))
    return weights, correct.pool(weights, values, attendable)


@of_attention(
    "unselected keys at a score of −10,000",
    replaces="mask_scores",
    breaks=("selected.unselected-keys",),
    source="ohdearquant/lattice#6: future tokens of a selection soft-masked with a finite number",
)
def soft_selection(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Unselected keys keep a weight where no key is selected."""
    return scores if mask is None else np.where(mask, scores, scores.dtype.type(-10_000))


# Blocks ---------------------------------------------------------------------------------------------------------------

of_blocks = partial(mutant, operations=(BlockMask,), breaks=("selected.positions-of-a-block",))
"""Decorator of a mutant of masks of blocks."""


@of_blocks(
    "partial last block dropped",
    replaces="expanded_blocks",
    source="a grid of m // block_size blocks",
)
def whole_blocks_only(correct: Formulas, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
    """Positions of a partial block at the end are not attendable."""
    expanded = Formulas.expanded_blocks(correct, blocks, axis, size, count)
    whole = np.arange(count) < count // size * size
    return expanded & (whole if axis == -1 else whole[:, None])


@of_blocks(
    "last block for all positions behind it",
    replaces="expanded_blocks",
    source="a block index that is clamped",
)
def clamped_blocks(correct: Formulas, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
    """Positions beyond the blocks have the value of the last one."""
    return np.take(blocks, np.minimum(np.arange(count) // size, blocks.shape[axis] - 1), axis=axis)


@of_blocks(
    "blocks interleaved",
    replaces="expanded_blocks",
    source="tile in place of repeat_interleave",
)
def interleaved_blocks(correct: Formulas, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
    """Neighbouring positions belong to different blocks."""
    indices = np.arange(count) % blocks.shape[axis]
    inside = np.arange(count) < size * blocks.shape[axis]
    return np.take(blocks, indices, axis=axis) & (inside if axis == -1 else inside[:, None])


@of_blocks(
    "block sizes of queries and keys exchanged",
    replaces="block_mask",
    source="Dao-AILab/flash-attention#2429: tiles of the backward pass that are not those of the blocks",
)
def exchanged_sizes(correct: Formulas, blocks: Numbers, n: int, m: int, rows: int, columns: int) -> Numbers:
    """Blocks have as many keys as they should have queries."""
    return Formulas.block_mask(correct, blocks, n, m, columns, rows)


@of_blocks(
    "mask of blocks transposed where it is square",
    replaces="block_mask",
    source="a table of the query blocks of each key block, as a backward pass needs it",
)
def transposed_blocks(correct: Formulas, blocks: Numbers, n: int, m: int, *sizes: Any) -> Numbers:
    """Blocks are read as (keys, queries)."""
    square = value_of(blocks).shape[-1] == value_of(blocks).shape[-2]
    return Formulas.block_mask(correct, np.swapaxes(blocks, -1, -2) if square else blocks, n, m, *sizes)


@of_blocks(
    "blocks of 128 positions, whatever their size",
    replaces="expanded_blocks",
    source="kuleshov-group/bd3lms#23: create_block_mask without the size of its blocks",
)
def default_block_size(correct: Formulas, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
    """The size of blocks is the default of the kernel."""
    return Formulas.expanded_blocks(correct, blocks, axis, 128, count)
