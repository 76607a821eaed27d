"""Mutants that hide an infinity or a NaN, or spread it to rows that do not attend to it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import at, mask_of, query
from attnspec.spec.attention import AdditiveAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.pooling import NadarayaWatson

ATTENTION = (ScaledDotProductAttention, AdditiveAttention, NadarayaWatson)


@mutant(
    "infinite results clamped",
    replaces="pooled",
    operations=ATTENTION,
    breaks=("attention.infinite-values",),
    source="huggingface/transformers#9487, awslabs/sockeye#1051",
)
def clamped(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Infinite results become the largest finite number."""
    result = Formulas.pooled(correct, weights, value, mask)
    largest = np.finfo(weights.dtype).max
    return np.minimum(np.maximum(result, -largest), largest)


@mutant(
    "an infinity makes its row NaN",
    replaces="pooled",
    operations=ATTENTION,
    breaks=("attention.infinite-values",),
    source="a check for overflow by rows, isfinite(x).all(-1)",
)
def spoils_its_row(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """An infinite result makes all features of its row NaN."""
    result = Formulas.pooled(correct, weights, value, mask)
    infinite = np.any(np.isinf(value_of(result)), axis=-1, keepdims=True)
    return np.where(infinite, weights.dtype.type(np.nan), result)


@mutant(
    "infinities without their signs",
    replaces="pooled",
    operations=ATTENTION,
    breaks=("attention.infinite-values",),
    source="terms that are not finite, found by isinf and added apart",
)
def unsigned(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """Results of −∞ become +∞."""
    result = Formulas.pooled(correct, weights, value, mask)
    return np.where(np.isinf(value_of(result)), weights.dtype.type(np.inf), result)


@mutant(
    "a NaN makes its element of the batch NaN",
    replaces="pooled",
    operations=ATTENTION,
    breaks=("semantics.masked_nonfinite",),
    source="a check for divergence by elements, isnan(x).any()",
)
def spoils_its_element(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """A NaN in one row makes the whole batch element NaN, rows that do not attend to it included."""
    result = Formulas.pooled(correct, weights, value, mask)
    lost = np.any(np.isnan(value_of(result)), axis=(-1, -2), keepdims=True)
    return np.where(lost, weights.dtype.type(np.nan), result)


@mutant(
    "NaN turned into numbers in every second row",
    replaces="pooled",
    operations=ATTENTION,
    breaks=("semantics.attendable_nan",),
    source="nan_to_num in one of two kernels",
)
def lost_in_some_rows(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """NaN becomes 0 in rows with an odd index."""
    result = Formulas.pooled(correct, weights, value, mask)
    odd = np.arange(value_of(result).shape[-2])[:, None] % 2 == 1
    return np.where(odd & np.isnan(value_of(result)), weights.dtype.type(0), result)


@mutant(
    "rows of queries that are NaN are 0",
    replaces="finished",
    operations=(ScaledDotProductAttention, NadarayaWatson),
    breaks=("semantics.nan_queries",),
    source="a maximum that ignores NaN, and a guard for rows whose sum is not positive",
)
def hidden_queries(correct: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """The row of a query with a NaN in any feature is 0."""
    return _without_nan(Library.finished(correct, operation, result, arguments), operation, arguments)


def _without_nan(found: Numbers, operation: Operation, arguments: Mapping[str, Any]) -> Numbers:
    asks = at(arguments, query(operation))
    return np.where(np.isnan(asks).any(-1, keepdims=True), found.dtype.type(0), found)


@mutant(
    "a query that is NaN spoils the others",
    replaces="finished",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("semantics.nan_queries",),
    source="one maximum for the rows of a tile, which a NaN in any of them makes NaN",
)
def spoiling_query(correct: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
    """A query with NaN makes all rows of its batch element NaN."""
    found: Numbers = Library.finished(correct, operation, result, arguments)
    lost = np.isnan(at(arguments, query(operation))).any((-1, -2), keepdims=True)
    return np.where(lost, found.dtype.type(np.nan), found)


@mutant(
    "rows of masked queries that are NaN are 0",
    replaces="finished",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("semantics.nan_queries",),
    source="a guard for rows without keys, of scores that are not greater than −∞, where there is a mask",
)
def hidden_under_a_mask(
    correct: Library, operation: Operation, result: Numbers, arguments: Mapping[str, Any]
) -> Numbers:
    """Under a mask, the row of a query with NaN is 0; without a mask it stays NaN."""
    found: Numbers = Library.finished(correct, operation, result, arguments)
    return found if mask_of(operation, arguments) is None else _without_nan(found, operation, arguments)
