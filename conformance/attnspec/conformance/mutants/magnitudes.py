"""Mutants that are right where numbers are of ordinary size."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.pooling import NadarayaWatson


@mutant(
    "maximum of the scores not below 0",
    replaces="shift",
    operations=(ScaledDotProductAttention,),
    breaks=("attention.magnitudes",),
    source="a running maximum that begins with 0",
)
def begins_finite(correct: Formulas, scores: Numbers) -> Numbers:
    """Where all scores are far below, every exponential is 0, and so is their sum."""
    return np.maximum(Formulas.shift(correct, value_of(scores)), value_of(scores).dtype.type(0))


@mutant(
    "values clamped to the range of float16",
    replaces="pooled",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.magnitudes",),
    source="a clamp that keeps float16 finite, in every dtype",
)
def clamped(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """What is beyond ±65504 is that."""
    most = value.dtype.type(65504)
    return Formulas.pooled(correct, weights, np.minimum(np.maximum(value, -most), most), mask)
