"""Variants that use the roundings of their precision classes."""

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import Library, rounded
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import AdditiveAttention, CrossAttention, GeneralAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.scoring import DotScores, ScaledDotScores


def _to_11_bits(x: Numbers, *, truncate: bool = False) -> Numbers:
    """Round or truncate mantissas to 11 bits."""
    mantissa, exponent = np.frexp(x)
    scaled = mantissa * x.dtype.type(2**11)
    return np.ldexp((np.trunc(scaled) if truncate else np.rint(scaled)) / x.dtype.type(2**11), exponent)


class _StoredBfloat16(Formulas):
    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums by weights rounded to bfloat16."""
        return Formulas.attention_pooling(self, rounded(weights, "bfloat16"), value)

    def project_heads(self, x: Numbers, w: Numbers) -> Numbers:
        """Projections rounded to bfloat16."""
        return rounded(Formulas.project_heads(self, x, w), "bfloat16")

    def join_heads(self, heads: Numbers) -> Numbers:
        """Concatenated heads rounded to bfloat16."""
        return rounded(Formulas.join_heads(self, heads), "bfloat16")


@variant(
    "weights stored in bfloat16",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtypes=("bfloat16",),
    differentiable=False,
)
class MixedBfloat16(_StoredBfloat16):
    """Weights and projections are rounded to bfloat16; sums are float32."""


@variant(
    "weights stored in float16",
    operations=(ScaledDotProductAttention, GeneralAttention),
    dtypes=("float16",),
    differentiable=False,
)
class MixedFloat16(Formulas):
    """Weights are rounded to float16; sums are float32."""

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums by weights rounded to float16."""
        return Formulas.attention_pooling(self, rounded(weights, "float16"), value)


WEIGHTED = (GeneralAttention, AdditiveAttention, CrossAttention, MultiHeadAttention)


class _Operands(Formulas):
    """Every computed operand of a product is rounded to ``stored_dtype``; exponentials before their division."""

    stored_dtype = ""

    def project(self, x: Numbers, w: Numbers) -> Numbers:
        """Projections rounded to ``stored_dtype``."""
        return rounded(Formulas.project(self, x, w), self.stored_dtype)

    def general_scores(self, query: Numbers, key: Numbers, w: Numbers) -> Numbers:
        """Scores of projected keys, which are rounded to ``stored_dtype``."""
        projected = rounded(self.product(key, np.swapaxes(w, -1, -2)), self.stored_dtype)
        return self.dot_scores(query, projected)

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention with exponentials rounded for the product with values, not for their sum."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        masked = self.mask_scores(scores, allowed)
        exponentials = np.exp(masked - self.shift(masked))
        total = self.total(exponentials)
        summed = self.pool(rounded(exponentials, self.stored_dtype), value, allowed)
        return summed / np.where(total == 0, scores.dtype.type(1), total)


@variant("exponentials stored in bfloat16", operations=WEIGHTED, dtypes=("bfloat16",), differentiable=False)
class Bfloat16Operands(_Operands):
    """Exponentials are rounded to bfloat16 and divided after the sum, as in FlashAttention."""

    stored_dtype = "bfloat16"


@variant("exponentials stored in float16", operations=WEIGHTED, dtypes=("float16",), differentiable=False)
class Float16Operands(_Operands):
    """Exponentials are rounded to float16, small ones to subnormal numbers, and divided after the sum."""

    stored_dtype = "float16"


@variant(
    "queries scaled in bfloat16, declared",
    operations=(ScaledDotProductAttention, ScaledDotScores),
    dtypes=("bfloat16",),
    precision={"bfloat16": "prescaled-bfloat16"},
    differentiable=False,
)
class PrescaledBfloat16(Formulas):
    """q/√d is rounded to bfloat16."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of scaled queries rounded to bfloat16."""
        scaled = rounded(query / np.sqrt(query.dtype.type(query.shape[-1])), "bfloat16")
        return self.dot_scores(scaled, key)


