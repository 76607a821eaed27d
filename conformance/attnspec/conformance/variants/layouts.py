"""Variants with other products, chunks, dtypes of sinusoids and memory layouts of results.

Subclasses of ``Formulas`` replace steps of the formulas; those of ``Library`` what it does around them, such as
``finish``, which converts results.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import Library
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import (
    AdditiveAttention,
    DotProductAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import BiasedMultiHeadAttention, MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.scoring import AdditiveScores, DotScores, GeneralScores, ScaledDotScores


@variant("queries in chunks of 7", operations=(AdditiveAttention, GeneralAttention))
class Chunked(Formulas):
    """Queries are computed in chunks of 7."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention of 7 queries at a time, each chunk with its rows of the mask."""
        n, m = scores.shape[-2:]
        allowed = self.attendable(mask, causal, n, m)
        if n <= 7:
            return Formulas.attend(self, scores, value, allowed, False)
        chunks = []
        for start in range(0, n, 7):
            rows = slice(start, start + 7)
            inner = allowed if allowed is None or allowed.shape[-2] == 1 else allowed[..., rows, :]
            chunks.append(Formulas.attend(self, scores[..., rows, :], value, inner, False))
        return np.concatenate(chunks, axis=-2)


@variant("transposed throughout", operations=(DotScores, Softmax, DotProductAttention))
class Transposed(Formulas):
    """Scores are (KQᵀ)ᵀ, results (VᵀAᵀ)ᵀ."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product as (BᵀAᵀ)ᵀ."""
        return np.swapaxes(np.swapaxes(b, -1, -2) @ np.swapaxes(a, -1, -2), -1, -2)


@variant("queries scaled first", operations=(ScaledDotScores, MultiHeadAttention))
class Prescaled(Formulas):
    """Scores are (q/√d)·k."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of scaled queries."""
        return self.dot_scores(query / np.sqrt(query.dtype.type(query.shape[-1])), key)


@variant("queries and keys scaled by the fourth root", operations=(ScaledDotProductAttention, SelfAttention))
class RootScaled(Formulas):
    """Scores are (q/d^¼)·(k/d^¼)."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of queries and keys, each divided by d^¼."""
        root = query.dtype.type(query.shape[-1] ** 0.25)
        return self.dot_scores(query / root, key / root)


@variant("biases as weights of a feature of ones", operations=(BiasedMultiHeadAttention,))
class AppendedOne(Formulas):
    """Inputs get a feature of ones, whose weights are the biases."""

    def project_heads_with_bias(self, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
        """Project [x; 1] by [w, b]."""
        ones = np.ones((*x.shape[:-1], 1), x.dtype)
        return self.project_heads(self.join_features(x, ones), self.join_features(w, b[..., None]))


@variant("one projection for all heads", operations=(MultiHeadAttention,))
class OneProjection(Formulas):
    """Heads are projected by one matrix; W_o is applied head by head and summed."""

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
        """Project, split, attend, and sum what every head contributes."""
        heads = [self._split(x, w) for x, w in ((query, w_q), (key, w_k), (value, w_v))]
        result = 0.0
        for r in range(w_q.shape[0]):
            q, k, v = (x[..., r, :] for x in heads)
            attended = self.scaled_dot_product_attention(q, k, v, mask=mask, causal=causal)
            p_v = w_v.shape[1]
            result = result + self.project(attended, w_o[:, r * p_v : (r + 1) * p_v])
        return result

    def _split(self, x: Numbers, w: Numbers) -> Numbers:
        """Project x by all heads at once, (…, n, h, p)."""
        h, p, d = w.shape
        projected = self.project(x, w.reshape(h * p, d))
        return projected.reshape(*projected.shape[:-1], h, p)


@variant("keys multiplied by W before the queries", operations=(GeneralScores, GeneralAttention))
class KeysFirst(Formulas):
    """Scores are q·(W k) in place of (q W)·k."""

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Scores of projected keys."""
        return self.dot_scores(query, self.project(key, w))


@variant(
    "products by einsum", operations=(AttentionPooling, ProjectedSelfAttention, AdditiveScores), differentiable=False
)
class Einsum(Formulas):
    """Products are computed by einsum, without a linear algebra library."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product by NumPy's own loops."""
        return np.einsum("...ij,...jk->...ik", a, b)

    def additive_scores(self, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers) -> Numbers:
        """Additive scores by one einsum over the hidden units."""
        of_query, of_key = self.project(query, w_q), self.project(key, w_k)
        hidden = np.tanh(of_query[..., :, None, :] + of_key[..., None, :, :])
        return np.einsum("...h,h->...", hidden, w_v)


@variant("sinusoids in single precision", operations=(SinusoidalPositionalEncoding,))
class SingleSinusoids(Formulas):
    """Angles and sines are float32 throughout, and so are frequencies, which exponentials compute."""

    def positions(self, n: int) -> Numbers:
        """Positions in float32, exact up to 2²⁴."""
        return np.arange(n, dtype=np.float32)

    def frequencies(self, d: int) -> Numbers:
        """Frequencies exp(−2i ln 10⁴/d) in float32."""
        step = np.float32(-np.log(10000.0)) / np.float32(d)
        return np.exp(np.arange(0, d, 2, dtype=np.float32) * step)


@variant("sinusoids in double precision", operations=(SinusoidalPositionalEncoding,))
class DoubleSinusoids(Formulas):
    """Encodings are computed and returned in float64."""

    default = np.float64  # dtype of results without float inputs; the base class has float32


@variant("results in Fortran order", operations=(ScaledDotProductAttention, MultiHeadAttention, Softmax))
class FortranOrder(Library):
    """Results are in Fortran order: their last dimension is not contiguous."""

    def finish(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """The result in Fortran order."""
        return map_tree(Library.finish(self, operation, result, arguments), lambda _, x: np.asfortranarray(x))


@variant("results in padded rows", operations=(ScaledDotProductAttention, AdditiveAttention, DotScores))
class PaddedRows(Library):
    """Results are views into wider memory with NaN between the rows."""

    def finish(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """The result as a view into rows that are seven elements longer."""

        def within(_: str, x: Any) -> Any:
            memory = np.full((*x.shape[:-1], x.shape[-1] + 7), np.nan, x.dtype)
            memory[..., : x.shape[-1]] = x
            return memory[..., : x.shape[-1]]

        return map_tree(Library.finish(self, operation, result, arguments), within)
