"""Mutants of masks and of attention under masks.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. S0 to S4 are
sources of the specification.
"""

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.attention import (
    AdditiveAttention,
    CrossAttention,
    DotProductAttention,
    ScaledDotProductAttention,
    SelfAttention,
)
from attnspec.spec.masking import CausalMask, PaddingMask
from attnspec.spec.multihead import MultiHeadAttention
from attnspec.spec.normalization import Softmax
from attnspec.spec.pooling import NadarayaWatson
from attnspec.spec.selected import SelectedAttention

MASKED = (
    ScaledDotProductAttention,
    DotProductAttention,
    AdditiveAttention,
    SelfAttention,
    CrossAttention,
    MultiHeadAttention,
)
CAUSAL = tuple(protocol for protocol in MASKED if protocol is not CrossAttention)

TILE = 64
"""Keys of a tile in a kernel."""


@mutant(
    "True means masked",
    replaces="attendable",
    operations=MASKED,
    breaks=("masking.equals-explicit-mask", "masking.masked-keys-ignored", "masking.masking-equals-truncation"),
    source="InseeFrLab/torchTextClassifiers#92, lucidrains/halonet-pytorch#6",
)
def inverted_mask(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The mask is inverted: True keys are masked."""
    return Formulas.attendable(correct, None if mask is None else ~mask, causal, n, m)


@mutant(
    "masked scores filled with −10⁻⁹",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("masking.masked-keys-ignored", "masking.masking-equals-truncation", "normalization.masked-weight-is-zero"),
    source="Shujun-He/RibonanzaNet#5",
)
def mistyped_fill(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """Masked scores become −10⁻⁹, a typo for −10⁹."""
    return scores if mask is None else np.where(mask, scores, scores.dtype.type(-1e-9))


@mutant(
    "−10⁴ added to masked scores",
    replaces="mask_scores",
    operations=(Softmax, DotProductAttention),
    breaks=("masking.masked-keys-ignored", "semantics.fully_masked"),
    source="huggingface/transformers#12109, hyunwoongko/transformer#40",
)
def minus_ten_thousand(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """10⁴ is subtracted from masked scores, without effect if every key is masked."""
    return scores if mask is None else scores + np.where(mask, scores.dtype.type(0), scores.dtype.type(-1e4))


@mutant(
    "mask added as 0 and 1",
    replaces="mask_scores",
    operations=(Softmax, ScaledDotProductAttention),
    breaks=("masking.masking-equals-truncation", "normalization.masked-weight-is-zero"),
    source="pytorch/pytorch#117939, HKUSTDial/flash-sparse-attention#146",
)
def added_as_numbers(correct: Formulas, scores: Numbers, mask: Numbers) -> Numbers:
    """The boolean mask is taken for an additive one: 0 and 1 are added to the scores."""
    return scores if mask is None else scores + np.where(mask, scores.dtype.type(1), scores.dtype.type(0))


@mutant(
    "masked after the softmax",
    replaces="softmax",
    operations=(Softmax, *MASKED),
    breaks=("masking.masking-equals-truncation", "masking.future-invariance", "normalization.sums-to-one"),
    source="weights not normalised again",
)
def after_the_softmax(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """Masked weights are set to 0 after the softmax: masked keys still count in the denominator."""
    weights = correct.normalized(scores)
    return weights if mask is None else np.where(mask, weights, scores.dtype.type(0))


@mutant(
    "causal mask allows one key too many",
    replaces="causal_mask",
    operations=(CausalMask, *CAUSAL),
    breaks=("masking.future-invariance", "masking.strict-mask-excludes-diagonal"),
    source="off by one in the diagonal",
)
def causal_mask_too_wide(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is j ≤ i + 1 in place of j ≤ i."""
    return np.arange(m) <= np.arange(n)[:, None] + (1 if include_self else -1)


@mutant(
    "causal mask leaves out the diagonal",
    replaces="causal_mask",
    operations=(CausalMask, *CAUSAL),
    breaks=(
        "masking.strict-mask-excludes-diagonal",
        "masking.equals-explicit-mask",
        "operation.options-have-effect",
        "operation.oracle",
    ),
    source="S2: strict and inclusive masks both occur",
)
def always_strict(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is j < i even with include_self."""
    return np.arange(m) < np.arange(n)[:, None]


@mutant(
    "include_self ignored",
    replaces="causal_mask",
    operations=(CausalMask,),
    breaks=("operation.options-have-effect", "masking.strict-mask-excludes-diagonal"),
    source="an option that is accepted and never read",
)
def always_inclusive(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is j ≤ i even without include_self."""
    return Formulas.causal_mask(correct, n, m)


@mutant(
    "causal flag ignored",
    replaces="attendable",
    operations=(*CAUSAL, SelectedAttention),
    breaks=("masking.equals-explicit-mask", "masking.future-invariance"),
    source="a backend that takes the flag for the sake of the signature",
)
def causal_without_effect(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """The causal flag is ignored: all unmasked keys are attended to."""
    return mask


@mutant(
    "causal mask allows only the future",
    replaces="causal_mask",
    operations=(CausalMask, *CAUSAL),
    breaks=("masking.future-invariance", "operation.oracle"),
    source="S2, masked decoder, as printed",
)
def only_the_future(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is i ≤ j: every query sees only itself and the future."""
    rows, columns = np.arange(n)[:, None], np.arange(m)
    return rows <= columns if include_self else rows < columns


@mutant(
    "causal mask aligned at the bottom right",
    replaces="causal_mask",
    operations=(CausalMask,),
    breaks=("positional.prefix-unchanged", "masking.strict-mask-excludes-diagonal"),
    source="Dao-AILab/flash-attention#282, NVIDIA/cutlass#2336",
)
def bottom_right_mask(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is j ≤ i + m − n: bottom right, not top left."""
    return np.arange(m) <= np.arange(n)[:, None] + m - n - (0 if include_self else 1)


@mutant(
    "causal mask in whole tiles of 16",
    replaces="causal_mask",
    operations=CAUSAL,
    breaks=("masking.future-invariance", "masking.equals-explicit-mask"),
    source="blocks above the diagonal skipped, the diagonal block not masked",
)
def whole_tiles(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask is ⌊j/16⌋ ≤ ⌊i/16⌋: queries see whole tiles of 16 keys."""
    return np.arange(m) // 16 <= np.arange(n)[:, None] // 16


@mutant(
    "causal mask of 64 columns",
    replaces="causal_mask",
    operations=(CausalMask, *CAUSAL),
    breaks=("operation.oracle",),
    source="karpathy/nanoGPT#473, facebookresearch/xformers#66",
)
def fixed_triangle(correct: Formulas, n: int, m: int, *, include_self: bool = True) -> Numbers:
    """The causal mask has 64 columns: no query attends to key 64 or later."""
    return Formulas.causal_mask(correct, n, m, include_self=include_self) & (np.arange(m) < 64)


@mutant(
    "mask ignored where causal",
    replaces="attendable",
    operations=CAUSAL,
    breaks=("masking.equals-explicit-mask",),
    source="AI-Hypercomputer/maxtext#878, pytorch/pytorch#122753",
)
def mask_ignored(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """With `causal`, the mask is ignored."""
    return Formulas.attendable(correct, None if causal else mask, causal, n, m)


@mutant(
    "causal ignored where masked",
    replaces="attendable",
    operations=CAUSAL,
    breaks=("masking.equals-explicit-mask",),
    source="keras-team/keras#23038, NVIDIA/TransformerEngine#1524",
)
def causal_ignored(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """With a mask, `causal` is ignored."""
    return Formulas.attendable(correct, mask, causal and mask is None, n, m)


@mutant(
    "mask or causal, not both",
    replaces="attendable",
    operations=CAUSAL,
    breaks=("masking.equals-explicit-mask", "masking.future-invariance"),
    source="zai-org/GLM-4-Voice#182",
)
def mask_or_causal(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Mask and `causal` are joined by "or": keys that either allows are attended to."""
    if not causal or mask is None:
        return Formulas.attendable(correct, mask, causal, n, m)
    return mask | correct.causal_mask(n, m)


@mutant(
    "one-row mask applied to the first query only",
    replaces="attendable",
    operations=MASKED,
    breaks=("operation.broadcast-equals-repeat",),
    source="rows counted from the shape of the mask",
)
def one_row_mask_for_first_query(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """A mask with one row for all queries masks only the first query."""
    if mask is not None and mask.shape[-2] == 1 < n:
        mask = mask | (np.arange(n)[:, None] > 0)
    return Formulas.attendable(correct, mask, causal, n, m)


@mutant(
    "padding mask applied to the queries if n = m",
    replaces="attendable",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="hyunwoongko/transformer#40, huggingface/transformers#26421",
)
def along_the_queries(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """If n = m, a mask of one row is read as one column."""
    if mask is not None and n == m and mask.shape[-2] == 1:
        mask = np.swapaxes(mask, -1, -2)
    return Formulas.attendable(correct, mask, causal, n, m)


@mutant(
    "batch of padding masks read as rows of queries",
    replaces="attendable",
    operations=(ScaledDotProductAttention, DotProductAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="HKUST-KnowComp/R-Net#36: a mask (B, m) broadcast against (n, m) where B = n",
)
def batch_as_queries(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """If B = n, a mask (B, 1, m) is read as (n, m)."""
    if mask is not None and mask.ndim == 3 and mask.shape[-2] == 1 and mask.shape[0] == n:
        mask = mask[:, 0, :]
    return Formulas.attendable(correct, mask, causal, n, m)


@mutant(
    "no scale under a mask",
    replaces="scaled_dot_product_attention",
    operations=(ScaledDotProductAttention, SelfAttention),
    breaks=("masking.equals-explicit-mask", "attention.unbiased-scale"),
    source="mlc-ai/mlc-llm#3426",
)
def fallback_without_scale(
    correct: Formulas, query: Numbers, key: Numbers, value: Numbers, *, mask: Numbers = None, causal: bool = False
) -> Numbers:
    """Under a mask, scores are not divided by √d."""
    score = correct.scaled_dot_scores if mask is None else correct.dot_scores
    return correct.attend(score(query, key), value, mask, causal)


@mutant(
    "last attendable key dropped",
    replaces="attendable",
    operations=MASKED,
    breaks=("masking.equals-explicit-mask",),
    source="lengths off by one in the unpadding",
)
def last_key_dropped(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Under a mask, a key is ignored unless the next key is attendable as well."""
    if mask is not None:
        mask = mask & np.concatenate([mask[..., 1:], np.zeros_like(mask[..., :1])], axis=-1)
    return Formulas.attendable(correct, mask, causal, n, m)


@mutant(
    "own key dropped in the first row of a tile",
    replaces="attendable",
    operations=CAUSAL,
    breaks=("operation.oracle",),
    source="a causal kernel whose loop over tiles of keys ends one key early",
)
def own_key_dropped_at_borders(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """In causal rows 64, 128, …, the query does not attend to its own key."""
    attendable = Formulas.attendable(correct, mask, causal, n, m)
    rows, columns = np.arange(n)[:, None], np.arange(m)
    at_border = (rows > 0) & (rows % TILE == 0) & (rows == columns)
    return attendable & ~at_border if causal else attendable


@mutant(
    "masked keys count in the maximum",
    replaces="softmax",
    operations=(DotProductAttention, ScaledDotProductAttention, NadarayaWatson),
    breaks=("masking.masked-keys-ignored",),
    source="Dao-AILab/flash-attention#2082",
)
def garbage_in_the_maximum(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
    """The subtracted maximum includes masked scores: large ones make all weights underflow."""
    exponentials = np.exp(correct.mask_scores(scores - correct.shift(scores), mask))
    total = correct.total(exponentials)
    return exponentials / np.where(total == 0, scores.dtype.type(1), total)


@mutant(
    "padding allows one key more than the length",
    replaces="padding_mask",
    operations=(PaddingMask,),
    breaks=("masking.padding-keeps-first-keys",),
    source="j ≤ length",
)
def one_more_than_length(correct: Formulas, lengths: Numbers, m: int) -> Numbers:
    """The padding mask is j ≤ ℓ in place of j < ℓ."""
    correct.check_lengths(lengths, m)
    return np.arange(m) <= lengths[..., None]


@mutant(
    "padding on the left",
    replaces="padding_mask",
    operations=(PaddingMask,),
    breaks=("masking.padding-keeps-first-keys", "masking.masking-equals-truncation"),
    source="tokenizers pad on either side",
)
def padded_left(correct: Formulas, lengths: Numbers, m: int) -> Numbers:
    """The padding mask allows the last ℓ keys, not the first."""
    correct.check_lengths(lengths, m)
    return np.arange(m) >= m - lengths[..., None]


@mutant(
    "lengths not checked",
    replaces="check_lengths",
    operations=(PaddingMask,),
    breaks=("operation.rejection",),
    source="a comparison never fails",
)
def unchecked_lengths(correct: Formulas, lengths: Numbers, m: int) -> None:
    """Lengths below 0 or beyond m do not raise."""


@mutant(
    "key lengths of another batch element",
    replaces="padding_mask",
    operations=(PaddingMask,),
    breaks=("operation.batch-invariance", "masking.padding-keeps-first-keys"),
    source="facebookresearch/InferSent#51",
)
def sorted_lengths(correct: Formulas, lengths: Numbers, m: int) -> Numbers:
    """Lengths are sorted over the batch and not put back."""
    return Formulas.padding_mask(correct, np.sort(lengths, axis=None).reshape(lengths.shape), m)
