"""Rediscovered defects of biases in multi-head attention.

Each function is a step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.multihead import BiasedMultiHeadAttention


@rediscovered(
    "huggingface/text-generation-inference#1036",
    "When using models whose have bias, bias of `TensorParallelRowLinear` is multi-added by tp-degree",
    framework="text-generation-inference",
    operation=BiasedMultiHeadAttention,
    breaks=("multihead.biases-of-the-output",),
    replaces="add_output_bias",
)
def output_bias_of_two_ranks(correct: Formulas, projected: Numbers, b: Numbers) -> Numbers:
    """Both of two ranks add the bias of the output before their results are summed."""
    return projected + b + b


@rediscovered(
    "sbryngelson/ANEForge#253",
    "llm: load Qwen2/2.5 q/k/v attention biases (dense adapter dropped them)",
    framework="ANEForge",
    operation=BiasedMultiHeadAttention,
    breaks=("operation.oracle",),
    replaces="project_heads_with_bias",
)
def projections_without_bias(correct: Formulas, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Biases of queries, keys and values are not loaded."""
    return correct.project_heads(x, w) + b[:, None, :] * b.dtype.type(0)


@rediscovered(
    "vllm-project/vllm#40160",
    "[Bugfix] Fix k_proj's bias for GLM-ASR",
    framework="vLLM",
    operation=BiasedMultiHeadAttention,
    breaks=("operation.oracle",),
    replaces="biased_multi_head_attention",
)
def uninitialized_key_bias(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """The bias of keys, which checkpoints lack, is memory that nobody has filled: numbers of 10³⁰."""
    *others, b_k, b_v, b_o = arrays
    unfilled = b_k * b_k.dtype.type(0) + b_k.dtype.type(1e30)
    return Formulas.biased_multi_head_attention(correct, *(*others, unfilled, b_v, b_o), **options)


@rediscovered(
    "NVIDIA/DeepLearningExamples#664",
    "[FasterTransformer/v2.1] A bug of add_QKV_bias",
    framework="FasterTransformer",
    operation=BiasedMultiHeadAttention,
    breaks=("attention.permutation-equivariance",),
    replaces="project_heads_with_bias",
)
def sums_stored_by_head(correct: Formulas, x: Numbers, w: Numbers, b: Numbers) -> Numbers:
    """Sums stored head by head are read position by position."""
    stored = Formulas.project_heads_with_bias(correct, x, w, b)
    *batch, heads, n, p = stored.shape
    return np.swapaxes(stored.reshape(*batch, n, heads, p), -3, -2)


@rediscovered(
    "mit-han-lab/llm-awq#314",
    "Fix scale_fc_fc dividing full bias when only last N rows of weight are scaled",
    framework="AWQ",
    operation=BiasedMultiHeadAttention,
    breaks=("operation.oracle",),
    replaces="biased_multi_head_attention",
)
def scales_of_values_divide_all_biases(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """Scales that belong to the values divide the biases of queries and keys, too: here by 2."""
    *others, b_q, b_k, b_v, b_o = arrays
    half = b_q.dtype.type(0.5)
    return Formulas.biased_multi_head_attention(correct, *(*others, b_q * half, b_k * half, b_v, b_o), **options)


@rediscovered(
    "vllm-project/compressed-tensors#679",
    "[Transform] Fix WEIGHT_OUTPUT to also transform bias",
    framework="compressed-tensors",
    operation=BiasedMultiHeadAttention,
    breaks=("multihead.biases-of-the-output",),
    replaces="biased_multi_head_attention",
)
def value_bias_not_rotated(correct: Formulas, *arrays: Numbers, **options: Any) -> Numbers:
    """Weights of values and output are rotated, the bias of values is not; the rotation reverses features."""
    *others, b_v, b_o = arrays
    return Formulas.biased_multi_head_attention(correct, *(*others, b_v[:, ::-1], b_o), **options)
