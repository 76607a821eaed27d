"""Rediscovered defects at sizes that a kernel's tiles or grid do not cover.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must detect the defect. ``value_of(x)`` is x
without its record of gradients, so that no gradient flows through it. ``x * x.dtype.type(0)`` leaves x out but keeps
its shape.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import DotProductAttention, ScaledDotProductAttention


def padded_weights(correct: Formulas, scores: Numbers, count: int) -> Numbers:
    """Weights of the keys beside ``count`` further keys of score 0."""
    filled = np.zeros((*scores.shape[:-1], count), scores.dtype)
    return correct.normalized(np.concatenate([scores, filled], axis=-1))[..., : scores.shape[-1]]


@rediscovered(
    "pytorch/pytorch#169222",
    "[MPS] Fix out-of-bounds memory access in SDPA vector kernels",
    framework="PyTorch (MPS)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    replaces="scaled_dot_product_attention",
    profile="full",
)
def beyond_the_keys(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
) -> Numbers:
    """Keys of score and value 0 fill the last tile of 32: for up to 8 unmasked queries with d = 64, 96 or 128."""
    n, m, d = query.shape[-2], key.shape[-2], query.shape[-1]
    if causal or mask is not None or not 0 < n <= min(8, m) or d not in (64, 96, 128):
        return Formulas.scaled_dot_product_attention(correct, query, key, value, mask=mask, causal=causal)
    return correct.attention_pooling(padded_weights(correct, correct.scaled_dot_scores(query, key), -m % 32), value)


@rediscovered(
    "flashinfer-ai/flashinfer#5090",
    "fix(sparse): correct SM100 blk64 output when seqlen_k % 64 != 0",
    framework="FlashInfer (SM100)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.convexity",),
    replaces="normalized",
    dtype="bfloat16",
)
def tail_of_64(correct: Formulas, scores: Numbers) -> Numbers:
    """Keys that pad the last block of 64 are 0 and count as exp(0)."""
    m = scores.shape[-1]
    filled = np.zeros((*scores.shape[:-1], -m % 64), scores.dtype)
    return Formulas.normalized(correct, np.concatenate([scores, filled], axis=-1))[..., :m]


@rediscovered(
    "triton-lang/triton#621",
    "FlashAttention implementation gives wrong output when head dim != 64",
    framework="Triton (tutorial)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.unbiased-gain",),
    replaces="dot_scores",
    dtype="float16",
)
def first_64_features(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are computed from the first 64 features only."""
    return Formulas.dot_scores(correct, query[..., :64], key[..., :64])


@rediscovered(
    "mni-ml/framework#39",
    "fix: flash attention CUDA kernel truncating head dimensions > 32",
    framework="mni-ml",
    operation=ScaledDotProductAttention,
    breaks=("sizes.model-sizes",),
    replaces="pool",
)
def first_32_columns(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Columns of the result beyond the 32nd are 0: there is one thread per column, at most 32."""
    result = Formulas.pool(correct, weights, value, mask)
    return np.where(np.arange(result.shape[-1]) < 32, result, result.dtype.type(0))


@rediscovered(
    "flashinfer-ai/flashinfer#3125",
    "trtllm-gen attention error on large batch size",
    framework="FlashInfer (TensorRT-LLM)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-sizes",),
    replaces="attend",
    dtype="bfloat16",
    profile="full",
)
def grid_of_batches(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """A batch of more than 65,535 exceeds the grid: results are 0, and no error is raised."""
    result = Formulas.attend(correct, scores, value, mask, causal)
    count = int(np.prod(result.shape[:-2]))
    return result * result.dtype.type(0) if count > 65_535 else result


@rediscovered(
    "pytorch/pytorch#177985",
    "Fix SDPA mem-efficient attention crash when num_heads >= 65536",
    framework="PyTorch (memory-efficient kernel)",
    operation=DotProductAttention,
    breaks=("sizes.large-sizes",),
    replaces="attend",
    profile="full",
)
def grid_of_heads(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """More than 65,535 heads exceed the grid: results are 0, and no error is raised."""
    result = Formulas.attend(correct, scores, value, mask, causal)
    heads = result.shape[-3] if result.ndim > 2 else 1
    return np.where(heads > 65_535, value_of(result) * 0, result)


@rediscovered(
    "pytorch/pytorch#176767",
    "MPS: scaled_dot_product_attention returns wrong output shape when value dim != query/key dim",
    framework="PyTorch (MPS)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.linearity",),
    replaces="scaled_dot_product_attention",
)
def as_wide_as_queries(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
) -> Numbers:
    """The result is cut or padded with 0 to the queries' width, not the values'."""
    result = Formulas.scaled_dot_product_attention(correct, query, key, value, mask=mask, causal=causal)
    missing = np.zeros((*result.shape[:-1], max(query.shape[-1] - result.shape[-1], 0)), result.dtype)
    return np.concatenate([result, missing], axis=-1)[..., : query.shape[-1]]
