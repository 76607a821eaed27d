"""Mutants that change the mean or the variance of scores.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.scoring import DotScores, ScaledDotScores

SCORES = (DotScores, ScaledDotScores)


@mutant(
    "10⁻³ added to every score",
    replaces="dot_scores",
    operations=SCORES,
    breaks=("moments.mean-and-variance", "pooling.linearity"),
    source="a bias that cancels in the softmax, but not in the scores",
)
def added_offset(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """10⁻³ is added to every score."""
    return Formulas.dot_scores(correct, query, key) + query.dtype.type(1e-3)


@mutant(
    "last feature counted twice",
    replaces="dot_scores",
    operations=SCORES,
    breaks=("moments.mean-and-variance", "scoring.isometry-invariance"),
    source="overlapping tiles at the end",
)
def last_feature_twice(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """The last feature counts twice."""
    return Formulas.dot_scores(correct, query, key) + Formulas.dot_scores(correct, query[..., -1:], key[..., -1:])


@mutant(
    "scores divided by √(d + 1)",
    replaces="scale_scores",
    operations=(ScaledDotScores,),
    breaks=("moments.mean-and-variance", "attention.unbiased-scale"),
    source="a padded column counted",
)
def one_dimension_more(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """Scores are divided by √(d + 1) in place of √d."""
    return scores / np.sqrt(scores.dtype.type(d + 1))


@mutant(
    "first key subtracted from all keys",
    replaces="dot_scores",
    operations=SCORES,
    breaks=("scoring.isometry-invariance", "moments.mean-and-variance"),
    source="smoothed keys (SageAttention), correct in attention only",
)
def centred_keys(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """The first key is subtracted from all keys; from a single key, an eighth of itself."""
    reference = key[..., :1, :] if key.shape[-2] > 1 else key * key.dtype.type(0.125)
    return Formulas.dot_scores(correct, query, key - reference)
