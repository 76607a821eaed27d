"""Rediscovered defects of RMS normalization.

Each function is a step of ``Formulas``, the correct formulas, or of ``Library`` with a defect; ``replaces`` names it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.roles import arrays
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.operation import Operation
from attnspec.spec.transformer import AddRMSNorm, RMSNorm


@rediscovered(
    "vllm-project/vllm#53203",
    "[GemmaRMSNorm] Fix GemmaRMSNorm not dispatching to fused kernel",
    framework="vLLM",
    operation=RMSNorm,
    breaks=("transformer.rms-norm-unbiased-factor",),
    dtype="bfloat16",
    replaces="rms_factor",
    declares={"rms_weight": "plus-one"},
    differentiable=False,
)
def weight_plus_one_in_bfloat16(correct: Formulas, weight: Numbers) -> Numbers:
    """1 + w is computed in bfloat16: the weight 0.05 becomes 0.046875."""
    return rounded(weight + 1, "bfloat16")


@rediscovered(
    "sgl-project/sglang#27540",
    "[gemma4] Compute RMSNorm in fp32 to fix deep-layer hidden-state divergence vs HF",
    framework="SGLang",
    operation=RMSNorm,
    breaks=("operation.oracle",),
    dtype="bfloat16",
    profile="full",
    replaces="variance",
    differentiable=False,
)
def squares_summed_in_bfloat16(correct: Formulas, centred: Numbers) -> Numbers:
    """The sum of squares is kept in bfloat16, where small squares no longer change it."""
    total = np.zeros_like(centred[..., :1])
    for i in range(centred.shape[-1]):
        square = rounded(centred[..., i : i + 1] * centred[..., i : i + 1], "bfloat16")
        total = rounded(total + square, "bfloat16")
    return total / centred.dtype.type(centred.shape[-1])


@rediscovered(
    "allenai/OLMo#281",
    "Our RMSnorm implementation is very different from how it is implemented elsewhere",
    framework="OLMo",
    operation=RMSNorm,
    breaks=("operation.oracle",),
    replaces="root_mean_square",
)
def epsilon_beside_the_root(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """Rows are divided by √s + ε."""
    return np.sqrt(correct.variance(x)) + x.dtype.type(epsilon)


@rediscovered(
    "mosaicml/llm-foundry#372",
    "fixed rmsnorm bug. Changed division to multiply since using torch.rsqrt",
    framework="LLM Foundry",
    operation=RMSNorm,
    breaks=("transformer.rms-norm-mean-square",),
    replaces="root_mean_square",
)
def divided_by_the_reciprocal(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """Rows are divided by 1/√(s + ε), not multiplied."""
    return 1 / Formulas.root_mean_square(correct, x, epsilon)


@rediscovered(
    "ml-explore/mlx-lm#1624",
    "[kimi_linear] Fix KDA q/k normalization eps to match reference l2norm semantics",
    framework="MLX LM",
    operation=RMSNorm,
    breaks=("transformer.rms-norm-mean-square",),
    replaces="root_mean_square",
)
def epsilon_of_the_sum(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """ε is added to the sum of squares in place of the mean: it counts d times too little."""
    return Formulas.root_mean_square(correct, x, epsilon / x.shape[-1])


@rediscovered(
    "lucidrains/x-transformers#352",
    "Bug: `qk_norm_q_scale` / `qk_norm_k_scale` not applied in forward pass",
    framework="x-transformers",
    operation=RMSNorm,
    breaks=("operation.oracle",),
    replaces="rms_factor",
)
def weight_never_applied(correct: Formulas, weight: Numbers) -> Numbers:
    """The weight is created but not multiplied with."""
    return weight * weight.dtype.type(0) + weight.dtype.type(1)


@rediscovered(
    "vllm-project/vllm#16311",
    "[BugFix] llama4 qknorm should be not shared across head",
    framework="vLLM",
    operation=RMSNorm,
    breaks=("operation.oracle",),
    replaces="root_mean_square",
)
def one_norm_for_all_heads(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """All heads of a position share the mean square of their features together."""
    squares = correct.variance(x)
    shared = np.mean(squares, axis=-2, keepdims=True) if value_of(x).ndim > 1 else squares
    return np.sqrt(shared + x.dtype.type(epsilon))


@rediscovered(
    "NeuraLegion/shainet#176",
    "Qwen3.5 generates coherent text: offset-from-one RMSNorm and the missing query scale",
    framework="SHAInet",
    operation=RMSNorm,
    breaks=("semantics.rms_weight",),
    replaces="rms_factor",
    declares={"rms_weight": "plus-one"},
)
def offset_read_as_factor(correct: Formulas, weight: Numbers) -> Numbers:
    """Weights that are stored as offsets from 1 multiply the rows as they are."""
    return weight


@rediscovered(
    "GeeeekExplorer/nano-vllm#170",
    "RMSNorm rms forward has a bug in the float32 case where the input matrix is modified",
    framework="nano-vLLM",
    operation=RMSNorm,
    breaks=("operation.no-mutation",),
    replaces="finish",
)
def rows_normalized_in_place(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """In float32 the rows of the caller are divided by their root mean square."""
    (x,) = (array for leaf, array in arrays(operation, arguments) if leaf.batched)
    x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(1e-6))
    return Library.finish(correct, operation, result, arguments)


@rediscovered(
    "vllm-project/vllm#35369",
    "[Bug] correct out dtype of rms_norm_gated native path",
    framework="vLLM",
    operation=RMSNorm,
    breaks=("operation.dtype",),
    dtype="bfloat16",
    replaces="finish",
)
def result_in_float32(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Rows of 16 bits give results in float32."""
    return result


