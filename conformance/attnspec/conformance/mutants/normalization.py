"""Mutants of normalization."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.registry import mutant


@mutant(
    "softmax over the queries",
    replaces="softmax",
    operations=("softmax",),
    breaks=("normalization.row-sums", "normalization.order"),
    source="labmlai/annotated_deep_learning_paper_implementations#146",
)
def over_the_queries(right: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The weights of every key sum to 1, not those of every query."""
    excluded = np.swapaxes(right.excluded(scores, mask), -1, -2)
    return np.swapaxes(right.normalized(excluded), -1, -2)


@mutant(
    "softmax over the batch",
    replaces="softmax",
    operations=("softmax",),
    breaks=("operation.batch-invariance", "normalization.row-sums"),
    source="PetrochukM/PyTorch-NLP#2",
)
def over_the_batch(right: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Normalised along the first dimension, whatever it is."""
    excluded = right.excluded(scores, mask)
    return np.moveaxis(right.normalized(np.moveaxis(excluded, 0, -1)), -1, 0)


@mutant(
    "no maximum subtracted",
    replaces="shift",
    operations=("softmax",),
    breaks=("normalization.extreme-scores",),
    source="the textbook formula, typed in as it stands",
)
def without_shift(right: Formulas, scores: Numbers) -> Numbers:
    """exp overflows above 88 in single precision."""
    return np.zeros_like(scores[..., :1])


@mutant(
    "one maximum for the whole array",
    replaces="shift",
    operations=("softmax",),
    breaks=("operation.oracle",),
    source="axis forgotten in the maximum",
)
def global_maximum(right: Formulas, scores: Numbers) -> Numbers:
    """Rows far below the greatest score of another row underflow to 0."""
    highest = np.max(scores, initial=-np.inf)
    return np.where(highest == -np.inf, scores.dtype.type(0), highest)


@mutant(
    "maximum over masked scores as well",
    replaces="softmax",
    operations=("softmax",),
    breaks=("normalization.extreme-scores",),
    source="Dao-AILab/flash-attention#2082",
)
def maximum_of_masked(right: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """A great score under the mask makes all others underflow."""
    shifted = scores - right.shift(scores)
    exponentials = np.exp(right.excluded(shifted, mask))
    total = right.total(exponentials)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "running maximum starts at 0",
    replaces="shift",
    operations=("softmax",),
    breaks=("normalization.extreme-scores",),
    source="Dao-AILab/flash-attention#2082",
)
def maximum_from_zero(right: Formulas, scores: Numbers) -> Numbers:
    """Rows of scores far below 0 underflow."""
    return np.maximum(Formulas.shift(right, scores), scores.dtype.type(0))


@mutant(
    "running maximum starts at −10⁴",
    replaces="shift",
    operations=("softmax",),
    breaks=("normalization.extreme-scores",),
    source="a finite number in the place of −∞",
)
def maximum_from_minus_ten_thousand(right: Formulas, scores: Numbers) -> Numbers:
    """Rows of scores below −10⁴ underflow."""
    return np.maximum(Formulas.shift(right, scores), scores.dtype.type(-1e4))


@mutant(
    "ε in the denominator",
    replaces="total",
    operations=("softmax",),
    breaks=("normalization.row-sums", "operation.oracle"),
    source="guards against division by zero",
)
def epsilon(right: Formulas, x: Numbers) -> Numbers:
    """10⁻⁵ is added to every sum."""
    return Formulas.total(right, x) + x.dtype.type(1e-5)


@mutant(
    "one more in the denominator",
    replaces="normalized",
    operations=("softmax",),
    breaks=("normalization.row-sums", "normalization.shift-invariance"),
    source="softmax1/Flash-Attention-Softmax-N",
)
def off_by_one(right: Formulas, scores: Numbers) -> Numbers:
    """exp e/(1 + Σ exp e): attention may go nowhere."""
    shift = np.maximum(right.shift(scores), scores.dtype.type(0))
    exponentials = np.exp(scores - shift)
    return exponentials / (np.exp(-shift) + right.total(exponentials))


@mutant(
    "masked scores are 0",
    replaces="excluded",
    operations=("softmax",),
    breaks=("normalization.masked-zero",),
    source="huggingface/transformers#12109",
)
def multiplied_mask(right: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Scores times the mask: exp 0 is 1."""
    return scores if mask is None else np.where(mask, scores, scores.dtype.type(0))


@mutant(
    "scores clipped at ±10",
    replaces="normalized",
    operations=("softmax",),
    breaks=("operation.oracle",),
    source="clipping that keeps exp from overflowing",
)
def clipped(right: Formulas, scores: Numbers) -> Numbers:
    """Scores beyond ±10 all count alike."""
    bounded = np.minimum(np.maximum(scores, scores.dtype.type(-10)), scores.dtype.type(10))
    return Formulas.normalized(right, np.where(scores == -np.inf, scores, bounded))


@mutant(
    "exp(−e)",
    replaces="normalized",
    operations=("softmax",),
    breaks=("normalization.order",),
    source="distances passed where similarities are meant",
)
def softmin(right: Formulas, scores: Numbers) -> Numbers:
    """The smallest score gets the greatest weight."""
    return Formulas.normalized(right, np.where(scores == -np.inf, scores, -scores))


@mutant(
    "exp x ≈ 1 + x",
    replaces="exponential",
    operations=("softmax",),
    breaks=("normalization.nonnegative",),
    source="Taylor feature maps of odd order in linear attention",
)
def first_order(right: Formulas, x: Numbers) -> Numbers:
    """Negative below −1."""
    return np.where(x == -np.inf, x.dtype.type(0), 1 + x)


@mutant(
    "logarithms of the weights",
    replaces="normalized",
    operations=("softmax",),
    breaks=("normalization.nonnegative", "normalization.row-sums"),
    source="log_softmax in place of softmax",
)
def logarithms(right: Formulas, scores: Numbers) -> Numbers:
    """log α."""
    weights = Formulas.normalized(right, scores)
    return np.where(weights > 0, np.log(weights), scores.dtype.type(0))


@mutant(
    "exp2 without log₂e",
    replaces="exponential",
    operations=("softmax",),
    breaks=("operation.oracle",),
    source="kernels that fold log₂e into the scale",
)
def wrong_base(right: Formulas, x: Numbers) -> Numbers:
    """2^x for e^x."""
    return np.exp2(x)


@mutant(
    "denominator summed in bfloat16",
    replaces="total",
    operations=("softmax",),
    breaks=("normalization.row-sums", "operation.oracle"),
    source="accumulation in the storage dtype",
)
def low_precision_total(right: Formulas, x: Numbers) -> Numbers:
    """The sum of exponentials is rounded to bfloat16."""
    return rounded(Formulas.total(right, x), "bfloat16")


@mutant(
    "mean over all keys, masked ones too",
    replaces="count",
    operations=("mean_normalization",),
    breaks=("operation.oracle",),
    source="AnglE#102, EmbedAnything#210",
)
def counts_everything(right: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """Divided by m whatever the mask says."""
    return Formulas.count(right, shape, None, dtype)


@mutant(
    "scores normalised by their absolute sum",
    replaces="mean_normalization",
    operations=("mean_normalization",),
    breaks=("normalization.homogeneity",),
    source="L1 normalisation",
)
def absolute_sum(right: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """e/Σ|e|."""
    kept = scores if mask is None else np.where(mask, scores, scores.dtype.type(0))
    total = right.total(np.abs(kept))
    return kept / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "masked scores not zeroed in the mean",
    replaces="mean_normalization",
    operations=("mean_normalization",),
    breaks=("normalization.masked-zero",),
    source="the mask only counted, not applied",
)
def counted_only(right: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """e/|A| at masked keys as well."""
    return np.broadcast_to(scores, np.broadcast_shapes(scores.shape, np.shape(mask) if mask is not None else ())) / (
        right.count(np.broadcast_shapes(scores.shape, () if mask is None else mask.shape), mask, scores.dtype)
    )


@mutant(
    "attendable keys counted in eight bits",
    replaces="count",
    operations=("mean_normalization", "average_pooling"),
    breaks=("operation.oracle",),
    source="sums of boolean or byte masks in their own dtype",
)
def byte_count(right: Formulas, shape: tuple[int, ...], mask: Numbers, dtype: Any) -> Numbers:
    """The number of keys modulo 128."""
    count = Formulas.count(right, shape, mask, np.int64)
    return np.where(count > 127, np.maximum(count % 128, 1), count).astype(dtype)
