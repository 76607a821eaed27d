"""The same products in other orders and layouts."""

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
from attnspec.spec.contract.tree import mapped
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling
from attnspec.spec.positional import SinusoidalPositionalEncoding
from attnspec.spec.scoring import AdditiveScores, DotScores, GeneralScores, ScaledDotScores


@variant("queries in chunks of 7", operations=(AdditiveAttention, GeneralAttention))
class Chunked(Formulas):
    """A few queries at a time."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Each chunk with its rows of the mask."""
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
    """Scores as (KQᵀ)ᵀ, results as (VᵀAᵀ)ᵀ."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """(BᵀAᵀ)ᵀ."""
        return np.swapaxes(np.swapaxes(b, -1, -2) @ np.swapaxes(a, -1, -2), -1, -2)


@variant("queries scaled first", operations=(ScaledDotScores, MultiHeadAttention))
class Prescaled(Formulas):
    """(q/√d)·k."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """The query takes the whole scale."""
        return self.dot_scores(query / np.sqrt(query.dtype.type(query.shape[-1])), key)


@variant(
    "queries and keys scaled by the fourth root",
    operations=(ScaledDotProductAttention, SelfAttention),
)
class RootScaled(Formulas):
    """(q/d^¼)·(k/d^¼)."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Each takes half of the scale."""
        root = query.dtype.type(query.shape[-1] ** 0.25)
        return self.dot_scores(query / root, key / root)


@variant("one projection for all heads", operations=(MultiHeadAttention,))
class OneProjection(Formulas):
    """Weights of all heads in one matrix, results of all heads through W_o one after another."""

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
        """(…, n, h, p)."""
        h, p, d = w.shape
        projected = self.project(x, w.reshape(h * p, d))
        return projected.reshape(*projected.shape[:-1], h, p)


@variant("the matrix meets the keys first", operations=(GeneralScores, GeneralAttention))
class KeysFirst(Formulas):
    """q·(W k) for (q W)·k."""

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Keys are projected."""
        return self.dot_scores(query, self.project(key, w))


@variant(
    "einsum",
    operations=(AttentionPooling, ProjectedSelfAttention, AdditiveScores),
    differentiable=False,
)
class Einsum(Formulas):
    """Index notation, without linear algebra."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Summed by NumPy's own loops."""
        return np.einsum("...ij,...jk->...ik", a, b)

    def additive_scores(self, query: Numbers, key: Numbers, w_q: Numbers, w_k: Numbers, w_v: Numbers) -> Numbers:
        """One sum over the hidden units."""
        of_query, of_key = self.project(query, w_q), self.project(key, w_k)
        hidden = np.tanh(of_query[..., :, None, :] + of_key[..., None, :, :])
        return np.einsum("...h,h->...", hidden, w_v)


@variant("sinusoids in single precision", operations=(SinusoidalPositionalEncoding,))
class SingleSinusoids(Formulas):
    """Frequencies as exponentials, angles and sines in float32 throughout."""

    def positions(self, n: int) -> Numbers:
        """Exact up to 2²⁴."""
        return np.arange(n, dtype=np.float32)

    def frequencies(self, d: int) -> Numbers:
        """exp(−2i ln 10⁴/d)."""
        step = np.float32(-np.log(10000.0)) / np.float32(d)
        return np.exp(np.arange(0, d, 2, dtype=np.float32) * step)


@variant("sinusoids in double precision", operations=(SinusoidalPositionalEncoding,))
class DoubleSinusoids(Formulas):
    """Powers of 10⁴ in float64, returned as such."""

    default = np.float64


@variant("results in columns", operations=(ScaledDotProductAttention, MultiHeadAttention, Softmax))
class Columns(Library):
    """Results whose last dimension is not contiguous."""

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """The same numbers in Fortran's order."""
        return mapped(Library.finished(self, operation, result, arguments), lambda _, x: np.asfortranarray(x))


@variant("results in padded rows", operations=(ScaledDotProductAttention, AdditiveAttention, DotScores))
class Padded(Library):
    """Results are parts of larger memory, in which NaN stands beside them."""

    def finished(self, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
        """Seven numbers more in every row."""

        def within(_: str, x: Any) -> Any:
            memory = np.full((*x.shape[:-1], x.shape[-1] + 7), np.nan, x.dtype)
            memory[..., : x.shape[-1]] = x
            return memory[..., : x.shape[-1]]

        return mapped(Library.finished(self, operation, result, arguments), within)
