"""Rediscovered defects of selected attention and of masks of blocks.

Each function is a step of ``Formulas``, the correct formulas, or of ``Library`` with a defect; ``replaces`` names it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.selected import BlockMask, IndexerScores, SelectedAttention, TopKeys


@rediscovered(
    "huggingface/transformers#44690",
    "Fix missing ReLU in GLM-MOE-DSA indexer scoring",
    framework="transformers",
    operation=IndexerScores,
    breaks=("selected.indexer-rectifies-products",),
    replaces="rectified",
)
def negative_products(correct: Formulas, products: Numbers) -> Numbers:
    """Negative products of heads lower the score of a key."""
    return products


@rediscovered(
    "ml-explore/mlx-lm#531",
    "Fix sparse token selection in deepseek v3.2",
    framework="mlx-lm",
    operation=IndexerScores,
    breaks=("operation.shape",),
    replaces="summed_heads",
)
def scores_of_each_head(correct: Formulas, terms: Numbers) -> Numbers:
    """Scores are not summed over heads, so that each head selects its own keys."""
    return terms


@rediscovered(
    "sgl-project/sglang#35257",
    "[Bug] DSA top-k v2: tie-overflow selection is not exact — silently returns wrong top-k members "
    "(follow-up to #30512 / #30645)",
    framework="SGLang",
    operation=TopKeys,
    replaces="top_keys",
    needs="rows with more than 2,048 scores that float16 does not tell apart from the k-th greatest",
)
def first_2048_of_a_bin(correct: Formulas, scores: Numbers, count: int) -> Numbers:
    """Scores in the bin of the k-th greatest are dropped after the first 2,048."""
    with np.errstate(over="ignore"):
        bins = scores.astype(np.float16)
    is_kth = Formulas.ranks(correct, scores) == min(count, scores.shape[-1]) - 1
    in_bin = bins == np.max(np.where(is_kth, bins, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    dropped = in_bin & (np.cumsum(in_bin, axis=-1) > 2048)
    return Formulas.top_keys(correct, np.where(dropped, scores.dtype.type(-np.inf), scores), count)


@rediscovered(
    "sgl-project/sglang#30698",
    "[Cherry-pick to release/v0.5.15] [DSA] Fix top-k v2 emitting invalid indices under tie overflow / inf scores "
    "(IMA in FA3 sparse decode) (#30645)",
    framework="SGLang",
    operation=TopKeys,
    breaks=("selected.top-keys-are-greatest",),
    replaces="visible_keys",
)
def keys_of_minus_infinity(correct: Formulas, scores: Numbers) -> Numbers:
    """Hidden keys are selected where fewer than k are visible."""
    return np.ones(scores.shape, bool)


@rediscovered(
    "NVIDIA-NeMo/Automodel#3035",
    "fix(glm_moe_dsa): clamp DSA indexer top-k for short sequences",
    framework="NeMo Automodel (TileLang)",
    operation=TopKeys,
    breaks=("operation.oracle",),
    replaces="top_keys",
)
def more_than_there_are(correct: Formulas, scores: Numbers, count: int) -> Numbers:
    """A sequence shorter than k raises."""
    if count > scores.shape[-1]:
        raise RuntimeError("selected index k out of range")
    return Formulas.top_keys(correct, scores, count)


@rediscovered(
    "vllm-project/vllm#48366",
    "[Bugfix] Prevent NaN poisoning in xpu_mla_sparse for fully-masked index chunks",
    framework="vLLM (XPU)",
    operation=SelectedAttention,
    breaks=("selected.order-of-selection",),
    replaces="selected_attention",
)
def first_chunk_without_keys(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, indices: Numbers, **options: Any
) -> Numbers:
    """A row is NaN if its first 16 indices name no key.

    The running maximum is −∞, and exp(−∞ + ∞) is NaN.
    """
    output = Formulas.selected_attention(correct, query, key, value, indices, **options)
    empty = np.all(indices[..., :16] < 0, axis=-1)
    shared = np.broadcast_to(empty, (*empty.shape[:-2], key.shape[-3], empty.shape[-1]))
    rows = np.repeat(shared, query.shape[-3] // key.shape[-3], axis=-2)
    return np.where(rows[..., None], output.dtype.type(np.nan), output)


@rediscovered(
    "lablup/mlxcel#619",
    "fix(deepseek_v32): add causal-mask fallback so prefill is not bidirectional (same class as #618)",
    framework="mlxcel",
    operation=SelectedAttention,
    breaks=("operation.oracle",),
    replaces="attendable",
)
def bidirectional(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Without a mask from the caller, later keys count."""
    return Formulas.attendable(correct, mask, False, n, m)


@rediscovered(
    "kuleshov-group/bd3lms#23",
    "issue about the block mask",
    framework="PyTorch (FlexAttention), as called by BD3-LM",
    operation=BlockMask,
    breaks=("selected.positions-of-a-block",),
    replaces="expanded_blocks",
)
def blocks_of_default_size(correct: Formulas, blocks: Numbers, axis: int, size: int, count: int) -> Numbers:
    """The size of blocks is not passed on; it is 128 by default."""
    return Formulas.expanded_blocks(correct, blocks, axis, 128, count)


@rediscovered(
    "huggingface/transformers#45881",
    "[deepseek_v4] fix CSA per-query masking in eager path",
    framework="transformers",
    operation=SelectedAttention,
    breaks=("selected.selection-is-mask",),
    replaces="selected_keys",
)
def keys_of_every_query(correct: Formulas, indices: Numbers, m: int) -> Numbers:
    """A query also attends to the keys that others have selected."""
    selected = Formulas.selected_keys(correct, indices, m)
    return np.broadcast_to(np.any(selected, axis=-2, keepdims=True), selected.shape)


@rediscovered(
    "NVIDIA/cudnn-frontend#385",
    "[Bug] Sparse Attention Backward (`_FLASH_ATTN_BWD_SM90`) produces catastrophically wrong gradients on SM90",
    framework="cuDNN frontend",
    operation=SelectedAttention,
    breaks=("operation.gradient",),
    replaces="vjp",
)
def gradient_of_one_query(
    correct: Library, operation: str, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """A key that several queries select gets the gradient of one of them."""
    gradients = Library.vjp(correct, operation, arguments, cotangent)
    stored = {leaf.path: np.zeros_like(gradients[leaf.path]) for leaf in OPERATIONS[operation].attended}
    queries = np.arange(cotangent.shape[-2])[:, None]
    for i in range(len(queries)):
        of_query = np.where(queries == i, cotangent, cotangent.dtype.type(0))
        parts = Library.vjp(correct, operation, arguments, of_query)
        stored = {path: np.where(parts[path] != 0, parts[path], x) for path, x in stored.items()}
    return gradients | stored
