"""Mutants that read codes, scales or formats of quantised operands wrongly.

Each function is one step of ``Library``, the backend around the correct formulas, with a defect; ``replaces`` names it.
``prepare`` converts all arguments, ``dequantize`` one operand, ``scale_values`` its scales. The law in ``breaks`` must
detect the defect alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import Mutant, mutant
from attnspec.conformance.mutants.roles import Arguments, at, caches, changed, key, query, value
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.kernels import GroupedQueryAttention, PagedAttention

EXACT = ("quantization.operands-are-exact",)


def _mutant(
    name: str, *formats: Any, operations: tuple[object, ...] = (ScaledDotProductAttention,), **more: Any
) -> Callable[[Any], Mutant]:
    """Register a mutant of attention with operands in these formats."""
    return mutant(name, operations=operations, breaks=EXACT, operand_formats=formats, differentiable=False, **more)


# Scales ---------------------------------------------------------------------------------------------------------------


@_mutant(
    "scales of quantised operands left out",
    {"key": "e4m3-per-head", "value": "e4m3-per-channel"},
    operations=(ScaledDotProductAttention, GroupedQueryAttention),
    replaces="scale_values",
    source="flashinfer-ai/flashinfer#1023: scales that are not passed on",
)
def no_scales(correct: Library, operand: Quantized) -> Numbers:
    """Codes are taken for numbers: all scales count as 1."""
    return np.ones_like(operand.scales, np.float32)


@_mutant(
    "scales of quantised operands 2 % too large in bfloat16",
    "int8-per-token",
    dtype="bfloat16",
    replaces="scale_values",
    source="a scale for 127 steps, applied to codes with 125",
)
def larger_scales(correct: Library, operand: Quantized) -> Numbers:
    """Scales are 2 % too large."""
    return Library.scale_values(correct, operand) * np.float32(1.02)


@_mutant(
    "scales of a quantised cache 2 % too small in bfloat16",
    {"key": "e4m3-per-head", "value": "e4m3-per-channel"},
    dtype="bfloat16",
    replaces="scale_values",
    source="calibrated scales in a float of 6 bits",
)
def smaller_scales(correct: Library, operand: Quantized) -> Numbers:
    """Scales are 2 % too small."""
    return Library.scale_values(correct, operand) * np.float32(0.98)


@_mutant(
    "scales applied twice",
    "e4m3-per-tensor",
    replaces="scale_values",
    source="a scale folded into the softmax, beside scaled operands",
)
def squared_scales(correct: Library, operand: Quantized) -> Numbers:
    """Scales are applied twice."""
    return Library.scale_values(correct, operand) ** 2


@_mutant("divided by scales", "e5m2-per-head", replaces="scale_values", source="scale and its inverse exchanged")
def inverse_scales(correct: Library, operand: Quantized) -> Numbers:
    """Codes are divided by scales, as in quantising."""
    return np.float32(1) / Library.scale_values(correct, operand)


@_mutant(
    "scale of the head before",
    "e4m3-per-head",
    operations=(GroupedQueryAttention,),
    replaces="scale_values",
    source="an index of heads that is one too low",
)
def previous_head(correct: Library, operand: Quantized) -> Numbers:
    """Each head or batch element gets the scales of the one before."""
    scales = Library.scale_values(correct, operand)
    return np.roll(scales, 1, -3) if scales.ndim > 2 else scales


@_mutant(
    "scale of the first head in every head",
    "e4m3-per-head",
    operations=(GroupedQueryAttention, PagedAttention),
    replaces="scale_values",
    source="scales without a stride of heads",
)
def first_head(correct: Library, operand: Quantized) -> Numbers:
    """All heads or batch elements get the scales of the first one."""
    scales = Library.scale_values(correct, operand)
    return np.broadcast_to(scales[..., :1, :, :], scales.shape) if scales.ndim > 2 else scales


@_mutant(
    "scale of the block before",
    "mxfp8",
    operations=(ScaledDotProductAttention, PagedAttention),
    replaces="scale_values",
    source="an index of blocks that is one too low",
)
def previous_block(correct: Library, operand: Quantized) -> Numbers:
    """Each block gets the scale of the one before."""
    scales = Library.scale_values(correct, operand)
    return np.roll(scales, 1, _axis_of_blocks(scales))


@_mutant(
    "scale of the next block",
    "e4m3-per-32-channels",
    replaces="scale_values",
    source="an index of blocks that is one too high",
)
def next_block(correct: Library, operand: Quantized) -> Numbers:
    """Each block gets the scale of the next one."""
    scales = Library.scale_values(correct, operand)
    return np.roll(scales, -1, _axis_of_blocks(scales))


@_mutant("scale of the first block in every block", "nvfp4", replaces="scale_values", source="a pointer that stays")
def first_block(correct: Library, operand: Quantized) -> Numbers:
    """All blocks get the scale of the first one in their row, column or head."""
    scales = Library.scale_values(correct, operand)
    first = np.take(scales, [0], _axis_of_blocks(scales))
    return np.broadcast_to(first, scales.shape)


def _axis_of_blocks(scales: Numbers) -> int:
    """The last axis along which scales differ; the last of all if there is one scale."""
    return max((axis for axis, count in enumerate(scales.shape) if count > 1), default=-1)


@_mutant(
    "scales of key heads read by the query head",
    {"key": "e4m3-per-head", "value": "e4m3-per-head"},
    operations=(GroupedQueryAttention,),
    replaces="prepare",
    source="one index of heads for queries and for scales of keys",
)
def by_query_head(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Query head r gets the scales at place r, not those of its key head."""
    heads = at(arguments, query(operation)).shape[-3]

    def repeated(x: Any) -> Any:
        if not isinstance(x, Quantized) or x.codes.ndim < 3:
            return x
        own = np.broadcast_to(x.scales, (*x.codes.shape[:-2], *x.scales.shape[-2:]))
        codes, group = x.codes, heads // x.codes.shape[-3]
        first = np.arange(own[..., 0, 0].size).reshape(own.shape[:-2])[..., :1]
        places = np.minimum(first + np.arange(heads), own[..., 0, 0].size - 1)
        scales = own.reshape(-1, *own.shape[-2:])[places]
        return replace(x, codes=np.repeat(codes, group, -3), scales=scales)

    changes = {path: repeated(at(arguments, path)) for path in (key(operation), value(operation))}
    # All key heads are repeated, so that each query head has one of its own.
    return _with_equal_heads(Library.prepare(correct, operation, changed(arguments, changes)), operation, heads)


