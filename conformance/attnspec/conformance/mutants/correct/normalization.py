"""Correct formulas of softmax and mean normalization."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Arithmetic, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.reference.defining.choices import choice


class Normalization(Arithmetic):
    """Attention weights from scores."""

    def softmax(self, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """Softmax over the attendable keys of each row."""
        weights, undefined = self.normalized(self.mask_scores(scores, mask)), self.undefined_weights(scores, mask)
        return np.where(undefined, weights.dtype.type(np.nan), weights) if undefined.any() else weights

    def undefined_weights(self, scores: Numbers, mask: Numbers) -> Numbers:
        """True where a weight is 0/0: at attendable keys of rows of −∞."""
        plain = value_of(scores)
        allowed = np.ones(plain.shape, bool) & (True if mask is None else mask)
        return allowed & ~np.any(allowed & (plain != -np.inf), axis=-1, keepdims=True)

    def mask_scores(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with −∞ at masked keys; rows without attendable keys as declared."""
        if mask is None:
            return scores
        masked = np.where(mask, scores, scores.dtype.type(-np.inf))
        if choice("fully_masked") != "uniform":
            return masked
        return np.where(np.any(mask, axis=-1, keepdims=True), masked, scores.dtype.type(0))

    def shift(self, scores: Numbers) -> Numbers:
        """Maximum of each row, to be subtracted before exp; 0 if it is −∞."""
        highest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        return np.where(highest == -np.inf, scores.dtype.type(0), highest)

    def exponential(self, x: Numbers) -> Numbers:
        """Elementwise exponential."""
        return np.exp(x)

    def normalized(self, scores: Numbers) -> Numbers:
        """Exponentials divided by their sum; 0 in rows whose scores are all −∞."""
        exponentials = self.exponential(scores - self.shift(scores))
        total = self.total(exponentials)
        return exponentials / np.where(total == 0, scores.dtype.type(1), total)

    def mean_normalization(self, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """Scores divided by the number of attendable keys; 0 at masked keys."""
        cleared = scores if mask is None else np.where(mask, scores, scores.dtype.type(0))
        return cleared / self.count_keys(cleared.shape, mask, scores.dtype)

    def count_keys(self, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
        """Number of attendable keys along the last dimension, at least 1; the dimension is kept."""
        attendable = np.broadcast_to(True if mask is None else mask, shape)
        return np.maximum(np.sum(attendable, axis=-1, keepdims=True), 1).astype(dtype)
