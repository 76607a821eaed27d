"""Correct formulas of weighted sums of values."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.masking import Masking
from attnspec.conformance.mutants.correct.normalization import Normalization
from attnspec.conformance.mutants.correct.scoring import Scoring
from attnspec.conformance.mutants.correct.tape import value_of


class Pooling(Masking, Normalization, Scoring):
    """Weighted sums and means of values."""

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums of values."""
        return self.product(weights, value)

    def pool(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums that leave out masked values, even NaN and ∞."""
        mask = self.with_empty_rows_filled(mask)
        if mask is None or np.all(np.isfinite(value_of(value))):
            return self.attention_pooling(weights, value)
        terms = weights[..., :, :, None] * value[..., None, :, :]
        return np.sum(np.where(mask[..., None], terms, terms.dtype.type(0)), axis=-2)

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Mean of the attendable values."""
        mask = self.with_empty_rows_filled(mask)
        cleared = value if mask is None else np.where(mask[..., None], value, value.dtype.type(0))
        return np.sum(cleared, axis=-2) / self.count_keys(cleared.shape[:-1], mask, value.dtype)

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Pool the values by the softmax of the scores over the attendable keys."""
        attendable = self.attendable(mask, causal, *scores.shape[-2:])
        return self.pool(self.softmax(scores, mask=attendable), value, attendable)

    def nadaraya_watson(self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Kernel regression, as a softmax over Gaussian scores."""
        return self.attend(self.gaussian_scores(query, key), value, mask, False)
