"""Rediscovered defects of causal masks, alone and together with another mask.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must detect the defect. ``x * x.dtype.type(0)``
leaves x out but keeps its shape.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import CrossAttention, ProjectedSelfAttention, ScaledDotProductAttention, SelfAttention
from attnspec.spec.multihead import MultiHeadAttention


@rediscovered(
    "pytorch/pytorch#195910",
    "[MPS] scaled_dot_product_attention with is_causal=True leaks future tokens in float16/bfloat16",
    framework="PyTorch (MPS)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.convexity",),
    replaces="causal_mask",
    dtype="bfloat16",
)
def in_groups_of_four(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is j ≤ 4⌊i/4⌋ + 3, the same for every four queries: three of them see future keys."""
    return np.arange(m) <= np.arange(n)[:, None] // 4 * 4 + 3


@rediscovered(
    "microsoft/onnxruntime#29020",
    "Opset-23 Attention op: is_causal alignment differs between CPU (bottom-right) and CUDA (upper-left) "
    "for q_len < kv_len with no past",
    framework="ONNX Runtime (CPU)",
    operation=ScaledDotProductAttention,
    breaks=("semantics.causal_alignment",),
    replaces="causal_mask",
)
def shifted_where_fewer_queries(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """With fewer queries than keys the causal mask starts at the bottom right, undeclared."""
    return np.arange(m) <= np.arange(n)[:, None] + max(m - n, 0)


@rediscovered(
    "ml-explore/mlx#2836",
    "Fix causal mask alignment in scaled_dot_product_attention (Fixes #2835)",
    framework="MLX",
    operation=ScaledDotProductAttention,
    breaks=("masking.future-invariance",),
    replaces="causal_mask",
)
def bottom_right(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is aligned at the bottom right wherever n ≠ m, undeclared."""
    return np.arange(m) <= np.arange(n)[:, None] + m - n


@rediscovered(
    "Dao-AILab/flash-attention#1778",
    "seems to not support the case where seq_q is longer than seq_k and (Is_causal || Is_local) == True",
    framework="FlashAttention 2",
    operation=ScaledDotProductAttention,
    breaks=("semantics.causal_alignment",),
    replaces="causal_mask",
    dtype="float16",
)
def first_rows_without_keys(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """With more queries than keys the first n − m rows have no keys, undeclared."""
    return np.arange(m) <= np.arange(n)[:, None] - max(n - m, 0)


@rediscovered(
    "keras-team/keras#23038",
    "MultiHeadAttention silently drops the causal mask when `use_causal_mask=True` and the fused SDPA path is disabled "
    "(dropout > 0, `return_attention_scores=True`, or non-4D inputs) — regression in #22910",
    framework="Keras",
    operation=MultiHeadAttention,
    breaks=("masking.equals-explicit-mask",),
    replaces="attend_heads",
)
def dropped_without_fused_path(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, mask: Numbers, causal: bool
) -> Numbers:
    """Without another mask, the causal mask is ignored unless there is exactly one batch dimension."""
    applied = causal and (mask is not None or query.ndim == 4)
    return Formulas.attend_heads(correct, query, key, value, mask, applied)


@rediscovered(
    "facebookresearch/xformers#103",
    "[bug] Causal mask is skipped if no att_mask is passed",
    framework="xFormers",
    operation=ScaledDotProductAttention,
    breaks=("masking.masked-gets-no-gradient",),
    replaces="attendable",
)
def only_beside_a_mask(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Without another mask, the causal mask is skipped."""
    return Formulas.attendable(correct, mask, causal and mask is not None, n, m)


@rediscovered(
    "AI-Hypercomputer/maxtext#878",
    "Mask is being ignored when cudnn_flash_attention is used",
    framework="MaxText (TransformerEngine)",
    operation=ScaledDotProductAttention,
    breaks=("masking.future-invariance",),
    replaces="attendable",
)
def other_mask_ignored(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """With the causal flag, any other mask is ignored."""
    return Formulas.attendable(correct, None if causal else mask, causal, n, m)


@rediscovered(
    "huggingface/transformers#41966",
    "Fix GPT-2 Flash Attention 2 generation with left-padding",
    framework="Transformers (GPT-2)",
    operation=MultiHeadAttention,
    breaks=("masking.equals-explicit-mask",),
    replaces="attendable",
)
def off_beside_padding(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """A padding mask switches the causal mask off."""
    return Formulas.attendable(correct, mask, causal and mask is None, n, m)


@rediscovered(
    "huggingface/transformers#38094",
    "In Llama4 fix wrongly inverted causal attention mask when using SDPA implementation",
    framework="Transformers (Llama 4)",
    operation=ProjectedSelfAttention,
    breaks=("masking.future-invariance",),
    replaces="attendable",
)
def inverted_by_conversion(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The joint mask is inverted: keys that should be masked are attended to, all others are not."""
    allowed = Formulas.attendable(correct, mask, causal, n, m)
    return None if allowed is None else ~allowed


@rediscovered(
    "vithursant/nanoGPT_mlx#6",
    "Attention mask is applied incorrectly",
    framework="nanoGPT in MLX",
    operation=SelfAttention,
    breaks=("pooling.convexity",),
    replaces="mask_scores",
)
def branches_exchanged(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """The branches of a `where` are exchanged: attendable keys are filled with −10⁹, masked ones keep their scores."""
    return scores if mask is None else np.where(mask, scores.dtype.type(-1e9), scores)


@rediscovered(
    "microsoft/onnxruntime#28904",
    "Update CPU/CUDA `Attention` kernels for bottom-right `is_causal` with `nonpad_kv_seqlen` (no `past_key`), and "
    "composed `is_causal` + `attn_mask`, per onnx/onnx#8068",
    framework="ONNX Runtime",
    operation=ScaledDotProductAttention,
    breaks=("attention.permutation-equivariance",),
    replaces="softmax",
)
def uniform_where_both_mask(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Rows that mask and causality together leave without keys are the mean of all values. Masks have a query axis."""
    weights = Formulas.softmax(correct, scores, mask=mask)
    if mask is None or mask.shape[-2] == 1:
        return weights
    without_keys = ~np.any(mask, axis=-1, keepdims=True)
    return np.where(without_keys, weights.dtype.type(1 / max(scores.shape[-1], 1)), weights)


@rediscovered(
    "huggingface/transformers#48172",
    "[Mllama] MllamaVisionAttention and MllamaTextCrossAttention never set self.is_causal — cross-attention is "
    "silently causal under sdpa",
    framework="Transformers (Mllama)",
    operation=CrossAttention,
    breaks=("pooling.unbiased-gain",),
    replaces="attendable",
)
def causal_by_default(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Without a mask, attention to a memory is causal."""
    return Formulas.attendable(correct, mask, mask is None, n, m)


@rediscovered(
    "NVIDIA/TransformerEngine#3528",
    "FA4 returns an all-zero output for causal attention on SM100 after flash-attention #2490",
    framework="TransformerEngine (FlashAttention 4)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.convexity",),
    replaces="attend",
    dtype="bfloat16",
)
def zero_where_causal(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """The result of causal attention is 0 throughout."""
    result = Formulas.attend(correct, scores, value, mask, causal)
    return result * result.dtype.type(0) if causal else result


@rediscovered(
    "Dao-AILab/flash-attention#2329",
    "SM120 forward pass (Blackwell GeForce / DGX Spark)",
    framework="FlashAttention 4 (SM80)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    replaces="scaled_dot_product_attention",
    dtype="float16",
    profile="full",
)
def restarted_sums(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
) -> Numbers:
    """For d > 64, causal queries 64–127 of each 128 ignore their own 64-key tile."""
    if causal and query.shape[-1] > 64:
        rows, columns = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])
        outside_lost_tile = (rows % 128 < 64) | (columns // 64 != rows // 64)
        mask = outside_lost_tile if mask is None else outside_lost_tile & mask
    return Formulas.scaled_dot_product_attention(correct, query, key, value, mask=mask, causal=causal)
