"""Mutants that are wrong only for very large or very small numbers."""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.pooling import NadarayaWatson


@mutant(
    "maximum of the scores not below 0",
    replaces="shift",
    operations=(ScaledDotProductAttention,),
    breaks=("attention.magnitudes",),
    source="a running maximum that begins with 0",
)
def begins_finite(correct: Formulas, scores: Numbers) -> Numbers:
    """The maximum is at least 0: rows of scores far below 0 underflow to a sum of 0."""
    return np.maximum(Formulas.shift(correct, value_of(scores)), value_of(scores).dtype.type(0))


@mutant(
    "values clamped to the range of float16",
    replaces="pooled",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.magnitudes",),
    source="a clamp that keeps float16 finite, in every dtype",
)
def clamped(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values are clamped to ±65504."""
    most = value.dtype.type(65504)
    return Formulas.pooled(correct, weights, np.minimum(np.maximum(value, -most), most), mask)


@mutant(
    "values above 10¹⁰ taken for masked ones",
    replaces="pooled",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.magnitudes",),
    source="garbage under a mask told from numbers by its size",
)
def huge_as_masked(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values beyond ±10¹⁰ count as 0."""
    largest = np.abs(value_of(value)) > 1e10
    return Formulas.pooled(correct, weights, np.where(largest, value.dtype.type(0), value), mask)


@mutant(
    "values divided by the largest one of them",
    replaces="pooled",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.magnitudes",),
    source="scaling before a product, against overflow",
    differentiable=False,
)
def reciprocal_of_subnormal(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values are multiplied by the reciprocal of the largest one, which overflows for subnormal numbers."""
    finite = np.where(np.isfinite(value), np.abs(value), value.dtype.type(0))
    top = np.max(finite, axis=-1, keepdims=True, initial=0)
    top = np.max(top, axis=-2, keepdims=True, initial=0)
    top = np.where(top == 0, value.dtype.type(1), top)
    return Formulas.pooled(correct, weights, value * (1 / top), mask) * top


@mutant(
    "features clipped at ±30",
    replaces="dot_scores",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.magnitudes",),
    source="activations clipped to the range that a quantization was calibrated for",
)
def clipped_outliers(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Features of queries and keys are clipped to ±30."""
    most = query.dtype.type(30)
    return Formulas.dot_scores(correct, *(np.minimum(np.maximum(x, -most), most) for x in (query, key)))


@mutant(
    "a key of almost all the weight has all of it",
    replaces="normalized",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("operation.oracle",),
    source="weights below a threshold pruned, as of sinks",
)
def sink_alone(correct: Formulas, scores: Numbers) -> Numbers:
    """A weight above 0.999 sets the others of its row to 0."""
    weights = Formulas.normalized(correct, scores)
    alone = np.any(value_of(weights) > 0.999, axis=-1, keepdims=True)
    return np.where(alone & (value_of(weights) < 0.5), weights.dtype.type(0), weights)


@mutant(
    "scores relative to that of the second key",
    replaces="shift",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.hard-limit",),
    source="a maximum that is taken from the tile before",
)
def relative_to_one(correct: Formulas, scores: Numbers) -> Numbers:
    """The second key's score is subtracted in place of the maximum: exponentials of much greater scores overflow."""
    highest = Formulas.shift(correct, value_of(scores))
    second = value_of(scores)[..., 1:2]
    return np.where(np.isfinite(second), second, highest) if second.shape[-1] else highest


@mutant(
    "scores clamped to ±10⁴",
    replaces="excluded",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.magnitudes",),
    source="a clamp that keeps exponents finite, and below a fill of −10⁴",
)
def clamped_scores(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Scores are clamped to ±10⁴."""
    most = scores.dtype.type(1e4)
    return Formulas.excluded(correct, np.minimum(np.maximum(scores, -most), most), mask)
