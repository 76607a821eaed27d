"""Declared precision classes."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import Library, rounded
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    GeneralAttention,
    ScaledDotProductAttention,
)
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import mapped
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.scoring import DotScores, ScaledDotScores


def _short(x: Numbers, *, truncate: bool = False) -> Numbers:
    """Eleven bits of mantissa, rounded or cut off."""
    mantissa, exponent = np.frexp(x)
    scaled = mantissa * x.dtype.type(2**11)
    return np.ldexp((np.trunc(scaled) if truncate else np.rint(scaled)) / x.dtype.type(2**11), exponent)


class _StoredBrain(Formulas):
    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weights as stored."""
        return Formulas.attention_pooling(self, rounded(weights, "bfloat16"), value)

    def in_heads(self, x: Numbers, w: Numbers) -> Numbers:
        """Projections as stored."""
        return rounded(Formulas.in_heads(self, x, w), "bfloat16")

    def merged(self, heads: Numbers) -> Numbers:
        """Heads as stored."""
        return rounded(Formulas.merged(self, heads), "bfloat16")


@variant(
    "weights stored in bfloat16",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtypes=("bfloat16",),
    differentiable=False,
)
class MixedBrain(_StoredBrain):
    """bfloat16 in and out, float32 accumulation, weights and projections rounded to bfloat16."""


@variant(
    "weights stored in float16",
    operations=(ScaledDotProductAttention, GeneralAttention),
    dtypes=("float16",),
    differentiable=False,
)
class MixedHalf(Formulas):
    """float16 in and out, float32 accumulation, weights rounded to float16."""

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weights as stored."""
        return Formulas.attention_pooling(self, rounded(weights, "float16"), value)


WEIGHTED = (GeneralAttention, AdditiveAttention, CrossAttention, MultiHeadAttention)


class _Operands(Formulas):
    """Every computed operand of a product is rounded, also exponentials that are divided after the product."""

    short = ""

    def project(self, x: Numbers, w: Numbers) -> Numbers:
        """Projections as stored."""
        return rounded(Formulas.project(self, x, w), self.short)

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Keys are projected, and not queries."""
        projected = rounded(self.product(key, np.swapaxes(w, -1, -2)), self.short)
        return self.dot_scores(query, projected)

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Exponentials are rounded before they multiply the values, and summed before that."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        kept = self.excluded(scores, allowed)
        exponentials = np.exp(kept - self.shift(kept))
        total = self.total(exponentials)
        summed = self.pooled(rounded(exponentials, self.short), value, allowed)
        return summed / np.where(total == 0, scores.dtype.type(1), total)


@variant("exponentials stored in bfloat16", operations=WEIGHTED, dtypes=("bfloat16",), differentiable=False)
class BrainOperands(_Operands):
    """Divided after the sum, as in FlashAttention."""

    short = "bfloat16"


@variant("exponentials stored in float16", operations=WEIGHTED, dtypes=("float16",), differentiable=False)
class HalfOperands(_Operands):
    """Divided after the sum; small exponentials are subnormal."""

    short = "float16"


@variant(
    "queries scaled in bfloat16, declared",
    operations=(ScaledDotProductAttention, ScaledDotScores),
    dtypes=("bfloat16",),
    precision={"bfloat16": "prescaled-bfloat16"},
    differentiable=False,
)
class PrescaledBrain(Formulas):
    """q/√d is rounded to bfloat16."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """The scaled query as stored."""
        scaled = rounded(query / np.sqrt(query.dtype.type(query.shape[-1])), "bfloat16")
        return self.dot_scores(scaled, key)


@variant(
    "queries scaled in float16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float16",),
    precision={"float16": "prescaled-float16"},
    differentiable=False,
)
class PrescaledHalf(Formulas):
    """q/√d is rounded to float16, whose subnormal numbers are near."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """The scaled query as stored."""
        return self.dot_scores(rounded(query / np.sqrt(query.dtype.type(query.shape[-1])), "float16"), key)


@variant(
    "keys scaled in float16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float16",),
    precision={"float16": "prescaled-float16"},
    differentiable=False,
)
class PrescaledHalfKeys(Formulas):
    """k/√d is rounded to float16."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """The scaled key as stored."""
        return self.dot_scores(query, rounded(key / np.sqrt(key.dtype.type(key.shape[-1])), "float16"))


@variant(
    "scores stored in bfloat16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "eager-bfloat16"},
    differentiable=False,
)
class EagerBrain(_StoredBrain):
    """Every intermediate is written to memory in bfloat16."""

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores as stored."""
        return rounded(Formulas.dot_scores(self, query, key), "bfloat16")

    def scaled(self, scores: Numbers, d: int) -> Numbers:
        """Scaled scores as stored."""
        return rounded(Formulas.scaled(self, scores, d), "bfloat16")


@variant(
    "TensorFloat-32, declared",
    operations=(DotScores, ScaledDotProductAttention),
    precision={"float32": "tf32"},
    differentiable=False,
)
class TensorFloat(Formulas):
    """Operands of every product are rounded to eleven bits."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Accumulated in float32."""
        return Formulas.product(self, _short(a), _short(b))


@variant(
    "truncating TensorFloat-32, declared",
    operations=(DotScores, ScaledDotProductAttention),
    precision={"float32": "tf32+truncating"},
    differentiable=False,
)
class TruncatingTensorFloat(Formulas):
    """Operands of every product are cut off after eleven bits."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Accumulated in float32."""
        return Formulas.product(self, _short(a, truncate=True), _short(b, truncate=True))