@variant(
    "queries scaled in float16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float16",),
    precision={"float16": "prescaled-float16"},
    differentiable=False,
)
class PrescaledFloat16(Formulas):
    """q/√d is rounded to float16, small elements to subnormal numbers."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of scaled queries rounded to float16."""
        return self.dot_scores(rounded(query / np.sqrt(query.dtype.type(query.shape[-1])), "float16"), key)


@variant(
    "keys scaled in float16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float16",),
    precision={"float16": "prescaled-float16"},
    differentiable=False,
)
class PrescaledFloat16Keys(Formulas):
    """k/√d is rounded to float16."""

    def scaled_dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of scaled keys rounded to float16."""
        return self.dot_scores(query, rounded(key / np.sqrt(key.dtype.type(key.shape[-1])), "float16"))


@variant(
    "scores stored in bfloat16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "eager-bfloat16"},
    differentiable=False,
)
class EagerBfloat16(_StoredBfloat16):
    """Every intermediate result is rounded to bfloat16."""

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores rounded to bfloat16."""
        return rounded(Formulas.dot_scores(self, query, key), "bfloat16")

    def scale_scores(self, scores: Numbers, d: int) -> Numbers:
        """Scaled scores rounded to bfloat16."""
        return rounded(Formulas.scale_scores(self, scores, d), "bfloat16")


@variant(
    "TensorFloat-32, declared",
    operations=(DotScores, ScaledDotProductAttention),
    precision={"float32": "tf32"},
    differentiable=False,
)
class TensorFloat(Formulas):
    """Operands of every product are rounded to 11 bits."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product of rounded operands, accumulated in float32."""
        return Formulas.product(self, _to_11_bits(a), _to_11_bits(b))


@variant(
    "truncating TensorFloat-32, declared",
    operations=(DotScores, ScaledDotProductAttention),
    precision={"float32": "tf32+truncating"},
    differentiable=False,
)
class TruncatingTensorFloat(Formulas):
    """Operands of every product are truncated to 11 bits."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product of truncated operands, accumulated in float32."""
        return Formulas.product(self, _to_11_bits(a, truncate=True), _to_11_bits(b, truncate=True))


@variant(
    "TensorFloat-32 in three products", operations=(ScaledDotProductAttention, MultiHeadAttention), differentiable=False
)
class ThreeProducts(Formulas):
    """Operands are split into two parts of 11 bits; the product of the lower parts is left out."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Sum of three partial products, the small ones first."""
        (a_high, a_low), (b_high, b_low) = ((_to_11_bits(x), _to_11_bits(x - _to_11_bits(x))) for x in (a, b))
        small = Formulas.product(self, a_low, b_high) + Formulas.product(self, a_high, b_low)
        return small + Formulas.product(self, a_high, b_high)


@variant("bfloat16 in six products", operations=(DotScores, ScaledDotProductAttention), differentiable=False)
class SixProducts(Formulas):
    """Operands are split into three parts of 8 bits; products of the lowest parts are left out."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Sum of six of nine partial products, the smallest first."""
        left, right = _split_in_three(a), _split_in_three(b)
        total = 0.0
        for order in (2, 1, 0):
            for i in range(order + 1):
                total = total + Formulas.product(self, left[i], right[order - i])
        return total


def _split_in_three(x: Numbers) -> list[Numbers]:
    """Split x into three parts of 8 bits each."""
    high = rounded(x, "bfloat16")
    middle = rounded(x - high, "bfloat16")
    return [high, middle, rounded(x - high - middle, "bfloat16")]


@variant(
    "float64 inputs computed in float32, declared",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    dtypes=("float64",),
    precision={"float64": "ieee32-float64"},
    differentiable=False,
)
class SingleInDouble(Library):
    """float64 inputs are rounded to float32, computed in float32 and returned as float64."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with float64 arrays rounded to float32."""
        lowered = {name: map_tree(tree, lambda _, x: _float64_to_float32(x)) for name, tree in arguments.items()}
        return Library.prepare(self, operation, lowered)


def _float64_to_float32(x: Any) -> Any:
    """Convert a float64 array to float32 and leave everything else unchanged."""
    return x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x


