"""Mutants that mask scores by a finite number in place of −∞.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, CrossAttention, ScaledDotProductAttention
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax


def _add_fill(scores: Numbers, mask: Numbers, fill: float) -> Numbers:
    return scores if mask is None else scores + np.where(mask, scores.dtype.type(0), scores.dtype.type(fill))


def _fill_masked(scores: Numbers, mask: Numbers, fill: float) -> Numbers:
    return scores if mask is None else np.where(mask, scores, scores.dtype.type(fill))


@mutant(
    "−10⁴ added to masked scores in float16",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    dtype="float16",
    breaks=("masking.no-finite-fill",),
    source="huggingface/transformers#12109",
)
def minus_ten_thousand_half(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are lowered by 10⁴, not set to −∞."""
    return _add_fill(scores, mask, -1e4)


@mutant(
    "−10⁶ added to masked scores",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention, CrossAttention, AdditiveAttention),
    breaks=("masking.no-finite-fill",),
    source="fills that were chosen by eye",
)
def minus_a_million(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are lowered by 10⁶, not set to −∞."""
    return _add_fill(scores, mask, -1e6)


@mutant(
    "−10⁹ added to masked scores in double precision",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention, MultiHeadAttention),
    dtype="float64",
    breaks=("masking.no-finite-fill",),
    source="tensorflow/models: _NEG_INF_FP32 = -1e9",
)
def minus_a_billion(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are lowered by 10⁹, not set to −∞."""
    return _add_fill(scores, mask, -1e9)


@mutant(
    "masked scores filled with −10⁴ in bfloat16",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, CrossAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("masking.no-finite-fill",),
    source="a fill that float16 holds, in every dtype",
)
def filled_bfloat16(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are −10⁴, and attendable scores may be smaller."""
    return _fill_masked(scores, mask, -1e4)


@mutant(
    "masked scores filled with −10⁹",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention, CrossAttention),
    dtype="float64",
    breaks=("masking.no-finite-fill",),
    source="harvardnlp/annotated-transformer: scores.masked_fill(mask == 0, -1e9)",
)
def filled(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores are −10⁹, and attendable scores may be smaller."""
    return _fill_masked(scores, mask, -1e9)
