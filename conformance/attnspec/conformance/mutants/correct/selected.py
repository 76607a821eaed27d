"""Correct formulas of selected attention."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.kernels import Kernels


class SelectedAttention(Kernels):
    """Indexer, top k, attention to selected keys, masks of blocks."""

    def indexer_scores(self, query: Numbers, key: Numbers, weights: Numbers) -> Numbers:
        """Weighted sums of rectified products over heads."""
        products = self.rectified(self.dot_scores(query, key[..., None, :, :]))
        return self.summed_heads(self.weighted_heads(products, weights))

    def rectified(self, products: Numbers) -> Numbers:
        """Products (…, heads, n, m), negative ones being 0."""
        return np.maximum(products, products.dtype.type(0))

    def weighted_heads(self, products: Numbers, weights: Numbers) -> Numbers:
        """Products times the weights (…, n, heads)."""
        return np.swapaxes(weights, -1, -2)[..., None] * products

    def summed_heads(self, terms: Numbers) -> Numbers:
        """Sum over heads."""
        return np.sum(terms, axis=-3)

    def top_keys(self, scores: Numbers, count: int) -> Numbers:
        """True at the greatest scores above −∞; of equal ones, the first."""
        return self.visible_keys(scores) & (self.ranks(scores) < count)

    def visible_keys(self, scores: Numbers) -> Numbers:
        """True at keys that may be selected."""
        return scores > -np.inf

    def ranks(self, scores: Numbers) -> Numbers:
        """Number of scores that come before each, in falling order."""
        return np.argsort(np.argsort(-scores, axis=-1, kind="stable"), axis=-1)

    def selected_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        indices: Numbers,
        *,
        causal: bool = False,
        scale: Any = None,
    ) -> Numbers:
        """Attention under the mask of the selected keys."""
        n, m, group = query.shape[-2], key.shape[-2], query.shape[-3] // key.shape[-3]
        self.check_indices(indices, m)
        keys, values = self.repeat_heads(key, group), self.repeat_heads(value, group)
        scores = self.scaled_by(self.dot_scores(query, keys), query.shape[-1], scale)
        shared = np.broadcast_to(indices, (*indices.shape[:-3], key.shape[-3], *indices.shape[-2:]))
        selected = self.repeat_heads(self.selected_keys(shared, m), group)
        attendable = self.attendable(selected, causal, n, m)
        return self.weighted(scores, values, attendable)[1]

    def check_indices(self, indices: Numbers, m: int) -> None:
        """Raise for an index outside −1…m − 1."""
        if np.any((indices < -1) | (indices >= m)):
            raise ValueError(f"indices: expected -1 to {m - 1}; got {indices}")

    def selected_keys(self, indices: Numbers, m: int) -> Numbers:
        """Mask (…, n, m) of the keys that indices name."""
        mask = np.zeros((*indices.shape[:-1], m + 1), bool)
        np.put_along_axis(mask, np.where(indices < 0, m, indices), True, axis=-1)
        return mask[..., :m]

    def block_mask(self, blocks: Numbers, n: int, m: int, query_block_size: int, key_block_size: int) -> Numbers:
        """The value of its block for every pair of positions, False beyond the blocks."""
        for axis, size, count in ((-2, query_block_size, n), (-1, key_block_size, m)):
            blocks = self.expanded_blocks(blocks, axis, size, count)
        return blocks

    def expanded_blocks(self, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
        """One axis of blocks, expanded to ``count`` positions."""
        positions = np.repeat(blocks, size, axis=axis)
        missing = max(count - positions.shape[axis], 0)
        beyond = np.zeros([missing if i == positions.ndim + axis else x for i, x in enumerate(positions.shape)], bool)
        return np.take(np.concatenate([positions, beyond], axis=axis), np.arange(count), axis=axis)
