"""Rediscovered defects of masks that are read at wrong offsets or misinterpreted.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must detect the defect. ``value_of(x)`` is x
without its record of gradients, so that no gradient flows through it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.multihead import MultiHeadAttention


@rediscovered(
    "pytorch/pytorch#184180",
    "[MPS] Fix SDPA vector kernel mask offset for partially broadcast masks",
    framework="PyTorch (MPS)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.combined-sizes",),
    replaces="scaled_dot_product_attention",
    profile="full",
)
def mask_of_another_element(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
) -> Numbers:
    """For up to 8 queries, masks shared by heads are indexed per head: batch elements get masks of others."""
    has_heads = mask is not None and mask.ndim == query.ndim > 3
    shared_by_heads = has_heads and mask.shape[-3] == 1 and query.shape[-3] > 1
    if shared_by_heads and mask.shape[:-3] == query.shape[:-3] and query.shape[-2] <= 8:
        *batch, heads = query.shape[:-2]
        elements = mask.reshape(-1, *mask.shape[-2:])
        offsets = np.arange(len(elements) * heads).reshape(*batch, heads)
        mask = elements[offsets % max(len(elements), 1)]
    return Formulas.scaled_dot_product_attention(correct, query, key, value, mask=mask, causal=causal)


@rediscovered(
    "pytorch/pytorch#63271",
    "multi_head_attention_forward 3D attention mask incorrect behavior",
    framework="PyTorch (nn.MultiheadAttention)",
    operation=MultiHeadAttention,
    breaks=("operation.broadcast-equals-repeat",),
    replaces="attendable",
)
def padded_queries_masked(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """If n = m, padded positions are also masked as queries, leaving them no keys."""
    if mask is not None and mask.shape[-2] == 1 and n == m:
        mask = mask & np.swapaxes(mask, -1, -2)
    return Formulas.attendable(correct, mask, causal, n, m)


@rediscovered(
    "tenstorrent/tt-metal#54833",
    "SDPA reads zero-padded mask columns when Sk % 32 != 0",
    framework="ttnn",
    operation=ScaledDotProductAttention,
    breaks=("pooling.convexity",),
    replaces="softmax",
    dtype="bfloat16",
)
def padding_of_the_mask(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Under a mask, padding columns of the last tile of 32 count with score 0."""
    excluded, m = correct.mask_scores(scores, mask), scores.shape[-1]
    filled = np.zeros((*excluded.shape[:-1], -m % 32 if mask is not None else 0), scores.dtype)
    return correct.normalized(np.concatenate([excluded, filled], axis=-1))[..., :m]


@rediscovered(
    "ml-explore/mlx#3360",
    "[BUG] SDPA NAX kernel: int16 overflow in mask col_pos for KV sequences > 32K",
    framework="MLX (Metal)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-sizes",),
    replaces="attendable",
    profile="full",
)
def columns_in_16_bits(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Columns of the mask are counted in int16, which is negative beyond 32,767: other columns are read."""
    if mask is not None and m > 2**15:
        columns = (np.arange(m) + 2**15) % 2**16 - 2**15
        rows = np.broadcast_to(mask, (*mask.shape[:-2], n, m)).reshape(*mask.shape[:-2], n * m)
        mask = rows[..., np.maximum(np.arange(n)[:, None] * m + columns, 0)]
    return Formulas.attendable(correct, mask, causal, n, m)


@rediscovered(
    "onnx/onnx#8068",
    "Fix Attention is_causal causal-mask alignment + composed is_causal/attn_mask NaN robustness "
    "for external (static) KV cache (#8054)",
    framework="ONNX (function body of Attention)",
    operation=ScaledDotProductAttention,
    breaks=("pooling.convexity",),
    replaces="mask_scores",
)
def multiplied_by_infinity(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """−∞ times the inverted mask is added to the scores: 0 · ∞ makes attendable ones NaN."""
    return scores if mask is None else scores + (~mask).astype(scores.dtype) * scores.dtype.type(-np.inf)


@rediscovered(
    "pytorch/pytorch#101967",
    "scaled_dot_product_attention produces NaN when input has NaN in masked-out positions",
    framework="PyTorch",
    operation=ScaledDotProductAttention,
    breaks=("masking.masked-gets-no-gradient",),
    replaces="mask_scores",
)
def added_to_nan(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """−∞ is added to masked scores, which leaves masked NaN as NaN: in weights, results and gradients."""
    zero, infinity = scores.dtype.type(0), scores.dtype.type(np.inf)
    return scores if mask is None else scores + np.where(mask, zero, -infinity)


@rediscovered(
    "Dao-AILab/flash-attention#1745",
    "FlashAttention3 propagates NaN from KVCache paddings to output",
    framework="FlashAttention 3",
    operation=ScaledDotProductAttention,
    breaks=("masking.masked-gets-no-gradient",),
    replaces="pool",
    dtype="float16",
)
def zero_times_padding(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Weights of 0 multiply NaN in padded values, and 0·NaN is NaN: in results, and in gradients of the scores."""
    return correct.attention_pooling(weights, value)


@rediscovered(
    "pytorch/pytorch#127055",
    "MultiheadAttention returns NaNs when need_weights=False for long sequences with a mask that ignores old tokens",
    framework="PyTorch (CPU)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-sizes",),
    replaces="softmax",
    profile="full",
)
def first_tile_without_keys(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """With more than 512 keys, rows whose first 512 keys are masked are NaN: they compute exp(−∞ + ∞)."""
    weights = Formulas.softmax(correct, scores, mask=mask)
    if mask is None or value_of(scores).shape[-1] <= 512:
        return weights
    without_keys = ~np.any(np.broadcast_to(mask, scores.shape)[..., :512], axis=-1, keepdims=True)
    return np.where(without_keys, weights.dtype.type(np.nan), weights)
