"""Mutants of weighted sums of values.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. S0 to S4 are
sources of the specification.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.normalization import MeanNormalization
from attnspec.spec.pooling import AttentionPooling, AveragePooling, NadarayaWatson

POOLING = (ScaledDotProductAttention, DotProductAttention, AdditiveAttention, AttentionPooling)


@mutant(
    "negative weights cut off",
    replaces="attention_pooling",
    operations=(AttentionPooling,),
    breaks=("pooling.linearity",),
    source="weights assumed to come from a softmax",
)
def clipped_weights(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Weights α become max(0, α)."""
    return Formulas.attention_pooling(correct, np.maximum(weights, weights.dtype.type(0)), value)


@mutant(
    "weights normalised once more",
    replaces="attention_pooling",
    operations=(AttentionPooling,),
    breaks=("pooling.linearity",),
    source="a second division by the row sum",
)
def renormalised(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Weights α become α/Σ|α|."""
    total = correct.total(np.abs(weights))
    return Formulas.attention_pooling(correct, weights / np.where(total == 0, weights.dtype.type(1), total), value)


@mutant(
    "values through a ReLU",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("pooling.linearity",),
    source="an activation after the value projection",
)
def relu_values(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Negative values count as 0."""
    return Formulas.attention_pooling(correct, weights, np.maximum(value, value.dtype.type(0)))


@mutant(
    "values rounded to multiples of 2⁻⁸",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("pooling.linearity", "operation.oracle"),
    source="quantised values with a static step",
)
def quantised_values(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Values are rounded to multiples of 2⁻⁸."""
    step = value.dtype.type(2.0**-8)
    return Formulas.attention_pooling(correct, weights, np.rint(value / step) * step)


@mutant(
    "10⁻³ added to the result",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("pooling.linearity", "pooling.convexity"),
    source="an output projection with bias folded in",
)
def added_to_result(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """10⁻³ is added to every element of the result."""
    return Formulas.attention_pooling(correct, weights, value) + value.dtype.type(1e-3)


@mutant(
    "result normalised to length 1",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("pooling.linearity", "pooling.convexity"),
    source="embeddings normalised where values are expected",
)
def normalised_result(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Results o become o/‖o‖."""
    result = Formulas.attention_pooling(correct, weights, value)
    length = np.sqrt(correct.total(result * result))
    return result / np.where(length == 0, value.dtype.type(1), length)


@mutant(
    "results 0.1 % too large in bfloat16",
    replaces="attention_pooling",
    operations=(AttentionPooling, ScaledDotProductAttention, AdditiveAttention),
    dtype="bfloat16",
    breaks=("pooling.unbiased-gain",),
    source="a normaliser rounded before the division",
)
def slight_gain(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Results are multiplied by 1.001, which is less than the rounding of any element."""
    return Formulas.attention_pooling(correct, weights, value) * value.dtype.type(1.001)


@mutant(
    "dropout left on",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("attention.permutation-equivariance", "pooling.convexity"),
    source="karpathy/nanoGPT#240, pytorch/pytorch#124464",
)
def dropout_left_on(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Every tenth weight is 0, in every call the same ones; others are divided by 0.9."""
    in_use = np.arange(weights.size).reshape(weights.shape) % 10 != 3
    return Formulas.attention_pooling(
        correct, np.where(in_use, weights / weights.dtype.type(0.9), weights.dtype.type(0)), value
    )


@mutant(
    "weights rounded to bfloat16",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("operation.oracle",),
    source="accumulation in the storage dtype",
)
def low_precision_sum(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Weights are rounded to bfloat16, which is not declared."""
    return Formulas.attention_pooling(correct, rounded(weights, "bfloat16"), value)


@mutant(
    "result columns beyond the 64th are 0",
    replaces="attention_pooling",
    operations=POOLING,
    breaks=("operation.oracle",),
    source="Dao-AILab/flash-attention, head sizes of values and keys confused",
)
def first_columns(correct: Formulas, weights: Numbers, value: Numbers) -> Numbers:
    """Columns of the result from the 65th on are 0."""
    result = Formulas.attention_pooling(correct, weights, value)
    return np.where(np.arange(value.shape[-1]) < 64, result, value.dtype.type(0))


@mutant(
    "padding in the mean",
    replaces="average_pooling",
    operations=(AveragePooling,),
    breaks=("pooling.convexity", "masking.masking-equals-truncation"),
    source="jsboige/CoursIA#15045, mead-ml/mead-baseline#325",
)
def mean_with_padding(correct: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """The mean divides by the number of all values, masked ones included."""
    cleared = value if mask is None else np.where(mask[..., None], value, value.dtype.type(0))
    return np.sum(cleared, axis=-2) / value.dtype.type(max(value.shape[-2], 1))


@mutant(
    "each value counts half as much as the next",
    replaces="average_pooling",
    operations=(AveragePooling,),
    breaks=("attention.permutation-equivariance", "attention.duplicated-keys-change-nothing"),
    source="exponential smoothing, which forgets",
)
def moving_average(correct: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """The last value counts once, and every other half as much as the next one."""
    m = value.shape[-2]
    decayed = value * (2.0 ** (np.arange(m) - m + 1))[:, None].astype(value.dtype)
    return Formulas.average_pooling(correct, decayed, mask=mask)


@mutant(
    "one value too many counted in the mean",
    replaces="count_keys",
    operations=(AveragePooling,),
    breaks=(
        "attention.single-key-returns-its-value",
        "attention.duplicated-keys-change-nothing",
        "attention.split-and-merge",
        "pooling.convexity",
    ),
    source="Laplace smoothing left on",
)
def smoothed_count(correct: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """The mean of k values is their sum divided by k + 1."""
    return Formulas.count_keys(correct, shape, mask, dtype) + np.dtype(dtype).type(1)


@mutant(
    "mask ignored in the mean",
    replaces="average_pooling",
    operations=(AveragePooling,),
    breaks=("masking.masked-keys-ignored", "masking.masking-equals-truncation"),
    source="jsboige/CoursIA#15045",
)
def mean_of_everything(correct: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """Masked values are averaged as well."""
    batch = np.broadcast_shapes(value.shape[:-1], () if mask is None else mask.shape)
    everything = np.broadcast_to(value, (*batch, value.shape[-1]))
    return Formulas.average_pooling(correct, everything)


@mutant(
    "one count for the whole batch",
    replaces="count_keys",
    operations=(AveragePooling, MeanNormalization),
    breaks=("operation.batch-invariance", "operation.oracle"),
    source="StarlightSearch/EmbedAnything#210, SeanLee97/AnglE#102",
)
def batch_count(correct: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """Every batch element divides by the mean number of attendable keys over the batch."""
    count = Formulas.count_keys(correct, shape, mask, np.float64)
    return np.full(count.shape, count.mean() if count.size else 1.0).astype(dtype)


@mutant(
    "maximum in place of the mean",
    replaces="average_pooling",
    operations=(AveragePooling,),
    breaks=("pooling.linearity",),
    source="max pooling for mean pooling",
)
def maximum_for_mean(correct: Formulas, value: Numbers, *, mask: Numbers = None) -> Numbers:
    """The maximum of the attendable values is returned in place of the mean."""
    filled = value if mask is None else np.where(mask[..., None], value, value.dtype.type(-np.inf))
    highest = np.max(filled, axis=-2, initial=-np.inf)
    return np.where(highest == -np.inf, value.dtype.type(0), highest)


@mutant(
    "kernel sums not divided",
    replaces="normalized",
    operations=(NadarayaWatson,),
    breaks=("pooling.convexity",),
    source="the numerator alone",
)
def undivided_kernel_sums(correct: Formulas, scores: Numbers) -> Numbers:
    """Sums ΣK v of values are not divided by the sum ΣK of kernels."""
    return np.exp(scores)


@mutant(
    "kernel quotient 0/0 far from the keys",
    replaces="shift",
    operations=(NadarayaWatson,),
    breaks=("pooling.equal-keys-give-mean", "operation.oracle"),
    source="S4: ΣK(x−xᵢ)yᵢ/ΣK is 0/0 far from the keys",
)
def printed_quotient(correct: Formulas, scores: Numbers) -> Numbers:
    """No maximum is subtracted: far from the keys every kernel underflows, and results are 0."""
    return np.zeros_like(scores[..., :1])


@mutant(
    "kernel of twice the width",
    replaces="gaussian_scores",
    operations=(NadarayaWatson,),
    breaks=("attention.unbiased-scale",),
    source="exp(−‖u‖²) and exp(−½‖u‖²) are both called Gaussian kernels",
)
def wide_kernel(correct: Formulas, query: Numbers, key: Numbers) -> Numbers:
    """Scores are −¼‖q − k‖² in place of −½‖q − k‖²."""
    return 0.5 * Formulas.gaussian_scores(correct, query, key)
