"""Mutants of attention kernels in use: grouped heads, packed and paged sequences."""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.kernels import (
    AlibiSlopes,
    DocumentMask,
    Dropout,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    RotaryEmbedding,
    SlidingWindowMask,
    VariableLengthAttention,
)

IN_GROUPS = (GroupedQueryAttention, VariableLengthAttention, PagedAttention)

# Groups of heads ------------------------------------------------------------------------------------------------------


@mutant(
    "heads of keys in turn",
    replaces="for_heads",
    operations=IN_GROUPS,
    breaks=("kernels.groups", "operation.oracle"),
    source="onnx/onnx#7274: Tile in place of repeat_interleave, r % h_k for r // group",
)
def tiled_heads(correct: Formulas, x: Numbers, group: int) -> Numbers:
    """Query head r attends to key head r % h_k, not r // group."""
    every = np.arange(group * x.shape[-3]) % x.shape[-3]
    return np.moveaxis(np.moveaxis(x, -3, 0)[every], 0, -3)


@mutant(
    "first head of keys for all",
    replaces="for_heads",
    operations=IN_GROUPS,
    breaks=("kernels.groups", "operation.oracle", "operation.gradient"),
    source="a kernel with one group, called with more",
)
def one_group(correct: Formulas, x: Numbers, group: int) -> Numbers:
    """All query heads attend to the first key head."""
    return np.repeat(x[..., :1, :, :], group * x.shape[-3], axis=-3)


# Options --------------------------------------------------------------------------------------------------------------


