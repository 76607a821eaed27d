"""Variants of softmax: online, split, by powers of two, by logarithms."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    GeneralAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import NadarayaWatson
from attnspec.spec.seq2seq import BahdanauContext


def _mask_columns(mask: Numbers, part: slice) -> Numbers:
    """Columns ``part`` of a mask; None and one-column masks stay as they are."""
    return mask if mask is None or mask.shape[-1] == 1 else mask[..., part]


class Blocks(Formulas):
    """Attention over blocks of keys with a running maximum and a running sum."""

    block = 16

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Rescale the sums whenever the maximum grows; divide once, at the end."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        m = scores.shape[-1]
        if not m:
            return Formulas.attend(self, scores, value, mask, causal)
        highest, total, summed = None, 0.0, 0.0
        for start in range(0, m, self.block):
            part = slice(start, start + self.block)
            inner = _mask_columns(allowed, part)
            block = self.mask_scores(scores[..., part], inner)
            above = np.max(value_of(block), axis=-1, keepdims=True)
            row_maximum = above if highest is None else np.maximum(highest, above)
            safe = np.where(row_maximum == -np.inf, scores.dtype.type(0), row_maximum)
            decay = 0.0 if highest is None else self.exponential(highest - safe)
            weights = self.exponential(block - safe)
            total = total * decay + self.total(weights)
            summed = summed * decay + self.pool(self.as_stored(weights), value[..., part, :], inner)
            highest = row_maximum
        return summed / np.where(total == 0, scores.dtype.type(1), total)

    def as_stored(self, weights: Numbers) -> Numbers:
        """The exponentials as they multiply the values, here unrounded."""
        return weights


@variant("online softmax in blocks of 16", operations=(ScaledDotProductAttention, AdditiveAttention))
class Online(Blocks):
    """Online softmax over blocks of 16 keys, as in flash attention."""


@variant(
    "online softmax with weights in bfloat16",
    operations=(ScaledDotProductAttention, DotProductAttention),
    dtypes=("bfloat16",),
    differentiable=False,
)
class OnlineBfloat16(Blocks):
    """Online softmax over blocks of 64 keys; exponentials are rounded to bfloat16, their sum is not."""

    block = 64

    def as_stored(self, weights: Numbers) -> Numbers:
        """Exponentials rounded to bfloat16."""
        return rounded(weights, "bfloat16")


@variant(
    "online softmax in doubles, one key at a time",
    operations=(ScaledDotProductAttention,),
    dtypes=("float64",),
    differentiable=False,
)
class OneByOne(Blocks):
    """Online softmax over single keys."""

    block = 1


@variant("keys split and merged", operations=(ScaledDotProductAttention, NadarayaWatson, BahdanauContext))
class Split(Formulas):
    """Thirds of the keys are merged by their maxima and sums of exponentials."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Merge partial results, weighted by their shares of the sum of exponentials."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        m = scores.shape[-1]
        parts = [slice(m * i // 3, m * (i + 1) // 3) for i in range(3) if m * i // 3 < m * (i + 1) // 3]
        if not parts:
            return Formulas.attend(self, scores, value, mask, causal)
        blocks = [self.mask_scores(scores[..., part], _mask_columns(allowed, part)) for part in parts]
        shifts = [self.shift(block) for block in blocks]
        raw = [np.max(value_of(block), axis=-1, keepdims=True) for block in blocks]
        highest = raw[0]
        for row_maximum in raw[1:]:
            highest = np.maximum(highest, row_maximum)
        highest = np.where(highest == -np.inf, scores.dtype.type(0), highest)
        whole, merged = 0.0, 0.0
        for part, block, shift, own in zip(parts, blocks, shifts, raw, strict=True):
            exponentials = self.exponential(block - shift)
            share = self.total(exponentials)
            weights = exponentials / np.where(share == 0, scores.dtype.type(1), share)
            factor = share * self.exponential(own - highest)
            merged = merged + factor * self.pool(weights, value[..., part, :], _mask_columns(allowed, part))
            whole = whole + factor
        return merged / np.where(whole == 0, scores.dtype.type(1), whole)


@variant("powers of two", operations=(Softmax, GeneralAttention))
class PowersOfTwo(Formulas):
    """Exponentials are exp2 of scores times log₂e."""

    def exponential(self, x: Numbers) -> Numbers:
        """e^x as 2^(x log₂e)."""
        return np.exp2(x * x.dtype.type(np.log2(np.e)))


@variant("log₂e in the scale", operations=(SelfAttention, CrossAttention))
class ScaledLogarithm(Formulas):
    """The scale and log₂e are one factor, rounded once."""

    def scaled_dot_product_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
    ) -> Numbers:
        """Attention with scores q·k·log₂e/√d as exponents of 2."""
        factor = query.dtype.type(np.log2(np.e) / np.sqrt(query.shape[-1]))
        return self.attend(self.dot_scores(query, key) * factor, value, mask, causal)

    def exponential(self, x: Numbers) -> Numbers:
        """exp2, because scores include the factor log₂e."""
        return np.exp2(x)


@variant(
    "log₂e and the maximum fused with the exponent",
    operations=(DotProductAttention, ScaledDotProductAttention),
    dtypes=("float32",),
    differentiable=False,
)
class FusedExponent(Formulas):
    """Exponentials are exp2(s·c − max·c) with s·c unrounded, so the largest weight is not 1."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Values are pooled by exponentials, then divided by their sum."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        excluded, factor = self.mask_scores(scores, allowed), scores.dtype.type(np.log2(np.e))
        highest = self.shift(excluded) * factor
        with np.errstate(invalid="ignore"):
            fused = excluded.astype(np.float64) * factor - highest
        exponentials = np.exp2(fused.astype(scores.dtype))
        total = self.total(exponentials)
        return self.pool(exponentials, value, allowed) / np.where(total == 0, scores.dtype.type(1), total)


@variant("divided after pooling", operations=(DotProductAttention, MultiHeadAttention))
class DividedLast(Formulas):
    """Values are pooled by exponentials, then divided by their sum."""

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention as (Σ exp e v)/Σ exp e."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        excluded = self.mask_scores(scores, allowed)
        exponentials = self.exponential(excluded - self.shift(excluded))
        total = self.total(exponentials)
        return self.pool(exponentials, value, allowed) / np.where(total == 0, scores.dtype.type(1), total)


@variant("small exponentials flushed to zero", operations=(Softmax, NadarayaWatson))
class FlushedToZero(Formulas):
    """Subnormal exponentials and weights are 0, as on devices without subnormal numbers."""

    def exponential(self, x: Numbers) -> Numbers:
        """Exponentials with subnormal numbers replaced by 0."""
        result = np.exp(x)
        return np.where(result < np.finfo(x.dtype).tiny, x.dtype.type(0), result)

    def normalized(self, scores: Numbers) -> Numbers:
        """Weights with subnormal numbers replaced by 0."""
        weights = Formulas.normalized(self, scores)
        return np.where(weights < np.finfo(scores.dtype).tiny, scores.dtype.type(0), weights)


@variant("through logarithms", operations=(Softmax, DotProductAttention))
class ThroughLogarithms(Formulas):
    """Weights are exp(e − max − log Σ exp(e − max)), as in backward passes."""

    def normalized(self, scores: Numbers) -> Numbers:
        """Weights by two exponentials, without a division."""
        shifted = scores - self.shift(scores)
        total = self.total(self.exponential(shifted))
        return self.exponential(shifted - np.log(np.where(total == 0, scores.dtype.type(1), total)))


@variant(
    "through the logarithm of the sum",
    operations=(Softmax, ScaledDotProductAttention, AdditiveAttention),
    dtypes=("float64", "float32"),
)
class ThroughLogSumExp(Formulas):
    """Weights are exp(e − L), L = log Σ exp e rounded to the dtype."""

    def normalized(self, scores: Numbers) -> Numbers:
        """Weights by the exponential of scores minus their log-sum-exp."""
        shift = self.shift(scores)
        total = self.total(self.exponential(scores - shift))
        return self.exponential(scores - (shift + np.log(np.where(total == 0, scores.dtype.type(1), total))))
