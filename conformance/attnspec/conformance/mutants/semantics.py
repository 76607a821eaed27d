"""Mutants that declare one thing and do another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.contract.operation import Operation

ATTENTION = "scaled_dot_product_attention"


@mutant(
    "fully masked rows are uniform",
    replaces="excluded",
    operations=("softmax", ATTENTION, "bahdanau_context"),
    breaks=("semantics.fully_masked",),
    source="ml-explore/mlx#2395: the least finite number for −∞",
)
def least_number(right: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Where every key is masked, all scores are equal."""
    return scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)


@mutant(
    "fully masked rows are NaN",
    replaces="shift",
    operations=("softmax", ATTENTION, "nadaraya_watson"),
    breaks=("semantics.fully_masked",),
    source="pytorch/pytorch#103963, openvinotoolkit/openvino#36016",
)
def minus_infinity(right: Formulas, scores: Numbers) -> Numbers:
    """−∞ − −∞."""
    return np.max(scores, axis=-1, keepdims=True, initial=-np.inf)


@mutant(
    "fully masked rows are 0, declared NaN",
    replaces="shift",
    operations=("softmax", ATTENTION),
    declares={"fully_masked": "nan"},
    breaks=("semantics.fully_masked",),
    source="robertknight/rten#1321: fixed, but still documented",
)
def zero_after_all(right: Formulas, scores: Numbers) -> Numbers:
    """The right thing, declared as a deviation."""
    return Formulas.shift(right, scores)


@mutant(
    "no keys raise",
    replaces="shift",
    operations=(ATTENTION, "additive_attention", "bahdanau_context"),
    breaks=("semantics.no_keys",),
    source="the maximum of an empty row",
)
def empty_maximum(right: Formulas, scores: Numbers) -> Numbers:
    """A maximum without an initial value."""
    highest = scores.max(axis=-1, keepdims=True) if isinstance(scores, np.ndarray) else Formulas.shift(right, scores)
    return np.where(highest == -np.inf, scores.dtype.type(0), highest)


@mutant(
    "no keys are NaN",
    replaces="average_pooling",
    operations=("average_pooling",),
    breaks=("semantics.no_keys",),
    source="the mean of nothing",
)
def mean_of_nothing(right: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """0/0."""
    mean = Formulas.average_pooling(right, value, mask=mask)
    return mean if value.shape[-2] else mean + np.nan


@mutant(
    "causal aligned at the bottom right",
    replaces="attendable",
    operations=(ATTENTION, "multi_head_attention", "additive_attention"),
    breaks=("semantics.causal_alignment",),
    source="Dao-AILab/flash-attention#1778, NVIDIA/cutlass#2336",
)
def bottom_right(right: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """j ≤ i + m − n."""
    if not causal:
        return mask
    triangle = np.tri(n, m, m - n, dtype=bool)
    return triangle if mask is None else mask & triangle


@mutant(
    "causal aligned top left, declared bottom right",
    replaces="attendable",
    operations=(ATTENTION, "additive_attention"),
    declares={"causal_alignment": "bottom-right"},
    breaks=("semantics.causal_alignment",),
    source="Dao-AILab/flash-attention#517: the documentation changed first",
)
def top_left_after_all(right: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The right thing, declared as a deviation."""
    return Formulas.attendable(right, mask, causal, n, m)


@mutant(
    "NaN under the mask leaks",
    replaces="pooled",
    operations=(ATTENTION, "bahdanau_context", "nadaraya_watson"),
    breaks=("semantics.masked_nonfinite",),
    source="pytorch/pytorch#101967",
)
def multiplied_by_zero(right: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """0·NaN is NaN."""
    return right.attention_pooling(weights, value)


@mutant(
    "NaN under the mask excluded, declared to propagate",
    replaces="pooled",
    operations=(ATTENTION,),
    declares={"masked_nonfinite": "propagates"},
    breaks=("semantics.masked_nonfinite",),
    source="a declaration copied from another library",
)
def excluded_after_all(right: Formulas, weights: Numbers, value: Numbers, mask: Numbers) -> Numbers:
    """The right thing, declared as a deviation."""
    return Formulas.pooled(right, weights, value, mask)


@mutant(
    "odd widths of encodings raise",
    replaces="frequencies",
    operations=("sinusoidal_positional_encoding",),
    breaks=("semantics.odd_encoding",),
    source="gc-os-ai/pyaptamer#607",
)
def even_only(right: Formulas, d: int) -> Numbers:
    """Cosines do not fit into the odd columns."""
    if d % 2:
        raise ValueError(f"could not broadcast {(d + 1) // 2} columns into {d // 2}")
    return Formulas.frequencies(right, d)


@mutant(
    "odd widths end in a cosine",
    replaces="sinusoidal_positional_encoding",
    operations=("sinusoidal_positional_encoding",),
    breaks=("semantics.odd_encoding",),
    source="gc-os-ai/pyaptamer#527: a frequency dropped to make it fit",
)
def unpaired_cosine(right: Formulas, n: int, d: int) -> Numbers:
    """The last column of an odd width holds a cosine."""
    whole = Formulas.sinusoidal_positional_encoding(right, n, d + d % 2)
    return whole if d % 2 == 0 else np.concatenate([whole[:, : d - 1], whole[:, d:]], axis=-1)


@mutant(
    "sums in another order each time",
    operations=(ATTENTION, "attention_pooling"),
    breaks=("semantics.repeatability",),
    source="facebookresearch/xformers#624, tenstorrent/tt-metal#52284",
)
class AnotherOrder(Formulas):
    """Partial sums are added as they come in."""

    calls = 0

    def attention_pooling(self, weights: Numbers, value: Numbers) -> Numbers:
        """Sum forwards and backwards by turns."""
        self.calls += 1
        order = slice(None, None, 1 if self.calls % 2 else -1)
        result = (
            weights[..., :, :1] * value[..., None, 0, :] * 0
            if value.shape[-2]
            else super().attention_pooling(weights, value)
        )
        for j in range(value.shape[-2])[order]:
            result = result + weights[..., :, j : j + 1] * value[..., None, j, :]
        return result


@mutant(
    "noise in the last bits",
    operations=(ATTENTION, "softmax", "dot_scores"),
    breaks=("semantics.repeatability",),
    source="facebookresearch/xformers#624",
)
class Noise(Library):
    """Every other call is one unit in the last place larger."""

    def finished(self, operation: Operation, result: Numbers, arguments: Mapping[str, Any]) -> Numbers:
        """Count calls."""
        vars(self)["calls"] = vars(self).get("calls", 0) + 1
        fresh = super().finished(operation, result, arguments)
        return np.nextafter(fresh, fresh.dtype.type(np.inf)) if vars(self)["calls"] % 2 else fresh
