"""Rediscovered defects of the softmax of rows without keys, of large numbers and of NaN.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must
detect the defect. ``differentiate`` computes the gradients.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import Tape
from attnspec.conformance.mutants.roles import mask_of
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax


@rediscovered(
    "ml-explore/mlx#2395",
    "[Feature Request] Add Safe Softmax for SDPA",
    framework="MLX",
    operation=ScaledDotProductAttention,
    breaks=("attention.permutation-equivariance",),
    replaces="mask_scores",
)
def lowest_number(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are the lowest finite number: rows without keys are uniform, undeclared."""
    return scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)


@rediscovered(
    "pytorch/pytorch#103749",
    "SDPA produces NaN with padding mask",
    framework="PyTorch",
    operation=ScaledDotProductAttention,
    breaks=("operation.oracle",),
    replaces="normalized",
)
def zero_over_zero(correct: Formulas, scores: Numbers) -> Numbers:
    """Fully masked rows are NaN, undeclared."""
    exponentials = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / correct.total(exponentials)


@rediscovered(
    "pytorch/pytorch#41508",
    "nn.MultiheadAttention causes gradients to become NaN under some use cases",
    framework="PyTorch (nn.MultiheadAttention)",
    operation=MultiHeadAttention,
    breaks=("masking.masked-gets-no-gradient",),
    replaces="differentiate",
)
def poisoned_gradients(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """One query without keys makes the gradients of all weights NaN."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    mask = mask_of(operation, arguments)
    if mask is None or np.all(np.any(mask, axis=-1)):
        return gradients
    return {path: np.full_like(g, np.nan) for path, g in gradients.items()}


@rediscovered(
    "pytorch/pytorch#141128",
    "Possible regression of F.scaled_dot_product_attention on CPU in PyTorch 2.5",
    framework="PyTorch (CPU)",
    operation=ScaledDotProductAttention,
    breaks=("semantics.attendable_nan",),
    replaces="normalized",
)
def nan_hidden(correct: Formulas, scores: Numbers) -> Numbers:
    """Rows of NaN are taken for rows without keys and become 0."""
    weights = Formulas.normalized(correct, scores)
    return np.where(np.isnan(weights), scores.dtype.type(0), weights)


@rediscovered(
    "FluxML/NNlib.jl#43",
    "Fixed softmax for large negative numbers",
    framework="NNlib.jl",
    operation=Softmax,
    breaks=("masking.no-finite-fill",),
    replaces="shift",
)
def at_least_zero(correct: Formulas, scores: Numbers) -> Numbers:
    """The larger of the row's maximum and 0 is subtracted: rows far below 0 underflow."""
    return np.maximum(Formulas.shift(correct, scores), scores.dtype.type(0))


@rediscovered(
    "deeplearning4j/deeplearning4j#6039",
    "libnd4j - new SoftMax Op overflows and results in NaN",
    framework="Deeplearning4j",
    operation=Softmax,
    breaks=("masking.no-finite-fill",),
    replaces="shift",
)
def not_shifted(correct: Formulas, scores: Numbers) -> Numbers:
    """No maximum is subtracted: exponentials of large scores overflow."""
    return np.zeros_like(Formulas.shift(correct, scores))


@rediscovered(
    "pytorch/pytorch#121558",
    "Investigate NaNs in FlashAttention",
    framework="PyTorch (FlashAttention 2)",
    operation=ScaledDotProductAttention,
    replaces="normalized",
    dtype="bfloat16",
    needs="scores of 10¹²: correct kernels with fused multiply-adds overflow there, too",
)
def one_product_rounded(correct: Formulas, scores: Numbers) -> Numbers:
    """Only maximum·log₂e is rounded, not score·log₂e: their difference, and exp2, overflow for large scores."""
    if isinstance(scores, Tape):
        return Formulas.normalized(correct, scores)
    log2e = np.float64(1) / np.log(2)
    highest = (correct.shift(scores) * log2e).astype(scores.dtype)
    exponentials = np.exp2((scores * log2e - highest).astype(scores.dtype))
    total = correct.total(exponentials)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@rediscovered(
    "philipturner/metal-flash-attention#8",
    "Accuracy issues due to attention_matrix accumulated at half-precision & softmax_scale (alpha) applied after qk",
    framework="metal-flash-attention",
    operation=ScaledDotProductAttention,
    breaks=("operation.oracle",),
    replaces="dot_scores",
    dtype="float16",
    profile="full",
)
def scaled_too_late(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are stored in float16 before they are scaled, and overflow."""
    return rounded(Formulas.dot_scores(correct, query, key), "float16")


@rediscovered(
    "ikawrakow/ik_llama.cpp#1196",
    "Apply offfset to KQ_max in CUDA flash attention",
    framework="ik_llama.cpp (CUDA)",
    operation=ScaledDotProductAttention,
    replaces="attend",
    dtype="float16",
    needs="a sum of values that overflows float16 before the division: such values lie outside the domain",
)
def summed_in_half(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Weighted sums are stored in float16 before the division, and overflow."""
    attendable = correct.attendable(mask, causal, *scores.shape[-2:])
    excluded = correct.mask_scores(scores, attendable)
    exponentials = np.exp(excluded - correct.shift(excluded))
    total = correct.total(exponentials)
    summed = rounded(correct.pool(exponentials, value, attendable), "float16")
    return summed / np.where(total == 0, scores.dtype.type(1), total)
