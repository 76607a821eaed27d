"""Correct formulas of multi-head attention."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.attention import Attention


class MultiHead(Attention):
    """Attention with several heads."""

    def split_heads(self, x: Numbers, heads: int) -> Numbers:
        """Split features (…, n, d) into heads (…, h, n, d/h)."""
        return np.swapaxes(self.group_features(x, heads), -3, -2)

    def group_features(self, x: Numbers, heads: int) -> Numbers:
        """Reshape features (…, d) to h groups of consecutive ones (…, h, d/h)."""
        return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)

    def merge_heads(self, x: Numbers) -> Numbers:
        """Concatenate the heads."""
        return self.join_heads(x)

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
        q, k, v = self.project_heads(query, w_q), self.project_heads(key, w_k), self.project_heads(value, w_v)
        heads = self.attend_heads(q, k, v, None if mask is None else mask[..., None, :, :], causal)
        return self.project(self.join_heads(heads), w_o)

    def biased_multi_head_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        w_o: Numbers,
        b_q: Numbers,
        b_k: Numbers,
        b_v: Numbers,
        b_o: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        """Attention in heads, concatenated and projected, with biases."""
        q, k, v = (
            self.project_heads_with_bias(x, w, b) for x, w, b in ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
        )
        heads = self.attend_heads(q, k, v, None if mask is None else mask[..., None, :, :], causal)
        return self.add_output_bias(self.project(self.join_heads(heads), w_o), b_o)

    def concat_heads_attention(
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
        """Attention in heads without a scale, concatenated."""
        q, k, v = self.project_heads(query, w_q), self.project_heads(key, w_k), self.project_heads(value, w_v)
        head_mask = None if mask is None else mask[..., None, :, :]
        return self.join_heads(self.dot_product_attention(q, k, v, mask=head_mask, causal=causal))

    def multi_head_additive_attention(
        self,
        query: Numbers,
        key: Numbers,
        value: Numbers,
        w_q: Numbers,
        w_k: Numbers,
        w_v: Numbers,
        w_o: Numbers,
        a_q: Numbers,
        a_k: Numbers,
        a_v: Numbers,
        *,
        mask: Numbers = None,
        causal: bool = False,
    ) -> Numbers:
        """Additive attention in heads, concatenated and projected."""
        q, k, v = self.project_heads(query, w_q), self.project_heads(key, w_k), self.project_heads(value, w_v)
        hidden = self.hidden_layer(self.project(q, a_q)[..., :, None, :], self.project(k, a_k)[..., None, :, :])
        scores = self.product(hidden, a_v[:, None, :, None])[..., 0]
        attended = self.attend(scores, v, None if mask is None else mask[..., None, :, :], causal)
        return self.project(self.join_heads(attended), w_o)

    def project_heads(self, x: Numbers, w: Numbers) -> Numbers:
        """Project x (…, n, d) by w (h, p, d) to (…, h, n, p)."""
        return self.project(x[..., None, :, :], w)

    def project_heads_with_bias(self, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Project x to heads (…, h, n, p), and add b (h, p)."""
        return self.project_heads(x, w) + b[:, None, :]

    def add_output_bias(self, projected: Numbers, b: Numbers) -> Numbers:
        """Add the bias of the output to every row."""
        return projected + b

    def attend_heads(self, query: Numbers, key: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention of heads (…, h, n, p) under a mask (…, 1, n, m)."""
        return self.scaled_dot_product_attention(query, key, value, mask=mask, causal=causal)

    def join_heads(self, heads: Numbers) -> Numbers:
        """Concatenate heads (…, h, n, p) to (…, n, h·p)."""
        swapped = np.swapaxes(heads, -3, -2)
        return swapped.reshape(*swapped.shape[:-2], swapped.shape[-2] * swapped.shape[-1])
