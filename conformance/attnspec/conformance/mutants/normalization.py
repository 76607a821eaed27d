"""Mutants of softmax and mean normalization.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``value_of(x)``
is x without its record of gradients, so that no gradient flows through it.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.normalization import MeanNormalization, Softmax
from attnspec.spec.pooling import AveragePooling


@mutant(
    "softmax over the queries",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one", "normalization.order-preserved"),
    source="labmlai/annotated_deep_learning_paper_implementations#146",
)
def over_the_queries(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The weights of every key sum to 1, not those of every query."""
    excluded = np.swapaxes(correct.mask_scores(scores, mask), -1, -2)
    return np.swapaxes(correct.normalized(excluded), -1, -2)


@mutant(
    "softmax over the batch",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("operation.batch-invariance", "normalization.sums-to-one"),
    source="PetrochukM/PyTorch-NLP#2",
)
def over_the_batch(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The softmax runs along the first dimension in place of the last."""
    excluded = correct.mask_scores(scores, mask)
    return np.moveaxis(correct.normalized(np.moveaxis(excluded, 0, -1)), -1, 0)


@mutant(
    "softmax always causal",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("attention.permutation-equivariance",),
    source="a kernel fused with the upper triangular mask, used for every model",
)
def always_causal(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The softmax is causal: row i ends at key i."""
    return Formulas.softmax(correct, scores, mask=correct.attendable(mask, True, *scores.shape[-2:]))


@mutant(
    "no maximum subtracted",
    replaces="shift",
    operations=(Softmax,),
    breaks=("normalization.extreme-scores-stay-finite",),
    source="the textbook formula, typed in as it stands",
)
def without_shift(correct: Formulas, scores: Numbers) -> Numbers:
    """No maximum is subtracted: exp overflows above 88 in single precision."""
    return np.zeros_like(scores[..., :1])


@mutant(
    "one maximum for the whole array",
    replaces="shift",
    operations=(Softmax,),
    breaks=("operation.oracle",),
    source="axis forgotten in the maximum",
)
def global_maximum(correct: Formulas, scores: Numbers) -> Numbers:
    """The maximum of the whole array is subtracted: rows far below it underflow to 0."""
    highest = np.max(scores, initial=-np.inf)
    return np.where(highest == -np.inf, scores.dtype.type(0), highest)


@mutant(
    "maximum over masked scores as well",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("normalization.extreme-scores-stay-finite",),
    source="Dao-AILab/flash-attention#2082",
)
def maximum_of_masked(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The subtracted maximum includes masked scores: a large one makes the others underflow."""
    shifted = scores - correct.shift(scores)
    exponentials = np.exp(correct.mask_scores(shifted, mask))
    total = correct.total(exponentials)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "running maximum starts at 0",
    replaces="shift",
    operations=(Softmax,),
    breaks=("normalization.extreme-scores-stay-finite",),
    source="Dao-AILab/flash-attention#2082",
)
def maximum_from_zero(correct: Formulas, scores: Numbers) -> Numbers:
    """The subtracted maximum is at least 0: rows of scores far below 0 underflow."""
    return np.maximum(Formulas.shift(correct, scores), scores.dtype.type(0))


@mutant(
    "running maximum starts at −10⁴",
    replaces="shift",
    operations=(Softmax,),
    breaks=("normalization.extreme-scores-stay-finite",),
    source="a finite number in the place of −∞",
)
def maximum_from_minus_ten_thousand(correct: Formulas, scores: Numbers) -> Numbers:
    """The subtracted maximum is at least −10⁴: rows of scores far below underflow."""
    return np.maximum(Formulas.shift(correct, scores), scores.dtype.type(-1e4))


@mutant(
    "10⁻⁵ added to the sum of exponentials",
    replaces="total",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="guards against division by zero",
)
def added_to_sum(correct: Formulas, x: Numbers) -> Numbers:
    """10⁻⁵ is added to every sum of exponentials."""
    return Formulas.total(correct, x) + x.dtype.type(1e-5)


@mutant(
    "1 added to the sum of exponentials",
    replaces="normalized",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one", "normalization.shift-invariance"),
    source="softmax1/Flash-Attention-Softmax-N",
)
def one_added_to_sum(correct: Formulas, scores: Numbers) -> Numbers:
    """Weights are exp e/(1 + Σ exp e) and sum to less than 1."""
    shift = np.maximum(correct.shift(scores), scores.dtype.type(0))
    exponentials = np.exp(scores - shift)
    return exponentials / (np.exp(-shift) + correct.total(exponentials))


@mutant(
    "masked scores are 0",
    replaces="mask_scores",
    operations=(Softmax,),
    breaks=("normalization.masked-weight-is-zero",),
    source="huggingface/transformers#12109",
)
def multiplied_mask(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores become 0, which counts with weight exp 0 = 1."""
    return scores if mask is None else np.where(mask, scores, scores.dtype.type(0))


@mutant(
    "scores clipped at ±10",
    replaces="normalized",
    operations=(Softmax,),
    breaks=("operation.oracle",),
    source="clipping that keeps exp from overflowing",
)
def scores_clipped(correct: Formulas, scores: Numbers) -> Numbers:
    """Scores are clipped to ±10."""
    bounded = np.minimum(np.maximum(scores, scores.dtype.type(-10)), scores.dtype.type(10))
    return Formulas.normalized(correct, np.where(scores == -np.inf, scores, bounded))


@mutant(
    "a tile of scores of −∞ makes its row NaN",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("normalization.infinite-scores",),
    source="flashinfer-ai/flashinfer#1178, flagos-ai/FlagGems#330",
)
def tile_of_minus_infinity(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """A tile of 16 keys whose attendable scores are all −∞ makes its row NaN."""
    lost = [
        correct.undefined_weights(scores[..., start : start + 16], _columns(mask, start)).any(-1, keepdims=True)
        for start in range(0, scores.shape[-1], 16)
    ]
    weights = Formulas.softmax(correct, scores, mask=mask)
    return np.where(np.logical_or.reduce(lost), scores.dtype.type(np.nan), weights)


def _columns(mask: Numbers, start: int) -> Numbers:
    """Mask of the 16 keys from ``start`` on; a one-column mask stays as it is."""
    return mask if mask is None or mask.shape[-1] == 1 else mask[..., start : start + 16]


@mutant(
    "+∞ has all the weight",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("normalization.infinite-scores",),
    source="requested in pytorch/pytorch#6864 and scipy/scipy#23225",
)
def infinite_scores_share_weight(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Attendable scores of +∞ share all the weight of their row, which should be NaN."""
    infinite = value_of(scores) == np.inf
    highest = np.any(infinite & (True if mask is None else mask), axis=-1, keepdims=True)
    infinite_only = np.where(infinite, scores.dtype.type(0), scores.dtype.type(-np.inf))
    return Formulas.softmax(correct, np.where(highest, infinite_only, scores), mask=mask)


@mutant(
    "NaN weights are 0",
    replaces="softmax",
    operations=(Softmax,),
    breaks=("normalization.infinite-scores", "semantics.minus_infinity", "semantics.attendable_nan"),
    source="tenstorrent/tt-metal#56056, mindspore-ai/mindspore#374",
)
def nan_weights_zeroed(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Weights that are NaN, undefined ones included, become 0."""
    weights = Formulas.softmax(correct, scores, mask=mask)
    return np.where(np.isnan(value_of(weights)), scores.dtype.type(0), weights)


@mutant(
    "exp(−e)",
    replaces="normalized",
    operations=(Softmax,),
    breaks=("normalization.order-preserved",),
    source="distances passed where similarities are meant",
)
def negated_scores(correct: Formulas, scores: Numbers) -> Numbers:
    """Scores are negated: the smallest score gets the greatest weight."""
    return Formulas.normalized(correct, np.where(scores == -np.inf, scores, -scores))


@mutant(
    "exp x ≈ 1 + x",
    replaces="exponential",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one",),
    source="Taylor feature maps of odd order in linear attention",
)
def first_order_exponential(correct: Formulas, x: Numbers) -> Numbers:
    """exp x is computed as 1 + x, which is negative below −1."""
    return np.where(x == -np.inf, x.dtype.type(0), 1 + x)


@mutant(
    "logarithms in place of weights",
    replaces="normalized",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one",),
    source="log_softmax in place of softmax",
)
def logarithms_of_weights(correct: Formulas, scores: Numbers) -> Numbers:
    """Logarithms of the weights are returned, and 0 for weights of 0."""
    weights = Formulas.normalized(correct, scores)
    return np.where(weights > 0, np.log(weights), scores.dtype.type(0))


@mutant(
    "exp2 without log₂e",
    replaces="exponential",
    operations=(Softmax,),
    breaks=("operation.oracle",),
    source="kernels that fold log₂e into the scale",
)
def wrong_base(correct: Formulas, x: Numbers) -> Numbers:
    """2^x is computed in place of e^x."""
    return np.exp2(x)


@mutant(
    "sum of exponentials rounded to bfloat16",
    replaces="total",
    operations=(Softmax,),
    breaks=("normalization.sums-to-one", "operation.oracle"),
    source="accumulation in the storage dtype",
)
def low_precision_total(correct: Formulas, x: Numbers) -> Numbers:
    """The sum of exponentials is rounded to bfloat16."""
    return rounded(Formulas.total(correct, x), "bfloat16")


@mutant(
    "mean divided by all keys, masked ones too",
    replaces="count_keys",
    operations=(MeanNormalization,),
    breaks=("masking.masking-equals-truncation", "operation.oracle"),
    source="AnglE#102, EmbedAnything#210",
)
def counts_everything(correct: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """The mean divides by all m keys, masked ones included."""
    return Formulas.count_keys(correct, shape, None, dtype)


@mutant(
    "scores normalised by their absolute sum",
    replaces="mean_normalization",
    operations=(MeanNormalization,),
    breaks=("pooling.linearity",),
    source="L1 normalisation",
)
def absolute_sum(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Scores e are divided by Σ|e| in place of the number of keys."""
    cleared = scores if mask is None else np.where(mask, scores, scores.dtype.type(0))
    total = correct.total(np.abs(cleared))
    return cleared / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "masked keys keep their weight in the mean",
    replaces="mean_normalization",
    operations=(MeanNormalization,),
    breaks=("normalization.masked-weight-is-zero",),
    source="the mask only counted, not applied",
)
def masked_keys_keep_weight(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Masked keys keep the weight e/k, for k attendable keys, in place of 0."""
    return np.broadcast_to(scores, np.broadcast_shapes(scores.shape, np.shape(mask) if mask is not None else ())) / (
        correct.count_keys(np.broadcast_shapes(scores.shape, () if mask is None else mask.shape), mask, scores.dtype)
    )


@mutant(
    "attendable keys counted in float16",
    replaces="count_keys",
    operations=(MeanNormalization, AveragePooling),
    dtype="float16",
    breaks=("sizes.model-sizes",),
    source="a count that is cast to the dtype of what it divides",
)
def half_count(correct: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """The number of keys is rounded to float16: more than 65,504 count as ∞."""
    return rounded(Formulas.count_keys(correct, shape, mask, dtype), "float16")


@mutant(
    "attendable keys counted modulo 128",
    replaces="count_keys",
    operations=(MeanNormalization, AveragePooling),
    breaks=("operation.oracle",),
    source="sums of boolean or byte masks in their own dtype",
)
def byte_count(correct: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """More than 127 attendable keys are counted modulo 128."""
    count = Formulas.count_keys(correct, shape, mask, np.int64)
    return np.where(count > 127, np.maximum(count % 128, 1), count).astype(dtype)
