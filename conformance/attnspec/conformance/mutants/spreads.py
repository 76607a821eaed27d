"""Mutants with errors within every element's budget: accumulated, of one sign, or at one key.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``finish`` converts the result.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.ensembles import with_bits
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.tree import map_tree
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.pooling import NadarayaWatson
from attnspec.spec.seq2seq import BahdanauContext, LuongContextDot

PROJECTED = (CrossAttention, ProjectedSelfAttention, MultiHeadAttention)
TILE = 128
"""Number of keys in the first tile, whose end the defects concern."""


# Errors that are too large on average ---------------------------------------------------------------------------------


@mutant(
    "weighted sums accumulated in bfloat16",
    replaces="attention_pooling",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    dtype="bfloat16",
    breaks=("pooling.rounding-spread",),
    source="an accumulator of the dtype of the values, where float32 is declared",
    differentiable=False,
    profile="full",
)
def accumulated_in_bfloat16(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Weighted sums are accumulated in bfloat16: every partial sum is rounded."""
    total = np.zeros((*np.broadcast_shapes(weights.shape[:-2], value.shape[:-2]), weights.shape[-2], value.shape[-1]))
    for j in range(value.shape[-2]):
        total = rounded(total + weights[..., :, j, None] * value[..., None, j, :], "bfloat16")
    return np.asarray(total, weights.dtype)


