"""Rediscovered defects of quantised operands.

Each function is one step of ``Library``, the backend around the correct formulas, with a defect; ``replaces`` names it.
A law in ``breaks`` must detect the defect. ``prepare`` converts the arguments.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.roles import Arguments, at, caches, changed, query, value
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.quantized import Quantized
from attnspec.spec.kernels import GroupedQueryAttention, PagedAttention, VariableLengthAttention

EXACT = ("quantization.operands-are-exact",)


@rediscovered(
    "flashinfer-ai/flashinfer#4979",
    "[Bug] BatchPrefillWithRaggedKVCacheWrapper ignores k_scale / v_scale for an fp8 KV cache",
    framework="FlashInfer",
    operation=VariableLengthAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="scale_values",
    operand_formats=({"key": "e4m3-per-tensor", "value": "e4m3-per-tensor"},),
    differentiable=False,
)
def scales_of_blocks_only(correct: Library, operand: Quantized) -> Numbers:
    """Scales are applied to FP4, and ignored for FP8."""
    return np.ones_like(operand.scales, np.float32)


@rediscovered(
    "sgl-project/sglang#20705",
    "[Bug Fix][KV Cache FP8]: fix broken KV cache FP8 scale loading: crashes on FlashAttention, silently ignored on "
    "other backends",
    framework="SGLang",
    operation=GroupedQueryAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="scale_values",
    operand_formats=({"key": "e4m3-per-tensor", "value": "e4m3-per-tensor"},),
    differentiable=False,
)
def scales_of_1(correct: Library, operand: Quantized) -> Numbers:
    """Scales that were loaded from a file are replaced by 1."""
    return np.ones_like(operand.scales, np.float32)


@rediscovered(
    "vllm-project/vllm#53754",
    "[Bugfix] Ignore q_scale for FlashInfer native BF16 queries",
    framework="vLLM",
    operation=GroupedQueryAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="prepare",
    operand_formats=("e4m3-per-tensor",),
    differentiable=False,
)
def scaled_query_scaled_again(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """A query that is already dequantised is multiplied by its scale once more."""
    path = query(operation)
    x = at(arguments, path)
    twice = replace(x, scales=x.scales**2) if isinstance(x, Quantized) else x
    return Library.prepare(correct, operation, changed(arguments, {path: twice}))


@rediscovered(
    "vllm-project/vllm#55976",
    "[Bugfix][Kernel] NVFP4 KV: write V block scales linearly on SM120/SM121",
    framework="vLLM",
    operation=GroupedQueryAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="prepare",
    operand_formats=({"key": "nvfp4", "value": "nvfp4"},),
    differentiable=False,
)
def swizzled_scales_of_values(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Block scales of values are exchanged within groups of four tokens; those of keys are right."""
    values = at(arguments, value(operation))
    if not isinstance(values, Quantized):
        return Library.prepare(correct, operation, arguments)
    scales = values.scales
    groups = scales.reshape(*scales.shape[:-2], scales.shape[-2] // 4, 4, scales.shape[-1])
    swizzled = groups.swapaxes(-1, -2).reshape(scales.shape)
    changes = {value(operation): replace(values, scales=swizzled)}
    return Library.prepare(correct, operation, changed(arguments, changes))


@rediscovered(
    "sgl-project/sglang#18904",
    "Pass kv scales to paged attention in flashinfer backend",
    framework="SGLang",
    operation=PagedAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="scale_values",
    operand_formats=({"key_pages": "e4m3-per-tensor", "value_pages": "e4m3-per-tensor"},),
    differentiable=False,
)
def scales_not_passed_for_pages(correct: Library, operand: Quantized) -> Numbers:
    """The call that attends to the cached prefix, in pages, gets no scales."""
    return np.ones_like(operand.scales, np.float32)


@rediscovered(
    "vllm-project/vllm#42080",
    "[feat] Add FP8 per-tensor Q scale support to Triton attention backend",
    framework="vLLM",
    operation=PagedAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="prepare",
    operand_formats=("e4m3-per-tensor",),
    differentiable=False,
)
def query_scale_ignored(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Queries in FP8 are read without their scale; keys and values with theirs."""
    path = query(operation)
    x = at(arguments, path)
    unscaled = replace(x, scales=np.ones_like(x.scales)) if isinstance(x, Quantized) else x
    return Library.prepare(correct, operation, changed(arguments, {path: unscaled}))


@rediscovered(
    "vllm-project/vllm#49716",
    "[Bug]: int8_per_token_head KV cache corrupts Gemma-4 (hybrid attention) output under load on Triton",
    framework="vLLM",
    operation=PagedAttention,
    dtype="bfloat16",
    breaks=EXACT,
    replaces="prepare",
    operand_formats=({"key_pages": "int8-per-token", "value_pages": "int8-per-token"},),
    differentiable=False,
)
def scales_of_padded_pages(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Scales of padded pages are read as if the pages were not padded."""

    def misplaced(x: Any) -> Any:
        if not isinstance(x, Quantized):
            return x
        padding = [(0, 0)] * (x.scales.ndim - 2) + [(0, 1), (0, 0)]
        in_memory = np.moveaxis(np.pad(x.scales, padding), 1, 0)  # (heads, pages, tokens and one more, 1)
        heads, pages, tokens, one = in_memory.shape
        compact = in_memory.reshape(heads, -1)[:, : pages * (tokens - 1)]
        return replace(x, scales=np.moveaxis(compact.reshape(heads, pages, tokens - 1, one), 0, 1))

    changes = {leaf.path: misplaced(at(arguments, leaf.path)) for leaf in caches(operation)}
    return Library.prepare(correct, operation, changed(arguments, changes))