@mutant(
    "window with one key too many",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, VariableLengthAttention, SlidingWindowMask),
    breaks=("masking.spelled-out", "kernels.masks", "operation.oracle"),
    source="huggingface/transformers#39408: sliding_window where sliding_window − 1 is meant",
)
def wide_window(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """The window reaches one key further to the left."""
    left, right = (None, None) if window is None else window
    return Formulas.sliding_window_mask(correct, n, m, window=(None if left is None else left + 1, right))


@mutant(
    "window without the query's own position",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, SlidingWindowMask),
    breaks=("kernels.masks", "operation.oracle"),
    source="microsoft/onnxruntime#25927: a local window that excludes the current token",
)
def window_without_itself(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """A window leaves out the query's own position."""
    near = Formulas.sliding_window_mask(correct, n, m, window=window)
    return near if window is None else near & ~np.eye(n, m, dtype=bool)


@mutant(
    "an end of a window that is 0 counts as none",
    replaces="near",
    operations=(GroupedQueryAttention,),
    breaks=("masking.spelled-out", "operation.oracle"),
    source="`if window[0]:`, for which 0 is as good as None",
)
def falsy_window(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """An end of 0 counts as None: the window is open to that side."""
    open_ends = None if window is None else (window[0] or None, window[1] or None)
    return Formulas.near(correct, mask, open_ends, lengths, n, m)


@mutant(
    "right end of a window forgotten",
    replaces="near",
    operations=(GroupedQueryAttention,),
    breaks=("masking.spelled-out", "operation.oracle"),
    source="a kernel with window_size_left alone, whose causal flag is left to the caller",
)
def without_right_end(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The right end of a window is ignored: it reaches to the last key."""
    return Formulas.near(correct, mask, None if window is None else (window[0], None), lengths, n, m)


@mutant(
    "left end of a window forgotten",
    replaces="near",
    operations=(GroupedQueryAttention,),
    breaks=("masking.spelled-out", "operation.oracle"),
    source="a window of look-ahead alone, beside a causal flag",
)
def without_left_end(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The left end of a window is ignored: it reaches to the first key."""
    return Formulas.near(correct, mask, None if window is None else (None, window[1]), lengths, n, m)


@mutant(
    "window that is accepted and forgotten",
    replaces="near",
    operations=(GroupedQueryAttention,),
    breaks=("operation.option-effect", "masking.spelled-out"),
    source="an argument that one of two code paths does not pass on",
)
def no_window(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The window is ignored."""
    return Formulas.near(correct, mask, None, lengths, n, m)


@mutant(
    "lengths that are accepted and forgotten",
    replaces="near",
    operations=(GroupedQueryAttention,),
    breaks=("operation.option-effect", "masking.truncation", "operation.oracle"),
    source="padding that a fast path attends to",
)
def no_lengths(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The lengths are ignored: keys beyond them are attended to."""
    return Formulas.near(correct, mask, window, None, n, m)


@mutant(
    "scale of 0 for the default",
    replaces="scaled_by",
    operations=(*IN_GROUPS, LatentAttention),
    breaks=("kernels.cap",),
    source="`scale or d ** -0.5`",
)
def falsy_scale(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """A scale of 0 is replaced by the default 1/√d."""
    return Formulas.scaled_by(correct, scores, d, scale or None)


@mutant(
    "scale upon the default one",
    replaces="scaled_by",
    operations=(*IN_GROUPS, LatentAttention),
    breaks=("operation.option-effect", "operation.oracle"),
    source="queries scaled before a kernel that scales them too",
)
def scaled_twice(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """Scores are multiplied by the scale and divided by √d as well."""
    found = Formulas.scaled_by(correct, scores, d, scale)
    return found if scale is None else found / np.sqrt(scores.dtype.type(d))


@mutant(
    "cap after the bias and the mask",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.cap", "operation.oracle"),
    source="onnx/onnx#7865: softcap after the mask, for which −∞ becomes −c",
)
class CapAfterMask(Formulas):
    """The cap c follows the mask: masked keys get the score −c and thus weight."""

    def biased(self, scores: Numbers, softcap: Any, bias: Numbers, slopes: Numbers, attendable: Numbers) -> Numbers:
        """Cap the masked scores last."""
        found = super().biased(scores, None, bias, slopes, attendable)
        return self.capped(self.excluded(found, attendable), softcap)

    def weighted(self, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
        """Leave out only scores of −∞."""
        return super().weighted(scores, values, value_of(scores) != -np.inf)


@mutant(
    "scores times tanh of scores",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("kernels.cap", "operation.oracle", "operation.option-effect"),
    source="c tanh(s/c) misread as s tanh(s)",
)
def scores_by_tanh(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become s tanh(s), whatever the cap."""
    return scores if softcap is None else scores * np.tanh(scores)


@mutant(
    "cap that is not divided by",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("kernels.cap", "operation.oracle", "operation.option-effect"),
    source="c tanh(s), where the scale should have held 1/c",
)
def tanh_of_scores(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become c tanh(s) in place of c tanh(s/c)."""
    return scores if softcap is None else np.tanh(scores) * scores.dtype.type(softcap)


@mutant(
    "scores cut off at the cap",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("operation.oracle", "operation.option-effect"),
    source="a clamp in place of a tanh",
)
def clamped(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become min(max(s, −c), c) in place of c tanh(s/c)."""
    if softcap is None:
        return scores
    return np.minimum(np.maximum(scores, scores.dtype.type(-softcap)), scores.dtype.type(softcap))


@mutant(
    "sinks that are accepted and forgotten",
    replaces="with_sink",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.bias", "operation.oracle"),
    source="vllm-project/vllm#52156: sinks taken in **kwargs and dropped",
)
def no_sinks(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
) -> tuple[Numbers, Numbers]:
    """The sink is ignored: the weights of the keys sum to 1."""
    return correct.weighted(scores, values, attendable)


@mutant(
    "logarithm without the sink",
    replaces="logarithms",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.bias", "kernels.logarithm", "operation.oracle"),
    source="parts of a cache merged by logarithms of which each leaves out the sink",
)
def logarithm_without_sink(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The log-sum-exp leaves out the sink."""
    return Formulas.logarithms(correct, scores, attendable, None)


@mutant(
    "sinks of the heads in reverse",
    replaces="with_sink",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.bias", "operation.oracle"),
    source="sharded heads that load the sinks of another rank",
)
def sinks_exchanged(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
) -> tuple[Numbers, Numbers]:
    """Sinks are read in reverse: the first head has the sink of the last."""
    return Formulas.with_sink(correct, scores, values, attendable, sinks[::-1])


@mutant(
    "distance with its sign",
    replaces="distances",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.bias", "operation.oracle"),
    source="linear biases written for causal attention, used without it: later keys are preferred",
)
def signed_distances(correct: Formulas, n: int, m: int) -> Numbers:
    """The distance is i − j in place of |i − j|, negative for later keys."""
    return np.arange(n)[:, None] - np.arange(m)


@mutant(
    "linear bias from the top left, causal mask at the bottom right",
    replaces="attendable",
    operations=(GroupedQueryAttention,),
    declares={"causal_alignment": "bottom-right"},
    breaks=("kernels.bias", "masking.spelled-out", "operation.oracle"),
    source="Dao-AILab/flash-attention#517: the mask moved, and what else counts from its diagonal did not",
)
def mask_alone_moves(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Only the causal mask is bottom-right, j ≤ i + m − n; distances |i − j| and windows around i are not."""
    if not causal:
        return mask
    triangle = np.tri(n, m, m - n, dtype=bool)
    return triangle if mask is None else mask & triangle


@mutant(
    "linear bias that is added",
    replaces="linear_bias",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.bias", "operation.oracle", "operation.gradient"),
    source="slopes that are stored with their sign",
)
def added_slopes(correct: Formulas, slopes: Numbers, n: int, m: int) -> Numbers:
    """The linear bias is added, not subtracted: distant keys get more weight."""
    return -Formulas.linear_bias(correct, slopes, n, m)


# Logarithms -----------------------------------------------------------------------------------------------------------


@mutant(
    "logarithm to the base 2",
    replaces="log_sum_exp",
    operations=(*IN_GROUPS, MergeAttention),
    breaks=("kernels.logarithm", "kernels.merged", "operation.oracle"),
    source="flashinfer-ai/flashinfer#2113: log₂ Σ 2ˣ, where others return log Σ eˣ",
)
def base_two(correct: Formulas, scores: Numbers) -> Numbers:
    """log-sum-exps are divided by log 2."""
    return Formulas.log_sum_exp(correct, scores) / scores.dtype.type(np.log(2))


@mutant(
    "logarithm of the first head for all",
    replaces="logarithms",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.groups", "operation.oracle"),
    source="an offset that lacks the stride of heads",
)
def first_logarithm(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """Every head has the log-sum-exp of the first."""
    found = Formulas.logarithms(correct, scores, attendable, sinks)
    return np.broadcast_to(found[..., :1, :], found.shape)


@mutant(
    "logarithm relative to the greatest score",
    replaces="log_sum_exp",
    operations=(*IN_GROUPS, MergeAttention),
    breaks=("kernels.logarithm", "kernels.merged", "operation.oracle"),
    source="Dao-AILab/flash-attention#404: log Σ exp(x − max x), by which blocks cannot be merged",
)
def relative_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp is log Σ exp(x − max x), without max x added back."""
    return Formulas.log_sum_exp(correct, scores - value_of(correct.shift(scores)))


@mutant(
    "finite logarithm of an empty row",
    replaces="log_sum_exp",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.logarithm",),
    source="a fill of −10⁹ in place of −∞",
)
def finite_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp of an empty row is −10⁹, not −∞."""
    return np.maximum(Formulas.log_sum_exp(correct, scores), scores.dtype.type(-1e9))


@mutant(
    "logarithms that are added",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("kernels.merged", "operation.oracle"),
    source="zhuzilin/ring-flash-attention#20: lse + block_lse",
)
def added_logarithms(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """The merged log-sum-exp is the sum of those of the parts."""
    merged, _ = Formulas.merge_attention(correct, outputs, log_sum_exps)
    return merged, np.broadcast_to(np.sum(log_sum_exps, axis=-1), merged.shape[:-1])


@mutant(
    "parts with equal weights",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("kernels.merged", "operation.oracle"),
    source="outputs of devices averaged, each of which has seen other keys",
)
def averaged_parts(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """Outputs of the parts are averaged with equal weights."""
    _, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    return np.sum(outputs, axis=-2) / outputs.dtype.type(max(outputs.shape[-2], 1)) + 0 * logarithms[
        ..., None
    ], logarithms


@mutant(
    "logarithms without a gradient",
    replaces="log_sum_exp",
    operations=(GroupedQueryAttention, MergeAttention),
    breaks=("operation.gradient",),
    source="Dao-AILab/flash-attention#404: the gradient of softmax_lse is not taken into account",
)
def constant_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """No gradient flows from the log-sum-exps."""
    return Formulas.log_sum_exp(correct, value_of(scores))


@mutant(
    "weights of parts without a gradient",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("attention.gradient-identities", "operation.gradient"),
    source="an online rescaling that is detached",
)
def constant_weights(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """No gradient flows from the merged output to the log-sum-exps of the parts."""
    merged, _ = Formulas.merge_attention(correct, outputs, value_of(log_sum_exps))
    _, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    return merged, logarithms


# Sequences in one array, and in pages ---------------------------------------------------------------------------------


@mutant(
    "packed sequences that see each other",
    replaces="variable_length_attention",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed", "operation.oracle"),
    source="huggingface/transformers#46634: cross-sequence contamination under an all-ones mask",
)
def contaminated(
    correct: Formulas,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    query_ends: Numbers,
    key_ends: Numbers,
    **options: Any,
) -> Numbers:
    """Packed sequences are computed as one sequence."""
    return correct.grouped_query_attention(query, key, value, **options)


@mutant(
    "sequences that end one position early",
    replaces="sequences",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed", "operation.oracle"),
    source="a last key that is left out",
)
def short_sequences(correct: Formulas, ends: Numbers) -> list[slice]:
    """Every sequence but the last ends one position early, where the next one begins."""
    moved = ends.copy()
    moved[1:-1] = np.maximum(moved[1:-1] - 1, 0)
    return Formulas.sequences(correct, moved)


@mutant(
    "pages in the order of memory",
    replaces="gathered",
    operations=(PagedAttention,),
    breaks=("kernels.contiguous", "operation.oracle"),
    source="hw-native-sys/pypto#470: blocks of a table taken for neighbours in the cache",
)
def neighbouring_pages(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Consecutive pages are read from the table's first entry on; its other entries are ignored."""
    return Formulas.gathered(correct, pages, (table[..., :1] + np.arange(table.shape[-1])) % len(pages))


@mutant(
    "stale rows of the last page",
    replaces="cached",
    operations=(PagedAttention,),
    breaks=("kernels.contiguous", "operation.oracle"),
    source="rows behind the length that a mask does not reach",
)
def stale_rows(correct: Formulas, lengths: Numbers, n: int, m: int, causal: bool, window: Any) -> Numbers:
    """Two rows beyond the length are attended to."""
    full = Formulas.cached(correct, lengths, n, m, causal, window)
    if causal or window is not None:
        return full
    return np.broadcast_to(np.arange(m) < lengths[..., None, None] + 2, full.shape)


@mutant(
    "queries at the first positions of the cache",
    replaces="last_positions",
    operations=(PagedAttention,),
    breaks=("kernels.contiguous", "operation.oracle"),
    source="thu-ml/SageAttention#372: a top-left causal mask where queries are the last positions",
)
def first_positions(correct: Formulas, lengths: Numbers, n: int) -> Numbers:
    """Query i is placed at position i, not among the last positions of the cache."""
    return 0 * lengths[..., None, None] + np.arange(n)[:, None]


# Latent keys ----------------------------------------------------------------------------------------------------------


@mutant(
    "rotated part left out",
    replaces="latent_attention",
    operations=(LatentAttention,),
    breaks=("kernels.plain-and-absorbed", "operation.oracle"),
    source="an absorbed path for queries without positions",
)
def without_rotated(
    correct: Formulas,
    query: Numbers,
    query_rope: Numbers,
    latent: Numbers,
    key_rope: Numbers,
    *rest: Any,
    **options: Any,
) -> Numbers:
    """Scores leave out the rotated parts of queries and keys."""
    return Formulas.latent_attention(correct, query, 0 * query_rope, latent, key_rope, *rest, **options)


@mutant(
    "scale of the absorbed width",
    replaces="scaled_by",
    operations=(LatentAttention,),
    breaks=("kernels.plain-and-absorbed", "operation.oracle"),
    source="1/√(d_c + d_r), the size that the absorbed form multiplies",
)
def absorbed_scale(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """The scale is that of twice as many features, 1/√(2d)."""
    return Formulas.scaled_by(correct, scores, 2 * d, scale)


# Positions and masks --------------------------------------------------------------------------------------------------


@mutant(
    "halves turned by the angles of neighbours",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="rotate_half with angles that are repeated in pairs",
)
def repeated_angles(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Every two pairs of features share one angle."""
    found = Formulas.angles(correct, positions, d, theta)
    return np.repeat(found[..., : (found.shape[-1] + 1) // 2], 2, axis=-1)[..., : found.shape[-1]]


@mutant(
    "pairs of halves, undeclared",
    replaces="pairs",
    operations=(RotaryEmbedding,),
    breaks=("semantics.rotary_pairs", "operation.oracle"),
    source="huggingface/candle#3410: weights of one convention under the other",
)
def half_pairs(correct: Formulas, x: Numbers) -> tuple[Numbers, Numbers]:
    """Feature i is paired with feature i + d/2, and the result is interleaved."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


@mutant(
    "reflection for a rotation",
    replaces="turned",
    operations=(RotaryEmbedding,),
    breaks=("kernels.rotation", "operation.oracle"),
    source="a lost sign",
)
def reflected(
    correct: Formulas, first: Numbers, second: Numbers, cosine: Numbers, sine: Numbers
) -> tuple[Numbers, Numbers]:
    """The first feature is rotated with +sin in place of −sin."""
    return first * cosine + second * sine, first * sine + second * cosine


@mutant(
    "angles that grow with the square of the position",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("kernels.rotation", "operation.oracle"),
    source="positions added in place, and counted twice in a loop",
)
def squared_positions(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Angles are those of t²/16 in place of the position t."""
    return Formulas.angles(correct, positions**2 / 16, d, theta)


@mutant(
    "slopes from 1 on",
    replaces="alibi_slopes",
    operations=(AlibiSlopes,),
    breaks=("kernels.slope-halves", "operation.oracle"),
    source="paiml/aprender#2143: 2^(−8r/h) for 2^(−8(r + 1)/h)",
)
def early_slopes(correct: Formulas, heads: int) -> Numbers:
    """The slopes begin with 1, one step too early."""
    found = Formulas.alibi_slopes(correct, heads)
    below = 2 ** int(np.floor(np.log2(heads)))
    return (found * 2.0 ** (8 / below)).astype(found.dtype)


@mutant(
    "slopes of one series for any number of heads",
    replaces="alibi_slopes",
    operations=(AlibiSlopes,),
    breaks=("kernels.slope-halves", "operation.oracle"),
    source="the closed formula for powers of two",
)
def one_series(correct: Formulas, heads: int) -> Numbers:
    """The slopes are 2^(−8(r + 1)/h) even if h is no power of two."""
    return (2.0 ** (-8 * (np.arange(heads) + 1) / heads)).astype(correct.default)


@mutant(
    "documents in their order",
    replaces="document_mask",
    operations=(DocumentMask,),
    breaks=("kernels.masks", "operation.oracle"),
    source="≥ for =, as in a mask that is causal between documents",
)
def earlier_documents(correct: Formulas, query_documents: Numbers, key_documents: Numbers) -> Numbers:
    """Keys of documents with smaller numbers are attendable, too."""
    return query_documents[..., :, None] >= key_documents[..., None, :]


@mutant(
    "dropout without scaling",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-mean", "operation.oracle"),
    source="dropout before it was inverted: scaled when testing",
)
def unscaled_dropout(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """Kept weights are not divided by 1 − rate."""
    return Formulas.dropout(correct, weights, keep=keep, rate=0.0)


@mutant(
    "dropout scaled by the rate",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-mean", "operation.oracle", "operation.option-effect"),
    source="a keep probability taken for a drop probability",
)
def scaled_by_rate(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """Kept weights are divided by the rate in place of 1 − rate."""
    return Formulas.dropout(correct, weights, keep=keep, rate=1 - rate if rate else 0.0)


@mutant(
    "dropped weights kept",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-mean", "operation.oracle"),
    source="a mask of what is dropped, passed as one of what is kept",
)
def dropped_for_kept(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """The mask of kept weights is inverted: True is dropped."""
    return Formulas.dropout(correct, weights, keep=None if keep is None else ~keep, rate=rate)
