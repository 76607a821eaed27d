"""Rediscovered defects of gradients; the results are right.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. A law in ``breaks`` must detect the defect. ``differentiate``
computes the gradients.
"""

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Library, Numbers
from attnspec.conformance.mutants.roles import at, changed, key, mask_of, query, sizes
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation


@rediscovered(
    "triton-lang/triton#4541",
    "[Tutorial] Fused-attention `bwd` tutorial incorrect for `causal=True`",
    framework="Triton (tutorial)",
    operation=ScaledDotProductAttention,
    breaks=("operation.gradient",),
    replaces="differentiate",
    dtype="float16",
)
def always_causal(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The backward pass ignores the flag and is always causal."""
    return Library.differentiate(correct, operation, {**arguments, str(operation.flag): True}, cotangent)


@rediscovered(
    "Dao-AILab/flash-attention#498",
    "gtest fail for backward, Headdim>=160 on A100, cuda11.4",
    framework="FlashAttention 2.0.9",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="float16",
    profile="full",
)
def wide_heads(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """For d ≥ 160, all gradients are 100 times too large."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    _, _, d, _ = sizes(operation, arguments)
    return {path: g * g.dtype.type(100 if d >= 160 else 1) for path, g in gradients.items()}


@rediscovered(
    "Dao-AILab/flash-attention#2552",
    "[Bug] SM100 backward kernel produces incorrect dV for MLA shapes whose `head_dim_v` isn't aligned "
    "to `dK_reduce_ncol`",
    framework="FlashAttention 4 (SM100)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="bfloat16",
    profile="full",
)
def columns_of_keys(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """For d ≥ 128, some columns of dV are stored one place too far: those that do not fill a step of dK."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    *_, d, columns = sizes(operation, arguments)
    half = columns // 16 * 8
    step = gcd(32, d // 16 * 8)
    if d < 128 or not half or half % step == 0:
        return gradients
    path, misplaced = operation.attended[-1].path, np.arange(columns)
    misplaced[half // step * step : half] = np.roll(misplaced[half // step * step : half], 1)
    return {**gradients, path: gradients[path][..., misplaced]}


@rediscovered(
    "NVIDIA/TransformerEngine#3216",
    "flash-attn-4 4.0.0b11: DotProductAttention batched backward returns wrong dQ/dK/dV at head_dim=256 "
    "on Blackwell (sm_100)",
    framework="TransformerEngine (FlashAttention 4)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="bfloat16",
    profile="full",
)
def trained_activations(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """dQ is multiplied by −5 if max |q| ≥ 8 times the rms of q: for d = 256 and several batch elements."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = query(operation)
    q = at(arguments, path)
    several = q.ndim > 2 and int(np.prod(q.shape[:-2])) > 1
    if q.shape[-1] != 256 or not several or np.max(np.abs(q)) < 8 * np.sqrt(np.mean(q * q)):
        return gradients
    return {**gradients, path: -5 * gradients[path]}


def exp_overflows(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> bool:
    """True if exp(−log-sum-exp) of any query overflows in float32."""
    q, k = (at(arguments, path) for path in (query(operation), key(operation)))
    scores = correct.formulas.scaled_dot_scores(q, k).astype(np.float64)
    highest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    sums = highest[..., 0] + np.log(np.sum(np.exp(scores - highest), axis=-1))
    return bool(np.any(sums < -np.log(np.finfo(np.float32).max)))


@rediscovered(
    "NVIDIA/cudnn-frontend#1072",
    "[Bug]: cuDNN 9.26 SDPA backward returns NaN dK/dV for Sq=1 with negative LSE on H200",
    framework="cuDNN",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="bfloat16",
    profile="full",
)
def one_negative_sum(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """For a single unmasked query, dK and dV are NaN if exp(−log-sum-exp) overflows."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    n, m, *_ = sizes(operation, arguments)
    if n != 1 or not m or mask_of(operation, arguments) is not None or not exp_overflows(correct, operation, arguments):
        return gradients
    return {**gradients, **{leaf.path: np.full_like(gradients[leaf.path], np.nan) for leaf in operation.attended}}


@rediscovered(
    "pytorch/pytorch#196678",
    "[SDPA] cuDNN backward returns NaN grad_q for seq_len % 128 == 64 with attn_mask on H100/H200 "
    "(regression since 2.11, default backend)",
    framework="PyTorch (cuDNN)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="bfloat16",
    profile="full",
)
def half_a_tile(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Under a mask, dQ is NaN if exp(−log-sum-exp) of any query overflows: for m mod 128 = 64."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path, (_, m, *_) = query(operation), sizes(operation, arguments)
    half = m % 128 == 64 and mask_of(operation, arguments) is not None
    if not half or not exp_overflows(correct, operation, arguments):
        return gradients
    return {**gradients, path: np.full_like(gradients[path], np.nan)}


@rediscovered(
    "NVIDIA/cudnn-frontend#160",
    "CUDNN SDPA backward results in NaN outputs",
    framework="cuDNN",
    operation=ScaledDotProductAttention,
    breaks=("operation.gradient",),
    replaces="differentiate",
    dtype="bfloat16",
)
def no_multiple(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients are NaN if n or m is not a multiple of 64."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    n, m, *_ = sizes(operation, arguments)
    wrong = n % 64 or m % 64
    return {path: np.full_like(g, np.nan) if wrong else g for path, g in gradients.items()}


@rediscovered(
    "Dao-AILab/flash-attention#2623",
    "[CuTe/SM90] Block-sparse backward returns silently-wrong gradients for head_dim=64 (forward is exact)",
    framework="FlashAttention 4 (SM90)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="bfloat16",
    profile="full",
)
def mask_not_transposed(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """For d = 64 and n = m, the backward pass reads the mask transposed."""
    n, m, d, _ = sizes(operation, arguments)
    mask = mask_of(operation, arguments)
    if d == 64 and n == m and mask is not None and mask.shape[-2] == n and operation.mask is not None:
        arguments = changed(arguments, {operation.mask.path: np.swapaxes(mask, -1, -2)})
    return Library.differentiate(correct, operation, arguments, cotangent)


@rediscovered(
    "Dao-AILab/flash-attention#334",
    "[flashv2] NaNs in bw pass for some inputs",
    framework="FlashAttention 2.0.0",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-size-gradients",),
    replaces="differentiate",
    dtype="float16",
    profile="full",
)
def one_by_one(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """For one query and one key, dQ is NaN in place of 0."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = query(operation)
    return {**gradients, path: gradients[path] * np.nan} if sizes(operation, arguments)[:2] == (1, 1) else gradients


@rediscovered(
    "Lightning-AI/lightning-thunder#1578",
    "sdpaex : fix backward when attn_mask is not provided",
    framework="Lightning Thunder",
    operation=ScaledDotProductAttention,
    breaks=("attention.gradient-identities",),
    replaces="differentiate",
)
def shape_of_no_mask(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Without a mask, the backward pass raises: it reads the shape of the missing mask."""
    if mask_of(operation, arguments) is None:
        raise AttributeError("'NoneType' object has no attribute 'shape'")
    return Library.differentiate(correct, operation, arguments, cotangent)
