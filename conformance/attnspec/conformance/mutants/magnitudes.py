"""Mutants that are wrong only for very large or very small numbers.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, at, changed, query
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.pooling import NadarayaWatson


@mutant(
    "subtracted maximum at least 0",
    replaces="shift",
    operations=(ScaledDotProductAttention,),
    breaks=("attention.extreme-magnitudes",),
    source="a running maximum that begins with 0",
)
def maximum_at_least_zero(correct: Formulas, scores: Numbers) -> Numbers:
    """The subtracted maximum is at least 0: in rows of scores far below, weights are 0."""
    return np.maximum(Formulas.shift(correct, value_of(scores)), value_of(scores).dtype.type(0))


@mutant(
    "mask forgotten if queries are 0",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("attention.extreme-magnitudes",),
    source="work that is skipped where all scores are known to be equal",
)
class MaskForgottenForZeros(Library):
    """If all queries are 0, the mask is ignored."""

    def prepare(self, operation: Operation, arguments: Arguments) -> dict[str, Any]:
        """Drop the mask if all queries are 0."""
        prepared = super().prepare(operation, arguments)
        if operation.mask is None or np.any(at(prepared, query(operation))):
            return prepared
        return changed(prepared, {operation.mask.path: None})


@mutant(
    "values clamped to the range of float16",
    replaces="pool",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.extreme-magnitudes",),
    source="a clamp that keeps float16 finite, in every dtype",
)
def values_clamped(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values are clamped to ±65,504."""
    most = value.dtype.type(65504)
    return Formulas.pool(correct, weights, np.minimum(np.maximum(value, -most), most), mask)


@mutant(
    "values beyond ±10¹⁰ count as 0",
    replaces="pool",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.extreme-magnitudes",),
    source="garbage under a mask, recognised by its magnitude",
)
def huge_as_masked(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values beyond ±10¹⁰ count as 0."""
    largest = np.abs(value_of(value)) > 1e10
    return Formulas.pool(correct, weights, np.where(largest, value.dtype.type(0), value), mask)


@mutant(
    "values multiplied by an overflowing reciprocal",
    replaces="pool",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("attention.extreme-magnitudes",),
    source="scaling before a product, against overflow",
    differentiable=False,
)
def reciprocal_of_subnormal(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Values are multiplied by 1/max |v|, which overflows below 3·10⁻³⁹, and results by max |v|."""
    finite = np.where(np.isfinite(value), np.abs(value), value.dtype.type(0))
    top = np.max(finite, axis=-1, keepdims=True, initial=0)
    top = np.max(top, axis=-2, keepdims=True, initial=0)
    top = np.where(top == 0, value.dtype.type(1), top)
    return Formulas.pool(correct, weights, value * (1 / top), mask) * top


@mutant(
    "features clipped at ±30",
    replaces="dot_scores",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.extreme-magnitudes",),
    source="activations clipped to the range that a quantization was calibrated for",
)
def clipped_outliers(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Features of queries and keys are clipped to ±30."""
    most = query.dtype.type(30)
    return Formulas.dot_scores(correct, *(np.minimum(np.maximum(x, -most), most) for x in (query, key)))


@mutant(
    "weights beside one above 0.999 set to 0",
    replaces="normalized",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("operation.oracle",),
    source="small weights pruned beside an attention sink",
)
def small_weights_dropped(correct: Formulas, scores: Numbers) -> Numbers:
    """In rows with a weight above 0.999, all other weights are 0."""
    weights = Formulas.normalized(correct, scores)
    alone = np.any(value_of(weights) > 0.999, axis=-1, keepdims=True)
    return np.where(alone & (value_of(weights) < 0.5), weights.dtype.type(0), weights)


@mutant(
    "second key's score subtracted, not the maximum",
    replaces="shift",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.hardmax-limit",),
    source="a maximum that is taken from the tile before",
)
def relative_to_second_key(correct: Formulas, scores: Numbers) -> Numbers:
    """The second key's score is subtracted, not the maximum: exponentials of much greater ones overflow."""
    highest = Formulas.shift(correct, value_of(scores))
    second = value_of(scores)[..., 1:2]
    return np.where(np.isfinite(second), second, highest) if second.shape[-1] else highest


@mutant(
    "scores clamped to ±10⁴",
    replaces="mask_scores",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("attention.extreme-magnitudes",),
    source="a clamp that keeps exponents finite",
)
def clamped_scores(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Scores are clamped to ±10⁴."""
    most = scores.dtype.type(1e4)
    return Formulas.mask_scores(correct, np.minimum(np.maximum(scores, -most), most), mask)