@rediscovered(
    "vllm-project/vllm#52104",
    "[Bug]: vllm_c fused_add_rms_norm rounds the residual sum before variance",
    framework="vLLM",
    operation=AddRMSNorm,
    breaks=("sizes.model-sizes",),
    dtype="bfloat16",
    replaces="rms_norm",
    differentiable=False,
)
def sum_rounded_before_the_norm(correct: Formulas, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
    """The sum is rounded to bfloat16 before it is normalized, and nothing declares it."""
    return Formulas.rms_norm(correct, rounded(x, "bfloat16"), weight, epsilon=epsilon)


@rediscovered(
    "sgl-project/sglang#25920",
    "[bugfix] Honor cast_x_before_out_mul in RMSNorm.forward_cuda residual path",
    framework="SGLang",
    operation=AddRMSNorm,
    breaks=(),
    needs="a model that was trained with a rounding before the weight: the product without it is nearer to the formula",
    dtype="bfloat16",
    replaces="rms_norm",
    differentiable=False,
)
def rounded_after_the_weight(correct: Formulas, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
    """With a residual, rows are rounded after the product with the weight, not before it."""
    return Formulas.rms_norm(correct, x, weight, epsilon=epsilon)


@rediscovered(
    "vllm-project/vllm#42379",
    "[Bugfix] Fix RMSNorm kernels to multiply in weight's native dtype",
    framework="vLLM",
    operation=RMSNorm,
    breaks=(),
    needs="a model that was trained with a rounding before the weight: the product without it is nearer to the formula",
    dtype="bfloat16",
    replaces="rms_norm",
    differentiable=False,
)
def weight_in_float32(correct: Formulas, x: Numbers, weight: Numbers, *, epsilon: float = 1e-6) -> Numbers:
    """Rows are multiplied by the weight in float32, not in bfloat16."""
    return Formulas.rms_norm(correct, x, weight, epsilon=epsilon)


@rediscovered(
    "pytorch/pytorch#189581",
    "[Bug] nn.RMSNorm produces wildly incorrect normalization constants for bfloat16 tensors with small variances",
    framework="PyTorch",
    operation=RMSNorm,
    breaks=("operation.oracle",),
    dtype="bfloat16",
    replaces="root_mean_square",
)
def epsilon_of_the_dtype(correct: Formulas, x: Numbers, epsilon: float) -> Numbers:
    """ε is the distance from 1 to the next number of bfloat16, 2⁻⁷."""
    return Formulas.root_mean_square(correct, x, 2.0**-7)
