"""Correct formulas of attention."""

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.pooling import Pooling


class Attention(Pooling):
    """Attention with one head."""

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
        """Scaled dot-product attention with x as query, key and value."""
        return self.scaled_dot_product_attention(x, x, x, mask=mask, causal=causal)

    def projected_self_attention(
        self, x: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Attention whose queries, keys and values are linear maps of x."""
        q, k, v = self.project(x, w_q), self.project(x, w_k), self.project(x, w_v)
        return self.scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)

    def cross_attention(
        self, x: Numbers, memory: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers, *, mask: Numbers = None
    ) -> Numbers:
        """Attention with queries from x, keys and values from the memory."""
        q, k, v = self.project(x, w_q), self.project(memory, w_k), self.project(memory, w_v)
        return self.scaled_dot_product_attention(q, k, v, mask=mask)