@variant(
    "TensorFloat-32 in three products",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    differentiable=False,
)
class ThreeProducts(Formulas):
    """Operands in two parts of eleven bits; the product of the lower parts is left out."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """The small products first."""
        (a_high, a_low), (b_high, b_low) = ((_short(x), _short(x - _short(x))) for x in (a, b))
        small = Formulas.product(self, a_low, b_high) + Formulas.product(self, a_high, b_low)
        return small + Formulas.product(self, a_high, b_high)


@variant(
    "bfloat16 in six products",
    operations=(DotScores, ScaledDotProductAttention),
    differentiable=False,
)
class SixProducts(Formulas):
    """Operands in three parts of eight bits; products of the lowest parts are left out."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Six of nine, the smallest first."""
        left, right = _in_three(a), _in_three(b)
        total = 0.0
        for order in (2, 1, 0):
            for i in range(order + 1):
                total = total + Formulas.product(self, left[i], right[order - i])
        return total


def _in_three(x: Numbers) -> list[Numbers]:
    """Three parts of eight bits each, whose sum is x."""
    high = rounded(x, "bfloat16")
    middle = rounded(x - high, "bfloat16")
    return [high, middle, rounded(x - high - middle, "bfloat16")]


@variant(
    "doubles computed with as float32, declared",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtypes=("float64",),
    precision={"float64": "ieee32-float64"},
    differentiable=False,
)
class SingleInDouble(Library):
    """Arrays of doubles are rounded to float32, computed with, and returned as doubles."""

    def prepared(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in single precision."""
        lowered = {name: mapped(tree, lambda _, x: _single(x)) for name, tree in arguments.items()}
        return Library.prepared(self, operation, lowered)


def _single(x: Any) -> Any:
    """An array of doubles as float32; what is none, as it is."""
    return x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x


def _largest_of(kind: Any) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(kind).max)


def in_format(x: Numbers, kind: Any) -> Numbers:
    """Numbers rounded to a format of 8 bits and back; what does not fit becomes its largest number."""
    largest = _largest_of(kind)
    return np.asarray(np.clip(x, -largest, largest).astype(kind).astype(x.dtype))


class _EightBits(Formulas):
    def stored(self, x: Numbers) -> Numbers:
        """Numbers rounded to the format and back; what does not fit becomes its largest number."""
        return in_format(x, ml_dtypes.float8_e4m3fn)

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Queries and keys as stored."""
        return Formulas.dot_scores(self, self.stored(query), self.stored(key))

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weights and values as stored."""
        return Formulas.attention_pooling(self, self.stored(weights), self.stored(value))


@variant(
    "operands of 8 bits, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "e4m3-bfloat16"},
    differentiable=False,
)
class EightBits(_EightBits):
    """Queries, keys, values and weights enter their products in 8 bits, as on tensor cores, with float32 sums."""


class _Blocks(_EightBits):
    """Operands in 8 bits with a scale, a normal power of 2, for every 32 numbers that are summed: the MX formats."""

    kind: Any
    block = 32

    def scales(self, largest: Numbers) -> Numbers:
        """The power of 2 of the largest number, for the power of 2 of the largest number of the format."""
        return np.exp2(np.floor(np.log2(largest)) - np.floor(np.log2(_largest_of(self.kind))))

    def stored(self, x: Numbers) -> Numbers:
        """Numbers rounded to the format and back, in blocks of the last axis."""
        length = x.shape[-1]
        room = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -length % self.block)])
        blocks = room.reshape(*room.shape[:-1], room.shape[-1] // self.block, self.block)
        size = np.where(np.isfinite(blocks), np.abs(blocks), 0).max(-1, keepdims=True, initial=0.0)
        scales = np.maximum(self.scales(np.where(size > 0, size, 1)), 2.0**-126).astype(x.dtype)
        return (in_format(blocks / scales, self.kind) * scales).reshape(room.shape)[..., :length]

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weights and values as stored, in blocks of keys; what nobody attends to has no part in a scale."""
        attended = (weights != 0).any(-2)[..., None]
        values = self.stored(np.where(attended, value, 0).swapaxes(-1, -2)).swapaxes(-1, -2)
        return Formulas.attention_pooling(self, self.stored(weights), values)


@variant(
    "operands in blocks of 8 bits with a scale, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "mxfp8-bfloat16"},
    differentiable=False,
)
class Blocks(_Blocks):
    """MXFP8 with 3 bits of mantissa; numbers above the largest of the format are cut off."""

    kind = ml_dtypes.float8_e4m3fn


@variant(
    "operands in blocks of 8 bits with a scale that is rounded up, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32",),
    precision={"float32": "mxfp8-float32"},
    differentiable=False,
)
class RoundedUp(_Blocks):
    """MXFP8 with 2 bits of mantissa, and scales so large that nothing is cut off."""

    kind = ml_dtypes.float8_e5m2

    def scales(self, largest: Numbers) -> Numbers:
        """The least power of 2 by which the largest number fits."""
        return np.exp2(np.ceil(np.log2(largest / _largest_of(self.kind))))


@variant(
    "sums of 14 bits of operands of 8 bits, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "e4m3-bfloat16+short-sums"},
    differentiable=False,
)
class ShortSums(_EightBits):
    """Products are summed one after the other, and each partial sum is cut off after 14 bits, as on tensor cores."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Partial sums, each cut off."""
        total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
        for i in range(a.shape[-1]):
            mantissa, exponent = np.frexp(total + a[..., :, i, None] * b[..., i, None, :])
            total = np.ldexp(np.trunc(mantissa * 2**14) / 2**14, exponent).astype(a.dtype)
        return total