def _with_equal_heads(prepared: Arguments, operation: Operation, heads: int) -> dict[str, Any]:
    """The arguments with as many key heads as query heads."""
    arrays = {path: at(prepared, path) for path in (key(operation), value(operation))}
    return changed(prepared, {path: np.repeat(x, heads // x.shape[-3], -3) for path, x in arrays.items()})


@_mutant(
    "scales of pages read without the block table",
    {"key_pages": "int8-per-token", "value_pages": "int8-per-token"},
    operations=(PagedAttention,),
    replaces="prepare",
    source="scales beside a cache, found by the number of the block in its sequence",
)
def untranslated_pages(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Block j gets the scales of page j, not those of its page."""
    (table_path,) = operation.indices
    table = at(arguments, table_path)
    blocks = np.broadcast_to(np.arange(table.shape[-1]), table.shape).ravel()

    def in_order_of_blocks(x: Any) -> Any:
        if not isinstance(x, Quantized):
            return x[table.ravel()]
        return replace(x, codes=x.codes[table.ravel()], scales=x.scales[blocks % len(x.scales)])

    changes = {leaf.path: in_order_of_blocks(at(arguments, leaf.path)) for leaf in caches(operation)}
    changes[table_path] = np.arange(table.size).reshape(table.shape)
    return Library.prepare(correct, operation, changed(arguments, changes))


@_mutant(
    "scales of keys and values exchanged",
    {"key": "e4m3-per-head", "value": "e4m3-per-head"},
    replaces="prepare",
    source="two scales of the same shape, passed in the other order",
)
def exchanged_scales(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys get the scales of values, and values those of keys."""
    keys, values = (at(arguments, path(operation)) for path in (key, value))
    if not (isinstance(keys, Quantized) and isinstance(values, Quantized) and keys.scales.shape == values.scales.shape):
        return Library.prepare(correct, operation, arguments)
    exchanged = {
        key(operation): replace(keys, scales=values.scales),
        value(operation): replace(values, scales=keys.scales),
    }
    return Library.prepare(correct, operation, changed(arguments, exchanged))


@_mutant(
    "scales of the first batch element and head in all",
    "int8-per-64-tokens",
    replaces="scale_values",
    source="scales without a stride of heads",
)
def first_element(correct: Library, operand: Quantized) -> Numbers:
    """All batch elements get the scales of the first one."""
    scales = Library.scale_values(correct, operand)
    return np.broadcast_to(scales[:1], scales.shape)


@_mutant(
    "scales read transposed",
    "mxfp8",
    "nvfp4-along-tokens",
    replaces="scale_values",
    source="NVIDIA/cudnn-frontend#600: another layout of scales than the kernel expects",
)
def transposed_scales(correct: Library, operand: Quantized) -> Numbers:
    """Scales are read by columns, although they lie in rows."""
    scales = Library.scale_values(correct, operand)
    return scales.swapaxes(-1, -2).reshape(scales.shape)


@_mutant(
    "blocks along tokens read along channels",
    "mxfp8-along-tokens",
    replaces="dequantize",
    source="one layout of blocks for keys and values",
)
def wrong_axis(correct: Library, operand: Quantized) -> Numbers:
    """Scales are applied to 32 channels of a token, not to one of 32 tokens."""
    shape = operand.scales.shape
    turned = operand.scales.reshape(*shape[:-2], shape[-2] * 32, shape[-1] // 32)
    return Library.dequantize(correct, replace(operand, scales=turned))


@_mutant("global scale left out", "nvfp4", replaces="scale_values", source="sgl-project/sglang#15133: not read yet")
def no_global_scale(correct: Library, operand: Quantized) -> Numbers:
    """The one scale of the whole operand is not applied."""
    return Library.scale_values(correct, replace(operand, global_scale=None))


@_mutant("exponents of scales with a bias of 128", "mxfp8", replaces="scale_values", source="E8M0 has a bias of 127")
def wrong_bias(correct: Library, operand: Quantized) -> Numbers:
    """All scales are half as large."""
    return Library.scale_values(correct, operand) / 2


@_mutant("exponents read as scales", "mxfp8", replaces="scale_values", source="E8M0 stored as unsigned integers")
def exponents(correct: Library, operand: Quantized) -> Numbers:
    """Scales are their biased exponents, not powers of 2."""
    scales = Library.scale_values(correct, operand)
    return (np.log2(scales) + 127).astype(np.float32)


@_mutant(
    "scale of keys applied after the softmax",
    "e4m3-per-tensor",
    replaces="prepare",
    source="one factor on the output in place of two",
)
def scale_after_softmax(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Scores come from the codes of keys; their scale multiplies the output."""
    keys = at(arguments, key(operation))
    if not isinstance(keys, Quantized):
        return Library.prepare(correct, operation, arguments)
    codes = replace(keys, scales=np.ones_like(keys.scales))
    prepared = Library.prepare(correct, operation, changed(arguments, {key(operation): codes}))
    return changed(prepared, {value(operation): at(prepared, value(operation)) * keys.scales})


# Codes ----------------------------------------------------------------------------------------------------------------


@_mutant("codes of E5M2 read as E4M3", "e5m2-per-tensor", replaces="dequantize", source="one dtype for all of 8 bits")
def other_format(correct: Library, operand: Quantized) -> Numbers:
    """The bits of E5M2 are read as E4M3."""
    return Library.dequantize(correct, replace(operand, codes=operand.codes.view(ml_dtypes.float8_e4m3fn)))


@_mutant("signed codes read as unsigned", "int8-per-token", replaces="dequantize", source="uint8 storage of int8 codes")
def unsigned_codes(correct: Library, operand: Quantized) -> Numbers:
    """Negative codes are read as 128 to 255."""
    return Library.dequantize(correct, replace(operand, codes=operand.codes.view(np.uint8)))


@_mutant("codes of a pair exchanged", "nvfp4", replaces="dequantize", source="the upper bits of a byte read first")
def exchanged_pairs(correct: Library, operand: Quantized) -> Numbers:
    """The second of two codes in a byte is read first."""
    codes = operand.codes
    pairs = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 2, 2)
    return Library.dequantize(correct, replace(operand, codes=pairs[..., ::-1].reshape(codes.shape)))


@_mutant(
    "operands dequantised to bfloat16, undeclared",
    "int8-per-token",
    replaces="dequantize",
    source="a fallback that converts to the dtype of the model",
)
def coarse_values(correct: Library, operand: Quantized) -> Numbers:
    """Codes times scales are rounded to bfloat16."""
    return np.asarray(rounded(Library.dequantize(correct, operand), "bfloat16"))
