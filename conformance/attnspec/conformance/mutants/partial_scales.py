"""Mutants whose scale is wrong for later keys, wide heads, masked or causal calls only.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import CrossAttention, DotProductAttention, ScaledDotProductAttention
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
