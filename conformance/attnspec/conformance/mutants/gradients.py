"""Mutants whose results are right and whose gradients are wrong."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import Tape, plain
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.contract.operation import Operation
from attnspec.spec.laws.scoring import ADDITIVE

ATTENTION = "scaled_dot_product_attention"


def _detached(x: Any) -> Any:
    return plain(x)


@mutant(
    "gradient of the softmax without its sum",
    replaces="normalized",
    operations=("softmax", ATTENTION, "additive_attention"),
    breaks=("operation.gradient",),
    source="HKUSTDial/flash-sparse-attention#109",
)
def without_sum(right: Formulas, scores: Numbers) -> Numbers:
    """dS = P∘dP, not P∘(dP − Σ P∘dP)."""
    exponentials = np.exp(scores - right.shift(scores))
    total = _detached(right.total(exponentials))
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "gradient of the queries not scaled",
    replaces="differentiated",
    operations=(ATTENTION, "scaled_dot_scores"),
    breaks=("operation.gradient",),
    source="the scale folded into one of two places",
)
def unscaled_query_gradient(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """dQ lacks the factor 1/√d."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    d = arguments["query"].shape[-1]
    return {**found, "query": found["query"] * np.sqrt(found["query"].dtype.type(d))}


@mutant(
    "backward pass forgets the causal mask",
    replaces="differentiated",
    operations=(ATTENTION, "self_attention", "multi_head_attention"),
    breaks=("masking.future-gradient",),
    source="the flag not saved for the backward pass",
)
def forgets_causal(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """Gradients as if nothing were causal."""
    return Library.differentiated(right, operation, {**arguments, "causal": False}, cotangent)


@mutant(
    "NaN under the mask in the gradient",
    replaces="differentiated",
    operations=(ATTENTION, "additive_attention", "nadaraya_watson"),
    breaks=("masking.nonfinite-gradient",),
    source="pytorch/pytorch#101967",
)
def zero_times_nan(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """dQ = dS·K, in which the gradient 0 of a masked score multiplies its key."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    return {**found, "query": found["query"] + 0 * np.sum(arguments["key"])}


@mutant(
    "NaN under the mask in the gradient of the softmax",
    replaces="pooled",
    operations=(ATTENTION, "cross_attention", "bahdanau_context"),
    breaks=("masking.nonfinite-gradient",),
    source="pytorch/pytorch#101967",
)
def odd_weights(right: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """dα = dO·V of masked keys too, which their weights of 0 then multiply in Σ α dα."""
    if not isinstance(weights, Tape):
        return Formulas.pooled(right, weights, value, mask)
    extra = 0 * np.sum(plain(value), axis=-1)[..., None, :]
    passed = Tape(weights.value, [weights], lambda g: [g + extra])
    return Formulas.pooled(right, passed, value, mask)


@mutant(
    "NaN of a query without keys in the gradient",
    replaces="differentiated",
    operations=(ATTENTION, "multi_head_attention"),
    breaks=("masking.nonfinite-gradient",),
    source="pytorch/pytorch#103963",
)
def idle_query(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """dK = dSᵀ·Q, in which the gradient 0 of a row without keys multiplies its query."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    return {**found, "key": found["key"] + 0 * np.sum(arguments["query"])}


@mutant(
    "backward pass forgets the mask",
    replaces="differentiated",
    operations=(ATTENTION, "bahdanau_context", "softmax"),
    breaks=("operation.gradient",),
    source="ant-research/Pyraformer#15: the mask of keys for queries",
)
def forgets_mask(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """Gradients as if nothing were masked."""
    unmasked = {name: x for name, x in arguments.items() if name != "mask"}
    shape = np.shape(right.compute(operation, unmasked))
    if shape != cotangent.shape:
        return Library.differentiated(right, operation, arguments, cotangent)
    return Library.differentiated(right, operation, unmasked, cotangent)


@mutant(
    "tanh′ without its square",
    replaces="activation",
    operations=ADDITIVE,
    breaks=("operation.gradient",),
    source="1 − tanh for 1 − tanh²",
)
def wrong_slope(right: Formulas, x: Numbers) -> Numbers:
    """The derivative of tanh is taken to be 1 − tanh."""
    if not isinstance(x, Tape):
        return np.tanh(x)
    value = np.tanh(x.value)
    return Tape(value, [x], lambda g: [g * (1 - value)])


@mutant(
    "no slope where exponentials would overflow",
    replaces="hidden",
    operations=ADDITIVE,
    breaks=("scoring.saturation-gradient",),
    source="the exact path forgotten in the backward pass",
)
def no_slope_beyond(right: Formulas, of_query: Numbers, of_key: Numbers) -> Numbers:
    """tanh′ is taken to be 0 where either projection is large, also where both cancel."""
    x = Formulas.hidden(right, of_query, of_key)
    beyond = (np.abs(plain(of_query)) > 34.5) | (np.abs(plain(of_key)) > 34.5)
    return np.where(beyond, plain(x), x)


@mutant(
    "slope from exponentials that overflow",
    replaces="activation",
    operations=ADDITIVE,
    breaks=("scoring.saturation-gradient",),
    source="a clamp left out in the backward pass",
)
def overflowing_slope(right: Formulas, x: Numbers) -> Numbers:
    """tanh′ as 4E/(1 + E)² with E = e^2x: ∞/∞ for large sums."""
    if not isinstance(x, Tape):
        return np.tanh(x)
    power = np.exp(2 * x.value)
    return Tape(np.tanh(x.value), [x], lambda g: [g * (4 * power / (1 + power) ** 2)])


@mutant(
    "gradients of repeated batches not summed",
    replaces="differentiated",
    operations=("dot_scores", ATTENTION),
    breaks=("operation.gradient",),
    source="speedinghzl/CCNet#62: a sum lost in a race",
)
def not_summed(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """Of several queries only the first contributes to the gradient of the keys."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    only_first = cotangent * (np.arange(cotangent.shape[-2])[:, None] == 0)
    return {**found, "key": Library.differentiated(right, operation, arguments, only_first)["key"]}


@mutant(
    "no gradient for w_k",
    replaces="differentiated",
    operations=("additive_scores", "bahdanau_context", "multi_head_attention"),
    breaks=("operation.gradient",),
    source="a projection that is cached and detached",
)
def detached_weight(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """W_k is taken for a constant."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    return {**found, "w_k": np.zeros_like(found["w_k"])}


@mutant(
    "NaN gradients for a fully masked row",
    replaces="differentiated",
    operations=("softmax", ATTENTION),
    breaks=("operation.gradient",),
    source="lucidrains/nGPT-pytorch#11, pytorch/pytorch#103963",
)
def nan_when_masked(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """0/0 in the backward pass where a row of the mask is False throughout."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    mask = arguments.get("mask")
    if mask is not None and mask.size and not mask.any(-1).all():
        return {name: np.full_like(g, np.nan) for name, g in found.items()}
    return found


@mutant(
    "gradients added to those of the last call",
    operations=("dot_scores", "attention_pooling"),
    breaks=("operation.gradient",),
    source="gradients that are not zeroed",
)
class Accumulates(Library):
    """Gradients of the same shape add up from call to call."""

    def differentiated(
        self, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
    ) -> dict[str, Numbers]:
        """Add to what is there."""
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
    "gradient of the values from the scores",
    replaces="differentiated",
    operations=("attention_pooling",),
    breaks=("operation.gradient",),
    source="dV = dOᵀP for PᵀdO",
)
def transposed_value_gradient(
    right: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Numbers
) -> dict[str, Numbers]:
    """Weights are read from their first row for every query."""
    found = Library.differentiated(right, operation, arguments, cotangent)
    weights = np.repeat(arguments["weights"][..., :1, :], arguments["weights"].shape[-2], axis=-2)
    if not weights.size:
        return found
    return {
        **found,
        "value": Library.differentiated(right, operation, {**arguments, "weights": weights}, cotangent)["value"],
    }
