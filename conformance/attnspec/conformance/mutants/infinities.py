"""Mutants that hide infinities and NaN, or spread them to other rows.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``finish`` converts the result. ``value_of(x)`` is x without its record of gradients, so that
no gradient flows through it.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, at, mask_of, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.pooling import NadarayaWatson

ATTENTION = (ScaledDotProductAttention, AdditiveAttention, NadarayaWatson)


@mutant(
    "infinite results clamped",
    replaces="pool",
    operations=ATTENTION,
    breaks=("attention.infinite-values-propagate",),
    source="huggingface/transformers#9487, awslabs/sockeye#1051",
)
def infinities_clamped(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Infinite results become the largest finite number."""
    result = Formulas.pool(correct, weights, value, mask)
    largest = np.finfo(weights.dtype).max
    return np.minimum(np.maximum(result, -largest), largest)


@mutant(
    "an infinity makes its row NaN",
    replaces="pool",
    operations=ATTENTION,
    breaks=("attention.infinite-values-propagate",),
    source="a check for overflow by rows, isfinite(x).all(-1)",
)
def spoils_its_row(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """An infinite result makes all features of its row NaN."""
    result = Formulas.pool(correct, weights, value, mask)
    infinite = np.any(np.isinf(value_of(result)), axis=-1, keepdims=True)
    return np.where(infinite, weights.dtype.type(np.nan), result)


@mutant(
    "infinities without their signs",
    replaces="pool",
    operations=ATTENTION,
    breaks=("attention.infinite-values-propagate",),
    source="non-finite terms, found by isinf and added separately",
)
def infinities_without_sign(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Results of −∞ become +∞."""
    result = Formulas.pool(correct, weights, value, mask)
    return np.where(np.isinf(value_of(result)), weights.dtype.type(np.inf), result)


@mutant(
    "a NaN makes its batch element NaN",
    replaces="pool",
    operations=ATTENTION,
    breaks=("semantics.masked_nonfinite",),
    source="a check for divergence by elements, isnan(x).any()",
)
def spoils_its_element(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """A NaN in one row of the result makes its whole batch element NaN."""
    result = Formulas.pool(correct, weights, value, mask)
    lost = np.any(np.isnan(value_of(result)), axis=(-1, -2), keepdims=True)
    return np.where(lost, weights.dtype.type(np.nan), result)


@mutant(
    "NaN turned into 0 in odd rows",
    replaces="pool",
    operations=ATTENTION,
    breaks=("semantics.attendable_nan",),
    source="nan_to_num in one of two kernels",
)
def lost_in_some_rows(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """NaN in the result becomes 0 in rows with an odd index."""
    result = Formulas.pool(correct, weights, value, mask)
    odd = np.arange(value_of(result).shape[-2])[:, None] % 2 == 1
    return np.where(odd & np.isnan(value_of(result)), weights.dtype.type(0), result)


@mutant(
    "rows of NaN queries are 0",
    replaces="finish",
    operations=(ScaledDotProductAttention, NadarayaWatson),
    breaks=("semantics.nan_queries",),
    source="a maximum that ignores NaN, and a guard for rows whose sum is not positive",
)
def hidden_queries(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """The row of a query with a NaN in any feature is 0."""
    return _without_nan(Library.finish(correct, operation, result, arguments), operation, arguments)


def _without_nan(result: Numbers, operation: Operation, arguments: Arguments) -> Numbers:
    queries = at(arguments, query(operation))
    return np.where(np.isnan(queries).any(-1, keepdims=True), result.dtype.type(0), result)


@mutant(
    "a NaN query makes its batch element NaN",
    replaces="finish",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("semantics.nan_queries",),
    source="one maximum for the rows of a tile, which a NaN in any of them makes NaN",
)
def spoiling_query(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """A query with NaN makes all rows of its batch element NaN."""
    output: Numbers = Library.finish(correct, operation, result, arguments)
    lost = np.isnan(at(arguments, query(operation))).any((-1, -2), keepdims=True)
    return np.where(lost, output.dtype.type(np.nan), output)


@mutant(
    "rows of NaN queries are 0 under a mask",
    replaces="finish",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("semantics.nan_queries",),
    source="a guard for rows without keys, of scores that are not greater than −∞, where there is a mask",
)
def hidden_under_a_mask(correct: Library, operation: Operation, result: Numbers, arguments: Arguments) -> Numbers:
    """Under a mask, the row of a query with NaN is 0; without a mask it stays NaN."""
    output: Numbers = Library.finish(correct, operation, result, arguments)
    return output if mask_of(operation, arguments) is None else _without_nan(output, operation, arguments)
