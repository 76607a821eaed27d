"""Every operation as a right formula, made of steps that a mutant or a variant can replace one at a time.

The methods of :class:`Formulas` that have the name of an operation take its arguments; the others are the steps. All
compute in the dtype of their arguments, and all run on arrays that record gradients too.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.tape import plain

Numbers = Any
"""A NumPy array, or one on the tape."""


class Formulas:
    """The right formulas. ``default`` is the dtype of results of operations without float inputs."""

    default: type = np.float32

    # Steps that many operations share ----------------------------------------------------------------------------

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product (…, n, d) × (…, d, m)."""
        return a @ b

    def project(self, x: Numbers, w: Numbers) -> Numbers:
        """Linear map of every row of x (…, n, d) by w (p, d)."""
        return self.product(x, np.swapaxes(w, -1, -2))

    def exponential(self, x: Numbers) -> Numbers:
        """Elementwise exponential."""
        return np.exp(x)

    def activation(self, x: Numbers) -> Numbers:
        """The nonlinearity of additive scores."""
        return np.tanh(x)

    def scaled(self, scores: Numbers, d: int) -> Numbers:
        """Scores divided by √d."""
        return scores / np.sqrt(scores.dtype.type(d))

    def total(self, x: Numbers) -> Numbers:
        """Sum over the last dimension, which is kept."""
        return np.sum(x, axis=-1, keepdims=True)

    # Scoring -----------------------------------------------------------------------------------------------------

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Dot products (…, n, m)."""
        return self.product(query, np.swapaxes(key, -1, -2))

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Dot products over √d."""
        return self.scaled(self.dot_scores(query, key), query.shape[-1])

    def additive_scores(self, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers) -> Numbers:
        """A perceptron with one hidden layer on every pair."""
        of_query, of_key = self.project(query, w_q), self.project(key, w_k)
        return self.hidden(of_query[..., :, None, :], of_key[..., None, :, :]) @ w_v

    def hidden(self, of_query: Numbers, of_key: Numbers) -> Numbers:
        """The hidden layer of additive scores, from both projections."""
        return self.activation(of_query + of_key)

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Bilinear form of every pair."""
        return self.dot_scores(self.product(query, w), key)

    def location_scores(self, query: Numbers, w: Numbers) -> Numbers:
        """Scores from the query alone."""
        return self.project(query, w)

    def gaussian_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Minus half the squared distance."""
        difference = query[..., :, None, :] - key[..., None, :, :]
        return -0.5 * np.sum(difference * difference, axis=-1)

    # Normalization -----------------------------------------------------------------------------------------------

    def softmax(self, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """Softmax over the attendable keys of each row."""
        return self.normalized(self.excluded(scores, mask))

    def excluded(self, scores: Numbers, mask: Numbers) -> Numbers:
        """Scores with −∞ where masked."""
        return scores if mask is None else np.where(mask, scores, scores.dtype.type(-np.inf))

    def shift(self, scores: Numbers) -> Numbers:
        """What is subtracted from each row before the exponential: its maximum, 0 if nothing is attendable."""
        highest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        return np.where(highest == -np.inf, scores.dtype.type(0), highest)

    def normalized(self, scores: Numbers) -> Numbers:
        """Exponentials over their sum; 0 where every score is −∞."""
        exponentials = self.exponential(scores - self.shift(scores))
        total = self.total(exponentials)
        return exponentials / np.where(total == 0, scores.dtype.type(1), total)

    def mean_normalization(self, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """Scores over the number of attendable keys."""
        kept = scores if mask is None else np.where(mask, scores, scores.dtype.type(0))
        return kept / self.count(kept.shape, mask, scores.dtype)

    def count(self, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
        """How many of the last dimension of a shape are attendable, at least 1; the dimension is kept."""
        everywhere = np.broadcast_to(True if mask is None else mask, shape)
        return np.maximum(np.sum(everywhere, axis=-1, keepdims=True), 1).astype(dtype)

    # Masking -----------------------------------------------------------------------------------------------------

    def causal_mask(self, n: int, m: int, *, include_self: bool = True) -> Numbers:
        """True at and before the diagonal."""
        rows, columns = np.arange(n)[:, None], np.arange(m)
        return columns <= rows if include_self else columns < rows

    def padding_mask(self, lengths: Numbers, m: int) -> Numbers:
        """True below each length."""
        self.check_lengths(lengths, m)
        return np.arange(m) < lengths[..., None]

    def check_lengths(self, lengths: Numbers, m: int) -> None:
        """Raise for a length outside 0…m."""
        if np.any((lengths < 0) | (lengths > m)):
            raise ValueError(f"padding_mask: lengths: expected 0 to {m}; got {lengths}")

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """Where both the mask and, with ``causal``, the causal mask hold; None for everywhere."""
        if not causal:
            return mask
        triangle = self.causal_mask(n, m)
        return triangle if mask is None else mask & triangle

    # Pooling -----------------------------------------------------------------------------------------------------

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums of values."""
        return self.product(weights, value)

    def pooled(self, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
        """Weighted sums that leave out masked values, whatever they are."""
        if mask is None or np.all(np.isfinite(plain(value))):
            return self.attention_pooling(weights, value)
        terms = weights[..., :, :, None] * value[..., None, :, :]
        return np.sum(np.where(mask[..., None], terms, terms.dtype.type(0)), axis=-2)

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Mean of the attendable values."""
        kept = value if mask is None else np.where(mask[..., None], value, value.dtype.type(0))
        return np.sum(kept, axis=-2) / self.count(kept.shape[:-1], mask, value.dtype)

    def nadaraya_watson(self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """Kernel regression, as a softmax over Gaussian scores."""
        return self.attend(self.gaussian_scores(query, key), value, mask, False)

    # Attention ---------------------------------------------------------------------------------------------------

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Pool the values by the softmax of the scores over the attendable keys."""
        attendable = self.attendable(mask, causal, *scores.shape[-2:])
        return self.pooled(self.softmax(scores, mask=attendable), value, attendable)

    def dot_product_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Attention by dot products."""
        return self.attend(self.dot_scores(query, key), value, mask, causal)

    def scaled_dot_product_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Attention by scaled dot products."""
        return self.attend(self.scaled_dot_scores(query, key), value, mask, causal)

    def general_attention(
        self, query: Numbers, key: Numbers, value: Numbers, w: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Attention by general scores."""
        return self.attend(self.general_scores(query, key, w), value, mask, causal)

    def additive_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        """Attention by additive scores."""
        return self.attend(self.additive_scores(query, key, w_q, w_k, w_v), value, mask, causal)

    def self_attention(self, x: Numbers, *, mask: Numbers = None, causal: bool = False) -> Numbers:
        """Every x is query, key and value."""
        return self.scaled_dot_product_attention(x, x, x, mask=mask, causal=causal)

    def projected_self_attention(
        self, x: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Queries, keys and values are linear maps of x."""
        q, k, v = self.project(x, w_q), self.project(x, w_k), self.project(x, w_v)
        return self.scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)

    def cross_attention(
        self, x: Numbers, memory: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """Queries from x, keys and values from the memory."""
        q, k, v = self.project(x, w_q), self.project(memory, w_k), self.project(memory, w_v)
        return self.scaled_dot_product_attention(q, k, v, mask=mask)

    # Multi-head --------------------------------------------------------------------------------------------------

    def multi_head_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        w_o: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        """Attention in heads, concatenated and projected."""
        q, k, v = self.in_heads(query, w_q), self.in_heads(key, w_k), self.in_heads(value, w_v)
        attended = self.attend_heads(q, k, v, None if mask is None else mask[..., None, :, :], causal)
        return self.project(self.merged(attended), w_o)

    def in_heads(self, x: Numbers, w: Numbers) -> Numbers:
        """Project x (…, n, d) by w (h, p, d) to (…, h, n, p)."""
        return self.project(x[..., None, :, :], w)

    def attend_heads(self, query: Numbers, key: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention in each head, of (…, h, n, p) and a mask (…, 1, n, m)."""
        return self.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    def merged(self, heads: Numbers) -> Numbers:
        """Concatenate heads (…, h, n, p) to (…, n, h·p)."""
        swapped = np.swapaxes(heads, -3, -2)
        return swapped.reshape(*swapped.shape[:-2], swapped.shape[-2] * swapped.shape[-1])

    # Positions and sequences -------------------------------------------------------------------------------------

    def sinusoidal_positional_encoding(self, n: int, d: int) -> Numbers:
        """Sines and cosines, interleaved."""
        angle = self.positions(n)[:, None] * self.frequencies(d)
        return self.interleaved(np.sin(angle), np.cos(angle))[:, :d].astype(self.default)

    def positions(self, n: int) -> Numbers:
        """The positions, from 0."""
        return np.arange(n, dtype=np.float64)

    def frequencies(self, d: int) -> Numbers:
        """One frequency for each pair of columns."""
        return 10000.0 ** (-2 * np.arange((d + 1) // 2) / d)

    def interleaved(self, sines: Numbers, cosines: Numbers) -> Numbers:
        """Columns sin, cos, sin, cos, …"""
        return np.stack([sines, cosines], axis=-1).reshape(len(sines), 2 * sines.shape[-1])

    def bahdanau_context(
        self, state: Numbers, annotations: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """The state attends additively to the annotations."""
        every_query = None if mask is None else mask[..., None, :]
        query = state[..., None, :]
        return self.additive_attention(query, annotations, annotations, w_q, w_k, w_v, mask=every_query)[..., 0, :]
