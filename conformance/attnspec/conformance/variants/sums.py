"""Variants with other orders or precisions of sums."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import AdditiveAttention, ProjectedSelfAttention, ScaledDotProductAttention
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AveragePooling, NadarayaWatson
from attnspec.spec.scoring import AdditiveScores, DotScores, GaussianScores, GeneralScores, ScaledDotScores


@variant("sums in reverse", operations=(ScaledDotProductAttention, GeneralScores, AveragePooling))
class Reversed(Formulas):
    """Every sum runs from the end to the beginning."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product of operands reversed along the summed dimension."""
        return Formulas.product(self, np.flip(a, axis=-1), np.flip(b, axis=-2))

    def total(self, x: Numbers) -> Numbers:
        """Sum from the last element to the first."""
        return Formulas.total(self, np.flip(x, axis=-1))


@variant(
    "sums one after another",
    operations=(Softmax, ScaledDotProductAttention),
    dtypes=("float32", "bfloat16"),
    differentiable=False,
)
class Sequential(Formulas):
    """One accumulator adds all terms in order, which has the largest error of all orders."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product by one outer product per term."""
        terms = a.shape[-1]
        if not terms:
            return Formulas.product(self, a, b)
        total = a[..., :, 0, None] * b[..., None, 0, :]
        for i in range(1, terms):
            total = total + a[..., :, i, None] * b[..., None, i, :]
        return total

    def total(self, x: Numbers) -> Numbers:
        """Sum by a running sum."""
        return np.cumsum(x, axis=-1)[..., -1:] if x.shape[-1] else Formulas.total(self, x)


@variant("sums in pairs", operations=(Softmax, ScaledDotScores, NadarayaWatson), differentiable=False)
class Pairwise(Formulas):
    """Sums are trees of additions, like reductions across GPU lanes and warps."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product by adding halves of the terms repeatedly."""
        return _sum_by_halves(a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :])[..., 0]

    def total(self, x: Numbers) -> Numbers:
        """Sum by adding halves repeatedly."""
        return _sum_by_halves(x)


def _sum_by_halves(x: Numbers) -> Numbers:
    if not x.shape[-1]:
        return np.sum(x, axis=-1, keepdims=True)
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = np.concatenate([x[..., :half] + x[..., half : 2 * half], x[..., 2 * half :]], axis=-1)
    return x


@variant(
    "products in tiles of 8",
    operations=(DotScores, ProjectedSelfAttention),
    dtypes=("float32", "float16"),
    differentiable=False,
)
class Tiled(Formulas):
    """Partial sums of 8 terms each are added up."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product in tiles of 8 terms."""
        total = Formulas.product(self, a[..., :8], b[..., :8, :])
        for start in range(8, a.shape[-1], 8):
            part = slice(start, start + 8)
            total = total + Formulas.product(self, a[..., part], b[..., part, :])
        return total


@variant("running means", operations=(AveragePooling,), differentiable=False)
class RunningMean(Formulas):
    """The mean is updated value by value, as in one pass over a stream."""

    def average_pooling(self, value: Numbers, *, mask: Numbers = None) -> Numbers:
        """o ← o + (v − o)/k for the k-th attendable value."""
        batch = np.broadcast_shapes(value.shape[:-1], () if mask is None else mask.shape)
        allowed = np.broadcast_to(True if mask is None else mask, batch)
        mean = np.zeros((*batch[:-1], value.shape[-1]), value.dtype)
        count = np.zeros((*batch[:-1], 1), value.dtype)
        for j in range(batch[-1]):
            counted = allowed[..., j : j + 1]
            count = count + counted.astype(value.dtype)
            mean = np.where(counted, mean + (value[..., j, :] - mean) / np.maximum(count, 1), mean)
        return mean


@variant("products and sums in double precision", operations=(AdditiveAttention, GaussianScores), differentiable=False)
class Wider(Formulas):
    """Products and sums are float64, everything else float32."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product in float64, rounded once."""
        return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)

    def total(self, x: Numbers) -> Numbers:
        """Sum in float64, rounded once."""
        return np.sum(x, axis=-1, keepdims=True, dtype=np.float64).astype(x.dtype)


@variant("divisions as products", operations=(Softmax, MeanNormalization, ScaledDotScores, GaussianScores))
class Reciprocals(Formulas):
    """Divisions are products with rounded reciprocals."""

    def scale_scores(self, scores: Numbers, d: int) -> Numbers:
        """Scores times d^−½."""
        return scores * (1 / np.sqrt(scores.dtype.type(d)))

    def normalized(self, scores: Numbers) -> Numbers:
        """Exponentials times the reciprocal of their sum."""
        exponentials = self.exponential(scores - self.shift(scores))
        total = self.total(exponentials)
        return exponentials * (1 / np.where(total == 0, scores.dtype.type(1), total))

    def mean_normalization(self, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """Scores times 1/|A|, with |A| the number of attendable keys."""
        cleared = scores if mask is None else np.where(mask, scores, scores.dtype.type(0))
        return cleared * (1 / self.count_keys(cleared.shape, mask, scores.dtype))

    def gaussian_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Minus the sum of the halved squared differences."""
        difference = query[..., :, None, :] - key[..., None, :, :]
        return -np.sum(0.5 * difference * difference, axis=-1)


@variant(
    "double precision throughout", operations=(ScaledDotProductAttention, AdditiveScores, Softmax), dtypes=("float64",)
)
class Double(Formulas):
    """All formulas are computed in float64."""

    default = np.float64  # for results without float inputs; these operations compute in the dtype of their inputs


@variant("sums with compensation", operations=(Softmax, AveragePooling), differentiable=False)
class Compensated(Formulas):
    """Sums are Kahan sums, which carry the rounding error along."""

    def total(self, x: Numbers) -> Numbers:
        """Kahan sum over the last dimension."""
        total, lost = np.zeros_like(x[..., :1]), np.zeros_like(x[..., :1])
        for i in range(x.shape[-1]):
            term = x[..., i : i + 1] - lost
            grown = total + term
            lost = np.where(np.isfinite(grown), (grown - total) - term, 0)
            total = grown
        return total


@variant("products split along the sum", operations=(ScaledDotProductAttention, AdditiveAttention, GeneralScores))
class SplitSum(Formulas):
    """Four partial products over a quarter of the terms each are added as a tree."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product in four parts, like a sum split over thread blocks."""
        terms = a.shape[-1]
        parts = [slice(terms * i // 4, terms * (i + 1) // 4) for i in range(4)]
        first, second, third, fourth = (Formulas.product(self, a[..., p], b[..., p, :]) for p in parts)
        return (first + second) + (third + fourth)
