"""Mutants with an error smaller than any element's rounding, which only averages show.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``differentiate`` computes the gradients. ``value_of(x)`` is x without its record of gradients,
so that no gradient flows through it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, key, query
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    GeneralAttention,
    ProjectedSelfAttention,
    ScaledDotProductAttention,
)
from attnspec.spec.contract.axes import Role
from attnspec.spec.contract.operation import Operation
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.seq2seq import BahdanauContext

WEIGHTED = (GeneralAttention, AdditiveAttention, CrossAttention, ProjectedSelfAttention, MultiHeadAttention)
SCALED = (ScaledDotProductAttention, CrossAttention, ProjectedSelfAttention, MultiHeadAttention)


def with_bits(x: Numbers, bits: int, rounding: np.ufunc) -> Numbers:
    """Round mantissas to ``bits`` bits by ``rounding``, such as ``np.trunc``."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(rounding(mantissa * x.dtype.type(2**bits)) / x.dtype.type(2**bits), exponent)


@mutant(
    "sum of exponentials cut off to bfloat16",
    replaces="normalized",
    operations=(*WEIGHTED, BahdanauContext),
    dtype="bfloat16",
    breaks=("pooling.unbiased-gain",),
    source="(uint16_t)(bits >> 16) for a conversion to bfloat16",
    differentiable=False,
)
def bfloat16_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """The sum of exponentials is truncated to 8 bits: weights are 0.3 % too large on average."""
    exponentials = np.exp(scores - correct.shift(scores))
    total = with_bits(correct.total(exponentials), 8, np.trunc)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "sum of exponentials cut off to 11 bits",
    replaces="normalized",
    operations=(*WEIGHTED, BahdanauContext),
    dtype="float16",
    breaks=("pooling.unbiased-gain",),
    source="a conversion to float16 that rounds towards 0",
    differentiable=False,
)
def half_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """The sum of exponentials is truncated to 11 bits: weights are 0.03 % too large on average."""
    exponentials = np.exp(scores - correct.shift(scores))
    total = with_bits(correct.total(exponentials), 11, np.trunc)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "guard of 10⁻⁵ in the sum of exponentials",
    replaces="normalized",
    operations=(*WEIGHTED, BahdanauContext),
    breaks=("pooling.unbiased-gain",),
    source="guards against division by zero",
)
def guarded_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """10⁻⁵ is added to the sum of exponentials: with a sum of 5, weights are 0.0002 % too small."""
    exponentials = np.exp(scores - correct.shift(scores))
    return exponentials / (correct.total(exponentials) + scores.dtype.type(1e-5))


