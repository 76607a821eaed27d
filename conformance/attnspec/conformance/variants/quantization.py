"""Variants with quantised operands: dequantised first, scaled afterwards, or with weights in few bits."""

from typing import Any

import ml_dtypes
import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.roles import at, key, mask_of, query, value
from attnspec.conformance.variants.precisions import in_format
from attnspec.conformance.variants.registry import variant
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.kernels import GroupedQueryAttention, PagedAttention, VariableLengthAttention

FORMATS = (
    "e4m3-per-tensor", "e5m2-per-head", "int8-per-token", "e4m3-per-channel", "int8-per-64-tokens",
    "e4m3-per-32-channels", "mxfp8", "mxfp8-along-tokens", "nvfp4", "nvfp4-along-tokens",
)  # fmt: skip


@variant(
    "quantised operands dequantised to float32",
    operations=(ScaledDotProductAttention, GroupedQueryAttention, VariableLengthAttention),
    dtypes=("float32", "bfloat16"),
    operand_formats=(*FORMATS, {"key": "e4m3-per-tensor", "value": "e4m3-per-tensor"}),
    differentiable=False,
)
class Dequantized(Library):
    """Codes times scales are rounded to float32, then computed with as float32."""


@variant(
    "quantised pages dequantised to float32",
    operations=(PagedAttention,),
    dtypes=("float32", "bfloat16"),
    operand_formats=(*FORMATS, {"key_pages": "int8-per-token", "value_pages": "e4m3-per-channel"}),
    differentiable=False,
)
class DequantizedPages(Library):
    """Codes times scales in pages are rounded to float32 before anything else."""


@variant(
    "quantised operands dequantised to bfloat16, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "prescaled-bfloat16"},
    operand_formats=FORMATS,
    differentiable=False,
)
class DequantizedToBfloat16(Library):
    """Codes times scales are rounded to bfloat16."""

    def dequantize(self, operand: Quantized) -> Numbers:
        """Codes times scales in bfloat16, as float32."""
        return np.asarray(rounded(Library.dequantize(self, operand), "bfloat16"))


@variant(
    "scales applied after the products",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32", "bfloat16"),
    operand_formats=({"query": "int8-per-token", "key": "int8-per-token", "value": "e4m3-per-channel"},),
    differentiable=False,
)
class ScaledAfterwards(Library):
    """Products of codes are exact; scales multiply scores and outputs."""

    def call(self, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        """Compute with codes where the operands are quantised."""
        arguments = self.bind_arguments(operation, args, kwargs)
        q, k, v = (at(arguments, path(operation)) for path in (query, key, value))
        if not isinstance(q, Quantized):
            return Library.call(self, operation, *args, **kwargs)
        formulas, codes = self.formulas, [x.codes.astype(np.float32) for x in (q, k, v)]
        scores = formulas.dot_scores(codes[0], codes[1]) * q.scales * k.scales.swapaxes(-1, -2)
        scores = formulas.scale_scores(scores, q.shape[-1])
        causal = bool(arguments.get(operation.flag or "", False))
        output = formulas.attend(scores, codes[2], mask_of(operation, arguments), causal)
        return self.finish(operation, output * v.scales, arguments)


class _FewBits(Formulas):
    """Exponentials are rounded by ``stored`` for the product with values, not for their sum."""

    def stored(self, exponentials: Numbers) -> Numbers:
        """Rounded exponentials."""
        raise NotImplementedError

    def attend(self, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
        """Attention by rounded exponentials, divided by the sum of unrounded ones."""
        allowed = self.attendable(mask, causal, *scores.shape[-2:])
        masked = self.mask_scores(scores, allowed)
        exponentials = np.exp(masked - self.shift(masked))
        total = self.total(exponentials)
        summed = self.pool(self.stored(exponentials), value, allowed)
        return summed / np.where(total == 0, scores.dtype.type(1), total)


@variant(
    "weights in E4M3, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "mixed-bfloat16+weights-e4m3"},
    operand_formats=("e4m3-per-head",),
    differentiable=False,
)
class WeightsInE4M3(_FewBits):
    """Exponentials are stored in E4M3 without a scale."""

    def stored(self, exponentials: Numbers) -> Numbers:
        """Exponentials in E4M3."""
        return in_format(exponentials, ml_dtypes.float8_e4m3fn)


@variant(
    "weights in E5M2, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32",),
    precision={"float32": "ieee32+weights-e5m2"},
    operand_formats=("e5m2-per-head",),
    differentiable=False,
)
class WeightsInE5M2(_FewBits):
    """Exponentials are stored in E5M2 without a scale."""

    def stored(self, exponentials: Numbers) -> Numbers:
        """Exponentials in E5M2."""
        return in_format(exponentials, ml_dtypes.float8_e5m2)


@variant(
    "weights in int8, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32", "bfloat16"),
    precision={"float32": "ieee32+weights-int8", "bfloat16": "mixed-bfloat16+weights-int8"},
    operand_formats=({"query": "int8-per-64-tokens", "key": "int8-per-64-tokens", "value": "int8-per-channel"},),
    differentiable=False,
)
class WeightsInInt8(_FewBits):
    """Exponentials are stored in 127 steps."""

    def stored(self, exponentials: Numbers) -> Numbers:
        """Multiples of 1/127."""
        return np.rint(exponentials * 127) / exponentials.dtype.type(127)


class _Blocks(_FewBits):
    """Exponentials are stored in blocks of keys, each with its own scale."""

    block: int
    kind: Any

    def scales(self, largest: Numbers) -> Numbers:
        """Scales by the largest exponential of every block."""
        raise NotImplementedError

    def stored(self, exponentials: Numbers) -> Numbers:
        """Exponentials rounded in their blocks."""
        keys = exponentials.shape[-1]
        padded = np.pad(exponentials, [(0, 0)] * (exponentials.ndim - 1) + [(0, -keys % self.block)])
        blocks = padded.reshape(*padded.shape[:-1], padded.shape[-1] // self.block, self.block)
        scales = self.scales(blocks.max(-1, keepdims=True, initial=0.0))
        scales = np.maximum(scales, 2.0**-100).astype(exponentials.dtype)  # a scale of 0 makes its block 0
        return (in_format(blocks / scales, self.kind) * scales).reshape(padded.shape)[..., :keys]


@variant(
    "weights in MXFP8, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("bfloat16",),
    precision={"bfloat16": "mixed-bfloat16+weights-mxfp8"},
    operand_formats=({"query": "mxfp8", "key": "mxfp8", "value": "mxfp8-along-tokens"},),
    differentiable=False,
)
class WeightsInMXFP8(_Blocks):
    """Exponentials are stored in E4M3, in blocks of 32 keys."""

    block, kind = 32, ml_dtypes.float8_e4m3fn

    def scales(self, largest: Numbers) -> Numbers:
        """Powers of 2 that bring the largest exponential to at least 2⁸."""
        return np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - 8)


@variant(
    "weights in NVFP4, declared",
    operations=(ScaledDotProductAttention,),
    dtypes=("float32",),
    precision={"float32": "ieee32+weights-nvfp4"},
    operand_formats=({"query": "nvfp4", "key": "nvfp4", "value": "nvfp4-along-tokens"},),
    differentiable=False,
)
class WeightsInNVFP4(_Blocks):
    """Exponentials are stored in E2M1, in blocks of 16 keys with a scale in E4M3."""

    block, kind = 16, ml_dtypes.float4_e2m1fn

    def scales(self, largest: Numbers) -> Numbers:
        """A sixth of the largest exponential, rounded to E4M3."""
        return in_format(largest / 6, ml_dtypes.float8_e4m3fn)