def _largest_of(kind: Any) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(kind).max)


def in_format(x: Numbers, kind: Any) -> Numbers:
    """Round to an 8-bit format and back; values beyond its range become its largest number."""
    largest = _largest_of(kind)
    return np.asarray(np.clip(x, -largest, largest).astype(kind).astype(x.dtype))


class _EightBits(Formulas):
    def as_stored(self, x: Numbers) -> Numbers:
        """Round to E4M3 and back; values beyond its range become its largest number."""
        return in_format(x, ml_dtypes.float8_e4m3fn)

    def dot_scores(self, query: Numbers, key: Numbers) -> Numbers:
        """Scores of queries and keys rounded by ``as_stored``."""
        return Formulas.dot_scores(self, self.as_stored(query), self.as_stored(key))

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums by weights and values rounded by ``as_stored``."""
        return Formulas.attention_pooling(self, self.as_stored(weights), self.as_stored(value))


@variant(
    "operands of 8 bits (E4M3), declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "e4m3-bfloat16"},
    differentiable=False,
)
class EightBits(_EightBits):
    """Queries, keys, values and weights are rounded to 8 bits for their products; sums are float32."""


class _ScaledBlocks(_EightBits):
    """Operands of 8 bits with one scale per 32 summed elements: the MX formats."""

    kind: Any
    block = 32

    def scales(self, largest: Numbers) -> Numbers:
        """Powers of 2 that bring the blocks' largest numbers to the format's largest exponent."""
        return np.exp2(np.floor(np.log2(largest)) - np.floor(np.log2(_largest_of(self.kind))))

    def as_stored(self, x: Numbers) -> Numbers:
        """Round to the format and back, in blocks along the last axis."""
        length = x.shape[-1]
        room = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -length % self.block)])
        blocks = room.reshape(*room.shape[:-1], room.shape[-1] // self.block, self.block)
        size = np.where(np.isfinite(blocks), np.abs(blocks), 0).max(-1, keepdims=True, initial=0.0)
        scales = np.maximum(self.scales(np.where(size > 0, size, 1)), 2.0**-126).astype(x.dtype)
        return (in_format(blocks / scales, self.kind) * scales).reshape(room.shape)[..., :length]

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Weighted sums rounded in blocks of keys; unattended values do not affect scales."""
        attended = (weights != 0).any(-2)[..., None]
        values = self.as_stored(np.where(attended, value, 0).swapaxes(-1, -2)).swapaxes(-1, -2)
        return Formulas.attention_pooling(self, self.as_stored(weights), values)


@variant(
    "MXFP8 operands in blocks of 32, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "mxfp8-bfloat16"},
    differentiable=False,
)
class ScaledBlocks(_ScaledBlocks):
    """MXFP8 with 3 bits of mantissa; elements above the format's largest number are clipped."""

    kind = ml_dtypes.float8_e4m3fn


@variant(
    "MXFP8 operands with scales rounded up, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32",),
    precision={"float32": "mxfp8-float32"},
    differentiable=False,
)
class ScaledBlocksRoundedUp(_ScaledBlocks):
    """MXFP8 with 2 bits of mantissa and scales rounded up, which clips no element."""

    kind = ml_dtypes.float8_e5m2

    def scales(self, largest: Numbers) -> Numbers:
        """The least power of 2 with which the largest number fits."""
        return np.exp2(np.ceil(np.log2(largest / _largest_of(self.kind))))


@variant(
    "operands of 8 bits with sums of 14 bits, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "e4m3-bfloat16+short-sums"},
    differentiable=False,
)
class ShortSums(_EightBits):
    """Products are summed in order, each partial sum truncated to 14 bits: as on tensor cores."""

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product with truncated partial sums."""
        total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
        for i in range(a.shape[-1]):
            mantissa, exponent = np.frexp(total + a[..., :, i, None] * b[..., i, None, :])
            total = np.ldexp(np.trunc(mantissa * 2**14) / 2**14, exponent).astype(a.dtype)
        return total
