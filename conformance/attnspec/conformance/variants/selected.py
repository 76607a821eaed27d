"""Variants of selected attention: other choices among equal scores, gathered keys, heads one by one."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.selected import IndexerScores, SelectedAttention, TopKeys


@variant("last of several equal scores selected", operations=(TopKeys,))
class LastOfEqualScores(Formulas):
    """The last of the keys that share the k-th greatest score are selected."""

    def ranks(self, scores: Numbers) -> Numbers:
        """Ranks in which equal scores have the opposite order."""
        return super().ranks(scores[..., ::-1])[..., ::-1]


@variant("heads of the indexer added one by one, the last first", operations=(IndexerScores,))
class HeadsOneByOne(Formulas):
    """A running sum over heads."""

    def summed_heads(self, terms: Numbers) -> Numbers:
        """Terms of the last head, plus those of each before it."""
        total = terms[..., -1, :, :]
        for r in reversed(range(terms.shape[-3] - 1)):
            total = total + terms[..., r, :, :]
        return total


@variant("selected keys and values gathered", operations=(SelectedAttention,), differentiable=False)
class GatheredKeys(Formulas):
    """Scores of named keys alone, in the order of the indices; −1 reads a row of zeros."""

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
        """Attention of one query at a time to its rows."""
        m, group = key.shape[-2], query.shape[-3] // key.shape[-3]
        self.check_indices(indices, m)
        last = np.arange(query.shape[-2])[:, None]
        named = (indices >= 0) & (indices <= last if causal else True)
        shared = np.broadcast_to(np.where(named, indices, m), (*named.shape[:-3], key.shape[-3], *named.shape[-2:]))
        rows = self.repeat_heads(shared, group)
        keys, values = (self.gathered(self.repeat_heads(x, group), rows) for x in (key, value))
        scores = self.scaled_by(self.dot_scores(query[..., None, :], keys), query.shape[-1], scale)
        return self.weighted(scores, values, (rows < m)[..., None, :])[1][..., 0, :]

    def gathered(self, x: Numbers, rows: Numbers) -> Numbers:
        """Rows (…, heads, n, entries, d) of x (…, heads, m, d)."""
        extended = np.concatenate([x, np.zeros((*x.shape[:-2], 1, x.shape[-1]), x.dtype)], axis=-2)
        batch = np.broadcast_shapes(extended.shape[:-2], rows.shape[:-2])
        every = np.broadcast_to(extended, (*batch, *extended.shape[-2:]))[..., None, :, :]
        places = np.broadcast_to(rows, (*batch, *rows.shape[-2:]))[..., None]
        return np.take_along_axis(every, places, axis=-2)