@mutant(
    "scores stored in float16, not declared",
    replaces="dot_scores",
    operations=(DotProductAttention, LuongContextDot),
    dtype="float16",
    breaks=("pooling.rounding-spread",),
    source="scores written to memory in the dtype of the inputs, where float32 is declared",
    differentiable=False,
    profile="full",
)
def stored_scores(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are rounded to float16, which is not declared."""
    return rounded(Formulas.dot_scores(correct, query, key), "float16")


@mutant(
    "exponentials rounded to 20 bits",
    replaces="exponential",
    operations=(ScaledDotProductAttention, AdditiveAttention),
    breaks=("pooling.rounding-spread",),
    source="exp by a polynomial of too low a degree",
    profile="full",
    differentiable=False,
)
def coarse_exponentials(correct: Formulas, x: Numbers) -> Numbers:
    """Exponentials have 20 bits: 16 times the rounding error of float32."""
    return with_bits(np.exp(x), 20, np.rint)


@mutant(
    "exponentials rounded to 48 bits",
    replaces="exponential",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    dtype="float64",
    breaks=("pooling.rounding-spread",),
    source="exp by a polynomial of too low a degree",
    profile="full",
    differentiable=False,
)
def coarse_double_exponentials(correct: Formulas, x: Numbers) -> Numbers:
    """Exponentials have 48 bits: 32 times the rounding error of float64."""
    return with_bits(np.exp(x), 48, np.rint)


# Errors of one sign ---------------------------------------------------------------------------------------------------


@mutant(
    "results rounded down to bfloat16",
    replaces="finish",
    operations=(ScaledDotProductAttention, *PROJECTED),
    dtype="bfloat16",
    breaks=("pooling.rounding-spread",),
    source="a rounding mode that was left at −∞",
    profile="full",
    differentiable=False,
)
def rounded_down_to_bfloat16(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """Results are rounded down to bfloat16, not to nearest."""
    return Library.finish(correct, operation, map_tree(result, lambda _, x: with_bits(x, 8, np.floor)), arguments)


@mutant(
    "last feature rounded down to bfloat16",
    replaces="finish",
    operations=PROJECTED,
    dtype="bfloat16",
    breaks=("pooling.rounding-spread",),
    source="a scalar loop for the remainder of a row, with a conversion of its own",
    profile="full",
    differentiable=False,
)
def last_feature_down(correct: Library, operation: Operation, result: Any, arguments: Arguments) -> Any:
    """The last feature is rounded down to bfloat16, the others to nearest."""
    last = np.arange(result.shape[-1]) == result.shape[-1] - 1
    return Library.finish(correct, operation, np.where(last, with_bits(result, 8, np.floor), result), arguments)


@mutant(
    "weighted sums rounded down to single precision",
    replaces="attention_pooling",
    operations=(ScaledDotProductAttention, *PROJECTED),
    breaks=("pooling.rounding-spread",),
    source="a rounding mode that was left at −∞",
    profile="full",
    differentiable=False,
)
def down_to_single(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Weighted sums are rounded down to float32, not to nearest."""
    total = weights.astype(np.float64) @ value.astype(np.float64)
    return with_bits(total, 24, np.floor).astype(weights.dtype)


# Errors at one key ----------------------------------------------------------------------------------------------------


def attend_with_zero_key(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Attention to the keys and to one more key with score 0 and value 0."""
    attendable = correct.attendable(mask, causal, *scores.shape[-2:])
    zero_score, zero_value = (np.zeros((*x.shape[:-1], 1), x.dtype) for x in (scores, np.swapaxes(value, -1, -2)))
    extended = None
    if attendable is not None:
        attendable = np.broadcast_to(attendable, np.broadcast_shapes(attendable.shape, scores.shape))
        extended = np.concatenate([attendable, attendable.any(-1, keepdims=True)], axis=-1)
    scores = np.concatenate([scores, zero_score], axis=-1)
    value = np.concatenate([value, np.swapaxes(zero_value, -1, -2)], axis=-2)
    return correct.pool(correct.softmax(scores, mask=extended), value, extended)


SEPARATE_KEYS = (ScaledDotProductAttention, AdditiveAttention, CrossAttention, MultiHeadAttention, BahdanauContext)
"""Operations in which the number of queries does not grow with the number of keys."""

BY_ATTEND = (*SEPARATE_KEYS, SelfAttention, ProjectedSelfAttention)
"""Operations that call ``attend``."""


@mutant(
    "additional key of zeros beyond 128 keys in bfloat16",
    replaces="attend",
    operations=BY_ATTEND,
    dtype="bfloat16",
    breaks=("pooling.no-lost-or-extra-keys",),
    source="the remainder of a second tile is filled with zeros, and one of them is not masked",
    profile="full",
    differentiable=False,
)
def zero_key(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """With more than 128 keys, an additional key of score and value 0 counts."""
    if scores.shape[-1] <= TILE:
        return Formulas.attend(correct, scores, value, mask, causal)
    return attend_with_zero_key(correct, scores, value, mask, causal)


@mutant(
    "mask of key 128 ignored in bfloat16",
    replaces="attend",
    operations=BY_ATTEND,
    dtype="bfloat16",
    breaks=("pooling.no-lost-or-extra-keys",),
    source="lengths of keys that are compared with ≤, in the tile after the first one alone",
    profile="full",
    differentiable=False,
)
def one_masked_key(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """With more than 128 keys, the mask of key 128 counts as True."""
    if mask is not None and scores.shape[-1] > TILE:
        mask = mask | (np.arange(scores.shape[-1]) == TILE)
    return Formulas.attend(correct, scores, value, mask, causal)


def without_last_key(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """Attention that leaves out the last of more than 1,024 keys."""
    m = scores.shape[-1]
    if m > 1024:
        others = np.arange(m) < m - 1
        mask = others if mask is None else mask & others
    return Formulas.attend(correct, scores, value, mask, causal)


@mutant(
    "last of more than 1,024 keys left out in bfloat16",
    replaces="attend",
    operations=SEPARATE_KEYS,
    dtype="bfloat16",
    breaks=("pooling.no-lost-or-extra-keys",),
    source="a loop over tiles that ends at m // tile where there are many",
    profile="full",
    differentiable=False,
)
def last_of_thousands(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """In bfloat16, the last of more than 1,024 keys is left out."""
    return without_last_key(correct, scores, value, mask, causal)


@mutant(
    "last of more than 1,024 keys left out in float16",
    replaces="attend",
    operations=SEPARATE_KEYS,
    dtype="float16",
    breaks=("pooling.no-lost-or-extra-keys",),
    source="a loop over tiles that ends at m // tile where there are many",
    profile="full",
    differentiable=False,
)
def last_of_half_thousands(correct: Formulas, scores: Numbers, value: Numbers, mask: Numbers, causal: bool) -> Numbers:
    """In float16, the last of more than 1,024 keys is left out."""
    return without_last_key(correct, scores, value, mask, causal)


@mutant(
    "weight of key 128 1 % too small",
    replaces="softmax",
    operations=(ScaledDotProductAttention, AdditiveAttention, BahdanauContext),
    breaks=("pooling.no-lost-or-extra-keys",),
    source="a correction for the maximum of the tile before that reaches one key of the next",
    profile="full",
    differentiable=False,
)
def border_key(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The weight of key 128 is 1 % too small; other weights are unchanged."""
    weights = Formulas.softmax(correct, scores, mask=mask)
    at_border = np.arange(scores.shape[-1]) == TILE
    return np.where(at_border, weights * weights.dtype.type(0.99), weights)