@mutant(
    "sum of exponentials in single precision",
    replaces="normalized",
    operations=(*WEIGHTED, BahdanauContext),
    dtype="float64",
    breaks=("pooling.unbiased-gain",),
    source="an accumulator declared float in a kernel for every dtype",
    differentiable=False,
)
def single_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """The sum of float64 exponentials is truncated to 24 bits."""
    exponentials = np.exp(scores - correct.shift(scores))
    total = with_bits(correct.total(exponentials), 24, np.trunc)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "1/√d of two digits in bfloat16",
    replaces="scale_scores",
    operations=SCALED,
    dtype="bfloat16",
    breaks=("attention.unbiased-scale",),
    source="a scale written into the source",
)
def two_digits(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """The scale is rounded to two decimals: 0.35 where d is 8."""
    return scores * scores.dtype.type(round(d**-0.5, 2))


@mutant(
    "1/√d of three digits in float16",
    replaces="scale_scores",
    operations=SCALED,
    dtype="float16",
    breaks=("attention.unbiased-scale",),
    source="a scale written into the source",
)
def three_digits(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """The scale is rounded to three decimals: 0.354 where d is 8."""
    return scores * scores.dtype.type(round(d**-0.5, 3))


@mutant(
    "1/√d of six digits",
    replaces="scale_scores",
    operations=SCALED,
    breaks=("attention.unbiased-scale",),
    source="a scale printed by %g and read again",
)
def six_digits(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """The scale is rounded to six significant digits: 0.353553 where d is 8."""
    return scores * scores.dtype.type(f"{d**-0.5:g}")


@mutant(
    "1/√d in single precision",
    replaces="scale_scores",
    operations=SCALED,
    dtype="float64",
    breaks=("attention.unbiased-scale",),
    source="a scale passed as float to a kernel for every dtype",
)
def single_scale(correct: Formulas, scores: Numbers, d: int) -> Numbers:
    """The scale of float64 scores is rounded to float32."""
    return scores * scores.dtype.type(np.float32(d**-0.5))


def times(gradients: Mapping[str, Numbers], path: str, factor: float) -> Gradients:
    """Multiply the gradient at ``path`` by a factor."""
    return {**gradients, path: gradients[path] * gradients[path].dtype.type(factor)}


@mutant(
    "gradient of the queries 1 % too small in bfloat16",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, GeneralAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-gradient", "attention.gradient-identities"),
    source="the scale of the backward pass written into the source, 0.35 for 0.3536",
    profile="full",
)
def query_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the queries is 1 % too small."""
    return times(Library.differentiate(correct, operation, arguments, cotangent), query(operation), 0.99)


@mutant(
    "gradient of W_q 2 % too small in bfloat16",
    replaces="differentiate",
    operations=(CrossAttention, ProjectedSelfAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-gradient",),
    source="gradients of a batch of 50 divided by 51",
    profile="full",
)
def weight_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of W_q is 2 % too small."""
    weight = next(
        x for x in operation.floats if operation.role(x) is Role.WEIGHT and x.path in operation.scores_scale_with
    )
    return times(Library.differentiate(correct, operation, arguments, cotangent), weight.path, 1 / 1.02)


@mutant(
    "gradient of the keys 0.1 % too large in float16",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, GeneralAttention, MultiHeadAttention),
    dtype="float16",
    breaks=("attention.unbiased-gradient", "attention.gradient-identities"),
    source="log₂e and ln 2 of four digits in the backward pass",
    profile="full",
)
def key_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the keys is 0.1 % too large."""
    return times(Library.differentiate(correct, operation, arguments, cotangent), key(operation), 1.001)


@mutant(
    "gradient of the values too small by 10⁻⁵",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    breaks=("attention.unbiased-gradient", "attention.gradient-identities"),
    source="weights of the backward pass divided by a sum with a guard",
    profile="full",
)
def value_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the values is multiplied by 1 − 10⁻⁵."""
    path = next(x.path for x in operation.attended if x.path in operation.linear)
    return times(Library.differentiate(correct, operation, arguments, cotangent), path, 1 - 1e-5)


@mutant(
    "gradient of the values 0.3 % too small in bfloat16",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention, MultiHeadAttention),
    dtype="bfloat16",
    breaks=("attention.unbiased-gradient", "attention.gradient-identities"),
    source="weights of the backward pass rounded towards 0",
    profile="full",
)
def cut_value_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the values is 0.3 % too small."""
    path = next(x.path for x in operation.attended if x.path in operation.linear)
    return times(Library.differentiate(correct, operation, arguments, cotangent), path, 0.997)


@mutant(
    "gradient of the queries with a scale in single precision",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    dtype="float64",
    breaks=("attention.unbiased-gradient", "attention.gradient-identities"),
    source="a scale passed as float to the backward kernel",
    profile="full",
)
def single_query_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the queries is multiplied by √3 and by 1/√3 rounded to float32."""
    ratio = float(np.float32(3**-0.5)) * 3**0.5
    return times(Library.differentiate(correct, operation, arguments, cotangent), query(operation), ratio)


@mutant(
    "Σ P∘dP of the backward pass 3 % too large in bfloat16",
    replaces="normalized",
    operations=(ScaledDotProductAttention,),
    dtype="bfloat16",
    breaks=("attention.gradient-identities",),
    source="delta computed from a result that was scaled before",
    profile="full",
)
def delta_off(correct: Formulas, scores: Numbers) -> Numbers:
    """dS is P∘(dP − 1.03 Σ P∘dP) in place of P∘(dP − Σ P∘dP)."""
    exponentials = correct.exponential(scores - value_of(correct.shift(scores)))
    total = correct.total(exponentials)
    total = np.where(total == 0, scores.dtype.type(1), total)
    return Formulas.normalized(correct, scores) * (value_of(total) / total) ** scores.dtype.type(0.03)
