"""Mutants whose scale is wrong in some keys, features, heads or calls only.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import CrossAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.kernels import GroupedQueryAttention, RotaryEmbedding
from attnspec.spec.multihead import MultiHeadAttention

TILE = 128
"""Number of keys or features in a tile."""

SCORE_FACTOR = 1.01
"""Factor on the scores: 1 % is less than bfloat16 rounds a single element, more than it rounds their average."""


@mutant(
    "scores 1 % too large from the 129th key on in bfloat16",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention, CrossAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a scale that is rounded where the second tile begins",
    profile="full",
    differentiable=False,
)
def later_tiles(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are 1 % too large from the 129th key on; earlier ones are right."""
    later = np.arange(scores.shape[-1]) >= TILE
    return Formulas.scale_scores(correct, scores, d) * np.where(later, SCORE_FACTOR, 1.0).astype(scores.dtype)


@mutant(
    "scores 1 % too large for 129 features and more in bfloat16",
    replaces="scale_scores",
    operations=(ScaledDotProductAttention,),
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a scale of two digits in the kernel for wide heads",
    profile="full",
    differentiable=False,
)
def wide_heads(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are 1 % too large for more than 128 features; other widths are right."""
    scaled = Formulas.scale_scores(correct, scores, d)
    return scaled * scores.dtype.type(SCORE_FACTOR) if d > TILE else scaled


@mutant(
    "scores 1 % too large under a mask in bfloat16",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, CrossAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a scale of two digits in the kernel for masks",
    profile="full",
    differentiable=False,
)
def masked_kernel(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Scores are 1 % too large under a mask; without one they are right."""
    return scores if mask is None else Formulas.mask_scores(correct, scores * scores.dtype.type(SCORE_FACTOR), mask)


@mutant(
    "scores 1 % too large where causal in bfloat16",
    replaces="attend",
    operations=(ScaledDotProductAttention, DotProductAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a scale of two digits in the kernel for causal attention",
    profile="full",
    differentiable=False,
)
def causal_kernel(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Scores are 1 % too large with `causal`; otherwise they are right."""
    return Formulas.attend(correct, scores * scores.dtype.type(SCORE_FACTOR if causal else 1.0), value, mask, causal)


# Axes rescaled in part ------------------------------------------------------------------------------------------------


def _in_second_half(size: int) -> Numbers:
    """Mask of the second half of an axis; the middle of an odd number is in the first half."""
    return np.arange(size) >= (size + 1) // 2


@mutant(
    "only the first half of the features scaled",
    replaces="dot_scores",
    operations=(ScaledDotProductAttention, CrossAttention, GroupedQueryAttention),
    breaks=("operation.oracle",),
    source="a query scaled in registers that hold half of a head",
)
def half_of_the_features(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Products of the second half of the features are not divided by √d."""
    d = query.shape[-1]
    unscaled = np.where(_in_second_half(d), np.sqrt(query.dtype.type(d)), query.dtype.type(1))
    return Formulas.dot_scores(correct, query * unscaled, key)


@mutant(
    "only the first half of the pairs rotated",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="partial rotary embeddings, as in GPT-NeoX, for a model that rotates all features",
)
def half_of_the_pairs(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """The second half of the pairs of features is not rotated."""
    angles = Formulas.angles(correct, positions, d, theta)
    return np.where(_in_second_half(angles.shape[-1]), 0.0, angles)


def _second_half_not_rescaled(
    correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool, tile: int
) -> Numbers:
    """Attention in tiles whose larger maxima do not rescale the second half of the columns."""
    allowed = correct.attendable(mask, causal, *scores.shape[-2:])
    excluded = correct.mask_scores(scores, allowed)
    ends = range(tile, scores.shape[-1] + tile, tile)
    exponentials = [np.exp(excluded[..., end - tile : end] - correct.shift(excluded[..., :end])) for end in ends]
    unscaled = np.concatenate(exponentials, axis=-1) if exponentials else excluded
    total = correct.total(np.exp(excluded - correct.shift(excluded)))
    weights = unscaled / np.where(total == 0, scores.dtype.type(1), total)
    right = Formulas.attend(correct, scores, value, mask, causal)
    return np.where(_in_second_half(value.shape[-1]), correct.pool(weights, value, allowed), right)


@mutant(
    "half of the columns not rescaled to a new maximum, in tiles of 16 keys",
    replaces="attend",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("operation.oracle",),
    source="an accumulator in two registers, of which online softmax rescales one",
)
def half_of_the_columns(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Larger maxima of tiles of 16 keys rescale only the first half of the columns."""
    return _second_half_not_rescaled(correct, scores, value, mask, causal, 16)


@mutant(
    "half of the columns not rescaled to a new maximum, in tiles of 64 keys",
    replaces="attend",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("operation.oracle",),
    source="an accumulator in two registers, of which online softmax rescales one",
)
def half_of_the_columns_in_wide_tiles(
    correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool
) -> Numbers:
    """Larger maxima of tiles of 64 keys rescale only the first half of the columns."""
    return _second_half_not_rescaled(correct, scores, value, mask, causal, 64)
