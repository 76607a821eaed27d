"""Mutants of attention kernels in use: grouped heads, packed and paged sequences.

Each function is one step of ``Formulas``, the correct formulas, with a defect; ``replaces`` names it, and
``Formulas.step(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone; others may, too.
``value_of(x)`` is x without its record of gradients, so that no gradient flows through it.
"""

from functools import partial
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.library import rounded
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.registry import mutant
from attnspec.spec.kernels import (
    AlibiSlopes,
    AttentionWeights,
    AxialRotaryEmbedding,
    DocumentMask,
    Dropout,
    GatedOutput,
    GroupedQueryAttention,
    LatentAttention,
    MergeAttention,
    PagedAttention,
    PositionsFromMask,
    RelativePositionBias,
    RollingBufferPositions,
    RotaryEmbedding,
    RotaryFrequencies,
    SigmoidAttention,
    SlidingWindowMask,
    TreeMask,
    VariableLengthAttention,
)

IN_GROUPS = (GroupedQueryAttention, VariableLengthAttention, PagedAttention)

# Groups of heads ------------------------------------------------------------------------------------------------------


@mutant(
    "key heads assigned in turn",
    replaces="repeat_heads",
    operations=IN_GROUPS,
    breaks=("semantics.head_groups", "kernels.grouped-heads-share-keys", "operation.oracle"),
    source="onnx/onnx#7274: Tile in place of repeat_interleave, r % h_k for r // group",
)
def tiled_heads(correct: Formulas, x: Numbers, group: int) -> Numbers:
    """Query head r attends to key head r % h_k, not r // group."""
    every = np.arange(group * x.shape[-3]) % x.shape[-3]
    return np.moveaxis(np.moveaxis(x, -3, 0)[every], 0, -3)


@mutant(
    "first key head used for all",
    replaces="repeat_heads",
    operations=IN_GROUPS,
    breaks=("kernels.grouped-heads-share-keys", "operation.oracle", "operation.gradient"),
    source="a kernel with one group, called with more",
)
def first_key_head(correct: Formulas, x: Numbers, group: int) -> Numbers:
    """All query heads attend to the first key head."""
    return np.repeat(x[..., :1, :, :], group * x.shape[-3], axis=-3)


# Attention weights as the result --------------------------------------------------------------------------------------


@mutant(
    "attention weights averaged over heads",
    replaces="attention_weights",
    operations=(AttentionWeights,),
    breaks=("kernels.weights-pool-values", "kernels.grouped-heads-share-keys", "operation.oracle"),
    source="average_attn_weights of PyTorch's MultiheadAttention, True by default",
)
def averaged_weights(correct: Formulas, query: Numbers, key: Numbers, **options: Any) -> Numbers:
    """Every head gets the mean of the weights of all heads."""
    weights = Formulas.attention_weights(correct, query, key, **options)
    mean = np.sum(weights, axis=-3, keepdims=True) / weights.dtype.type(weights.shape[-3])
    return np.broadcast_to(mean, weights.shape)


@mutant(
    "attention weights relative to the largest",
    replaces="attention_weights",
    operations=(AttentionWeights,),
    breaks=("normalization.sums-to-one", "kernels.weights-pool-values", "operation.oracle"),
    source="a flash kernel that writes exp(s − max) of each tile and divides the output alone",
)
def undivided_weights(correct: Formulas, query: Numbers, key: Numbers, **options: Any) -> Numbers:
    """Weights are exp(s − max), not divided by their sum."""
    weights = Formulas.attention_weights(correct, query, key, **options)
    largest = np.max(value_of(weights), axis=-1, keepdims=True, initial=0)
    return weights / np.where(largest > 0, largest, largest.dtype.type(1))


@mutant(
    "attention weights that sum to 1 with a sink",
    replaces="attention_weights",
    operations=(AttentionWeights,),
    breaks=("kernels.weights-pool-values", "operation.options-have-effect", "operation.oracle"),
    source="weights recomputed from scores and mask, without the sinks",
)
def weights_without_sink(
    correct: Formulas, query: Numbers, key: Numbers, *, sinks: Numbers = None, **options: Any
) -> Numbers:
    """Sinks have no effect on the weights."""
    return Formulas.attention_weights(correct, query, key, **options)


@mutant(
    "attention weights of masked keys",
    replaces="attention_weights",
    operations=(AttentionWeights,),
    breaks=("normalization.masked-weight-is-zero", "kernels.weights-pool-values", "operation.oracle"),
    source="weights returned before the mask is applied",
)
def weights_before_the_mask(
    correct: Formulas, query: Numbers, key: Numbers, *, bias: Numbers = None, **options: Any
) -> Numbers:
    """Options other than the bias, masks included, have no effect on the weights."""
    weights = Formulas.attention_weights(correct, query, key, bias=bias, **options)
    return np.broadcast_to(Formulas.attention_weights(correct, query, key, bias=bias), weights.shape)


# Options --------------------------------------------------------------------------------------------------------------


@mutant(
    "window with one key too many",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, VariableLengthAttention, SlidingWindowMask),
    breaks=("masking.equals-explicit-mask", "kernels.window-and-document-masks", "operation.oracle"),
    source="huggingface/transformers#39408: sliding_window where sliding_window − 1 is meant",
)
def wide_window(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """The window reaches one key further to the left."""
    left, right = (None, None) if window is None else window
    return Formulas.sliding_window_mask(correct, n, m, window=(None if left is None else left + 1, right))


@mutant(
    "window with one key too few",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, VariableLengthAttention, SlidingWindowMask),
    breaks=("masking.equals-explicit-mask", "operation.oracle"),
    source="huggingface/transformers#29623: sliding_window − 1 where sliding_window is meant",
)
def narrow_window(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """The window ends one key earlier on the left, if it has a key there."""
    left, right = (None, None) if window is None else window
    return Formulas.sliding_window_mask(correct, n, m, window=(left and left - 1, right))


@mutant(
    "window without the query's own position",
    replaces="sliding_window_mask",
    operations=(GroupedQueryAttention, SlidingWindowMask),
    breaks=("kernels.window-and-document-masks", "operation.oracle"),
    source="microsoft/onnxruntime#25927: a local window that excludes the current token",
)
def window_without_itself(correct: Formulas, n: int, m: int, *, window: Any = None) -> Numbers:
    """A window leaves out the query's own position."""
    near = Formulas.sliding_window_mask(correct, n, m, window=window)
    return near if window is None else near & ~np.eye(n, m, dtype=bool)


@mutant(
    "window end 0 taken for None",
    replaces="join_masks",
    operations=(GroupedQueryAttention,),
    breaks=("masking.equals-explicit-mask", "operation.oracle"),
    source="`if window[0]:`, which takes 0 for None",
)
def falsy_window(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """A window end of 0 counts as None: the window is open to that side."""
    open_ends = None if window is None else (window[0] or None, window[1] or None)
    return Formulas.join_masks(correct, mask, open_ends, lengths, n, m)


@mutant(
    "right end of a window forgotten",
    replaces="join_masks",
    operations=(GroupedQueryAttention,),
    breaks=("masking.equals-explicit-mask", "operation.oracle"),
    source="a kernel with window_size_left alone, whose causal flag is left to the caller",
)
def without_right_end(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The right end of a window is ignored: it reaches to the last key."""
    return Formulas.join_masks(correct, mask, None if window is None else (window[0], None), lengths, n, m)


@mutant(
    "left end of a window forgotten",
    replaces="join_masks",
    operations=(GroupedQueryAttention,),
    breaks=("masking.equals-explicit-mask", "operation.oracle"),
    source="a window of look-ahead alone, beside a causal flag",
)
def without_left_end(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The left end of a window is ignored: it reaches to the first key."""
    return Formulas.join_masks(correct, mask, None if window is None else (None, window[1]), lengths, n, m)


@mutant(
    "window forgotten",
    replaces="join_masks",
    operations=(GroupedQueryAttention,),
    breaks=("operation.options-have-effect", "masking.equals-explicit-mask"),
    source="an argument that one of two code paths does not pass on",
)
def no_window(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The window is ignored."""
    return Formulas.join_masks(correct, mask, None, lengths, n, m)


@mutant(
    "lengths forgotten",
    replaces="join_masks",
    operations=(GroupedQueryAttention,),
    breaks=("operation.options-have-effect", "masking.masking-equals-truncation", "operation.oracle"),
    source="padding that a fast path attends to",
)
def no_lengths(correct: Formulas, mask: Numbers, window: Any, lengths: Numbers, n: int, m: int) -> Numbers:
    """The lengths are ignored: keys beyond them are attended to."""
    return Formulas.join_masks(correct, mask, window, None, n, m)


@mutant(
    "scale 0 replaced by the default",
    replaces="scaled_by",
    operations=(*IN_GROUPS, LatentAttention),
    breaks=("kernels.score-cap-limits",),
    source="`scale or d ** -0.5`",
)
def falsy_scale(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """A scale of 0 is replaced by the default 1/√d; the law compares a tiny cap with it."""
    return Formulas.scaled_by(correct, scores, d, scale or None)


@mutant(
    "scale applied on top of the default",
    replaces="scaled_by",
    operations=(*IN_GROUPS, LatentAttention),
    breaks=("operation.options-have-effect", "operation.oracle"),
    source="queries scaled before a kernel that scales them too",
)
def scaled_twice(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """Scores are multiplied by the scale and divided by √d as well."""
    scaled = Formulas.scaled_by(correct, scores, d, scale)
    return scaled if scale is None else scaled / np.sqrt(scores.dtype.type(d))


@mutant(
    "cap after the bias and the mask",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.score-cap-limits", "operation.oracle"),
    source="onnx/onnx#7865: softcap after the mask turns −∞ into −c",
)
class CapAfterMask(Formulas):
    """Scores are capped by c after the mask: masked keys get the score −c."""

    def biased(self, scores: Numbers, softcap: Any, bias: Numbers, slopes: Numbers, attendable: Numbers) -> Numbers:
        """Cap the masked scores last."""
        scored = super().biased(scores, None, bias, slopes, attendable)
        return self.capped(self.mask_scores(scored, attendable), softcap)

    def weighted(self, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
        """Leave out only scores of −∞."""
        return super().weighted(scores, values, value_of(scores) != -np.inf)


@mutant(
    "scores times tanh of scores",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("kernels.score-cap-limits", "operation.oracle", "operation.options-have-effect"),
    source="c tanh(s/c) misread as s tanh(s)",
)
def scores_by_tanh(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become s tanh(s), whatever the cap."""
    return scores if softcap is None else scores * np.tanh(scores)


@mutant(
    "scores not divided by the cap",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("kernels.score-cap-limits", "operation.oracle", "operation.options-have-effect"),
    source="c tanh(s), where the scale should have held 1/c",
)
def tanh_of_scores(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become c tanh(s) in place of c tanh(s/c)."""
    return scores if softcap is None else np.tanh(scores) * scores.dtype.type(softcap)


@mutant(
    "scores clipped at the cap",
    replaces="capped",
    operations=IN_GROUPS,
    breaks=("operation.oracle", "operation.options-have-effect"),
    source="a clamp in place of a tanh",
)
def scores_clipped_at_cap(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Scores s become min(max(s, −c), c) in place of c tanh(s/c)."""
    if softcap is None:
        return scores
    return np.minimum(np.maximum(scores, scores.dtype.type(-softcap)), scores.dtype.type(softcap))


@mutant(
    "sinks forgotten",
    replaces="with_sink",
    operations=IN_GROUPS,
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="vllm-project/vllm#52156: sinks taken in **kwargs and dropped",
)
def no_sinks(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
) -> tuple[Numbers, Numbers]:
    """The sink is ignored: the weights of the keys sum to 1."""
    return correct.weighted(scores, values, attendable)


@mutant(
    "log-sum-exp without the sink",
    replaces="log_sum_exps",
    operations=IN_GROUPS,
    breaks=("kernels.slopes-and-sinks-are-biases", "kernels.log-sum-exp", "operation.oracle"),
    source="parts of a cache merged by log-sum-exps that leave out the sink",
)
def logarithm_without_sink(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The log-sum-exp leaves out the sink."""
    return Formulas.log_sum_exps(correct, scores, attendable, None)


@mutant(
    "sinks of the heads in reverse",
    replaces="with_sink",
    operations=IN_GROUPS,
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="sharded heads that load the sinks of another rank",
)
def sinks_exchanged(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
) -> tuple[Numbers, Numbers]:
    """Sinks are read in reverse: the first head has the sink of the last."""
    return Formulas.with_sink(correct, scores, values, attendable, sinks[::-1])


@mutant(
    "first head's sink used for all",
    operations=IN_GROUPS,
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="a sink that a kernel loads once, for all heads of its block",
)
class FirstSink(Formulas):
    """Every head has the sink of the first."""

    def grouped_query_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *, sinks: Numbers = None, **options: Any
    ) -> Numbers:
        """Attention with the first sink for all heads."""
        first = None if sinks is None else np.broadcast_to(sinks[:1], sinks.shape)
        return super().grouped_query_attention(query, key, value, sinks=first, **options)


@mutant(
    "signed distance",
    replaces="distances",
    operations=(GroupedQueryAttention, VariableLengthAttention),
    breaks=("semantics.alibi_distances", "kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="linear biases written for causal attention, used without it: later keys are preferred",
)
def signed_distances(correct: Formulas, n: int, m: int) -> Numbers:
    """The distance is i − j, not |i − j|: negative for later keys."""
    return np.arange(n)[:, None] - np.arange(m)


@mutant(
    "windows and biases top-left under a bottom-right causal mask",
    replaces="attendable",
    operations=(GroupedQueryAttention,),
    declares={"causal_alignment": "bottom-right"},
    breaks=("kernels.slopes-and-sinks-are-biases", "masking.equals-explicit-mask", "operation.oracle"),
    source="Dao-AILab/flash-attention#517: the mask moved, windows and biases did not",
)
def mask_alone_moves(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Under the declared bottom-right causal mask, distances |i − j| and windows stay top-left."""
    if not causal:
        return mask
    triangle = np.tri(n, m, m - n, dtype=bool)
    return triangle if mask is None else mask & triangle


@mutant(
    "linear bias added, not subtracted",
    replaces="linear_bias",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle", "operation.gradient"),
    source="slopes that are stored with their sign",
)
def added_linear_bias(correct: Formulas, slopes: Numbers, n: int, m: int) -> Numbers:
    """The linear bias is added, not subtracted: distant keys get more weight."""
    return -Formulas.linear_bias(correct, slopes, n, m)


# Logarithms -----------------------------------------------------------------------------------------------------------


@mutant(
    "log-sum-exp in base 2",
    replaces="log_sum_exp",
    operations=(*IN_GROUPS, MergeAttention),
    breaks=(
        "kernels.log-sum-exp",
        "kernels.merged-parts-equal-whole",
        "operation.oracle",
        "semantics.logarithms",
    ),
    source="flashinfer-ai/flashinfer#2113: log₂ Σ 2ˣ, where others return log Σ eˣ",
)
def log_sum_exp_in_base_two(correct: Formulas, scores: Numbers) -> Numbers:
    """Log-sum-exps are divided by log 2, as for base 2."""
    return Formulas.log_sum_exp(correct, scores) / scores.dtype.type(np.log(2))


@mutant(
    "first head's log-sum-exp used for all",
    replaces="log_sum_exps",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.grouped-heads-share-keys", "operation.oracle"),
    source="an offset that lacks the stride of heads",
)
def first_logarithm(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """Every head has the log-sum-exp of the first."""
    by_head = Formulas.log_sum_exps(correct, scores, attendable, sinks)
    return np.broadcast_to(by_head[..., :1, :], by_head.shape)


@mutant(
    "log-sum-exp without its maximum",
    replaces="log_sum_exp",
    operations=(*IN_GROUPS, MergeAttention),
    breaks=("kernels.log-sum-exp", "kernels.merged-parts-equal-whole", "operation.oracle"),
    source="Dao-AILab/flash-attention#404: log Σ exp(x − max x), with which blocks cannot be merged",
)
def relative_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp is log Σ exp(x − max x), without max x added back."""
    return Formulas.log_sum_exp(correct, scores - value_of(correct.shift(scores)))


@mutant(
    "log-sum-exp −10⁹ of an empty row",
    replaces="log_sum_exp",
    operations=(GroupedQueryAttention,),
    breaks=("kernels.log-sum-exp",),
    source="a fill of −10⁹ in place of −∞",
)
def finite_logarithm(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp of an empty row is −10⁹, not −∞."""
    return np.maximum(Formulas.log_sum_exp(correct, scores), scores.dtype.type(-1e9))


@mutant(
    "log-sum-exps of parts added",
    replaces="merge_attention",
    operations=(MergeAttention,),
    breaks=("kernels.merged-parts-equal-whole", "operation.oracle"),
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
    breaks=("kernels.merged-parts-equal-whole", "operation.oracle"),
    source="outputs averaged over devices that saw different keys",
)
def averaged_parts(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """Outputs of the parts are averaged with equal weights."""
    _, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    mean = np.sum(outputs, axis=-2) / outputs.dtype.type(max(outputs.shape[-2], 1))
    return mean + 0 * logarithms[..., None], logarithms  # 0 * … broadcasts to the batch of both arguments


@mutant(
    "log-sum-exps without a gradient",
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
    "packed sequences attend to each other",
    replaces="variable_length_attention",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed-equals-separate", "operation.oracle"),
    source="huggingface/transformers#46634: cross-sequence contamination under an all-ones mask",
)
def packed_as_one_sequence(
    correct: Formulas,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    *ends: Numbers,
    key_lengths: Numbers = None,
    **options: Any,
) -> Numbers:
    """Packed sequences are computed as one sequence."""
    return correct.grouped_query_attention(query, key, value, **options)


@mutant(
    "packed sequences end one position early",
    replaces="sequence_slices",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed-equals-separate", "operation.oracle"),
    source="a last key that is left out",
)
def short_sequences(correct: Formulas, ends: Numbers) -> list[slice]:
    """Every sequence but the last ends one position early, where the next one begins."""
    moved = ends.copy()
    moved[1:-1] = np.maximum(moved[1:-1] - 1, 0)
    return Formulas.sequence_slices(correct, moved)


counting_keys = partial(
    mutant,
    replaces="used_keys",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed-equals-separate", "operation.oracle"),
)
"""Decorator of a mutant that misreads how many keys the sequences use."""


@counting_keys(
    "keys used by the first sequence for all",
    source="Dao-AILab/flash-attention#1192: one length for the batch in place of that of the sequence",
)
def first_length(correct: Formulas, ends: Numbers, lengths: Numbers) -> list[slice]:
    """All sequences use as many keys as the first one."""
    return Formulas.used_keys(correct, ends, None if lengths is None else np.full_like(lengths, lengths.flat[0]))


@counting_keys(
    "one key too many used",
    source="≤ for <",
)
def one_key_more(correct: Formulas, ends: Numbers, lengths: Numbers) -> list[slice]:
    """Every sequence uses the key behind its length, if it has one."""
    return Formulas.used_keys(correct, ends, None if lengths is None else lengths + 1)


@counting_keys(
    "keys used counted from the start of the packed row",
    source="the end of a sequence taken for its length",
)
def lengths_as_ends(correct: Formulas, ends: Numbers, lengths: Numbers) -> list[slice]:
    """The number of keys used is the position in the packed array where they end."""
    slices = Formulas.used_keys(correct, ends, None)
    if lengths is None:
        return slices
    return [slice(x.start, max(x.start, min(x.stop, int(n)))) for x, n in zip(slices, lengths, strict=True)]


@counting_keys(
    "last keys of a sequence used",
    source="sequences padded on the left",
)
def last_keys(correct: Formulas, ends: Numbers, lengths: Numbers) -> list[slice]:
    """The last keys of a sequence are used, not the first."""
    slices = Formulas.used_keys(correct, ends, None)
    if lengths is None:
        return slices
    return [slice(max(x.start, x.stop - int(n)), x.stop) for x, n in zip(slices, lengths, strict=True)]


@mutant(
    "unused keys with weight 0",
    replaces="variable_length_attention",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed-equals-separate",),
    source="Dao-AILab/flash-attention#2167: tests fill the region behind seqused with zeros",
)
def unused_keys_as_zeros(
    correct: Formulas,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    query_ends: Numbers,
    key_ends: Numbers,
    *,
    key_lengths: Numbers = None,
    **options: Any,
) -> Numbers:
    """Values behind the length are multiplied by 0: NaN and ∞ give NaN."""
    output, logarithms = Formulas.variable_length_attention(
        correct, query, key, value, query_ends, key_ends, key_lengths=key_lengths, **options
    )
    if key_lengths is None:
        return output, logarithms
    hidden = np.ones(key.shape[-2], bool)
    for used in correct.used_keys(key_ends, key_lengths):
        hidden[used] = False
    return output + np.sum(value_of(value)[..., hidden, :] * 0), logarithms


@mutant(
    "consecutive pages in place of the table",
    replaces="gather_rows",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="hw-native-sys/pypto#470: blocks of a table taken for neighbours in the cache",
)
def neighbouring_pages(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Consecutive pages are read from the table's first entry on; its other entries are ignored."""
    return Formulas.gather_rows(correct, pages, (table[..., :1] + np.arange(table.shape[-1])) % len(pages))


@mutant(
    "two rows beyond the length attended to",
    replaces="cache_mask",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="rows behind the length that a mask does not reach",
)
def stale_rows(correct: Formulas, lengths: Numbers, n: int, m: int, causal: bool, window: Any) -> Numbers:
    """Without causal flag and window, two keys beyond the length are attended to."""
    full = Formulas.cache_mask(correct, lengths, n, m, causal, window)
    if causal or window is not None:
        return full
    return np.broadcast_to(np.arange(m) < lengths[..., None, None] + 2, full.shape)


@mutant(
    "queries at the first positions of the cache",
    replaces="query_positions",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="thu-ml/SageAttention#372: a top-left causal mask where queries are the last positions",
)
def first_positions(correct: Formulas, lengths: Numbers, n: int) -> Numbers:
    """Query i of n is placed at position i, not length − n + i."""
    return 0 * lengths[..., None, None] + np.arange(n)[:, None]  # 0 * … broadcasts to the batch of the lengths


# Positions in caches and of padded sequences -----------------------------------------------------------------------


rolling = partial(
    mutant, operations=(RollingBufferPositions,), breaks=("kernels.rolling-buffer-keeps-last", "operation.oracle")
)
"""Decorator of a mutant of the positions in a rolling buffer."""

padded = partial(
    mutant, operations=(PositionsFromMask,), breaks=("kernels.padding-takes-no-position", "operation.oracle")
)
"""Decorator of a mutant of the positions of padded sequences."""


@rolling(
    "slots taken for positions",
    replaces="rolling_buffer_positions",
    source="rotary embeddings and masks by the index in the cache",
)
def slots_as_positions(correct: Formulas, lengths: Numbers, slots: int) -> Numbers:
    """Slot s has position s if it was written."""
    slot = np.arange(slots)
    return np.where(slot < lengths[..., None], slot, -1)


@rolling(
    "oldest position in the first slot",
    replaces="age_of_slots",
    source="huggingface/transformers#37574: a cache that is shifted, read as one that rolls",
)
def shifted_buffer(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """A full buffer is in the order of positions."""
    return np.where(last >= slots, slots - 1 - slot, Formulas.age_of_slots(correct, last, slot, slots))


@rolling(
    "oldest slot overwritten one position early",
    replaces="age_of_slots",
    source="a slot reserved for the next position before attention to the current one",
)
def overwritten_early(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """In a full buffer the slot of the oldest position already has the next one."""
    age = Formulas.age_of_slots(correct, last, slot, slots)
    return np.where((age == slots - 1) & (last >= slots - 1), -1, age)


@rolling(
    "buffer rolls one slot late",
    replaces="age_of_slots",
    source="huggingface/transformers#47708: the first slot of a round off by one",
)
def rolled_late(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """Position p is in slot p mod (w + 1); position w in none."""
    return (last - slot) % (slots + 1)


@rolling(
    "length taken for the last position",
    replaces="age_of_slots",
    source="cache_position and length of a cache exchanged",
)
def length_as_last(correct: Formulas, last: Numbers, slot: Numbers, slots: int) -> Numbers:
    """The slot of position ℓ counts as the newest one."""
    return Formulas.age_of_slots(correct, last + 1, slot, slots) - 1


@rolling(
    "slots never written have negative positions",
    replaces="of_written_slots",
    source="keys of zeros attended to, since only −1 means none",
)
def negative_positions(correct: Formulas, positions: Numbers) -> Numbers:
    """The position of an empty slot is s − w."""
    return positions


@padded(
    "positions from 0 wherever the tokens begin",
    replaces="last_token",
    source="nnsight#672, TransformerLens#1609 and many others: arange for left-padded sequences",
)
def places_as_positions(correct: Formulas, mask: Numbers) -> Numbers:
    """A token has the position of its column."""
    return np.arange(mask.shape[-1]) + 0 * Formulas.last_token(correct, mask)


@padded(
    "padding on the left alone subtracted",
    replaces="last_token",
    source="TransformerLensOrg/TransformerLens#1610: a gap between tokens",
)
def gaps_counted(correct: Formulas, mask: Numbers) -> Numbers:
    """Positions count from the first token; padding between tokens takes positions."""
    last = Formulas.last_token(correct, mask)
    return np.arange(mask.shape[-1]) - np.sum(last < 0, axis=-1, keepdims=True)


@padded(
    "tokens counted from 1",
    replaces="last_token",
    source="a cumulative sum without − 1",
)
def counted_from_1(correct: Formulas, mask: Numbers) -> Numbers:
    """The first token has position 1."""
    return Formulas.last_token(correct, mask) + 1


@padded(
    "padding on the left counted from the first sequence",
    replaces="last_token",
    source="unslothai/unsloth#3699: one vector of positions for the batch",
)
def positions_of_first_sequence(correct: Formulas, mask: Numbers) -> Numbers:
    """All sequences have the positions of the first one."""
    last = Formulas.last_token(correct, mask)
    return np.broadcast_to(last[(0,) * (last.ndim - 1)], last.shape) if last.size else last


# Slopes and sinks of sequences ----------------------------------------------------------------------------------------


@mutant(
    "distances from the start of the packed row",
    operations=(VariableLengthAttention,),
    breaks=("kernels.packed-equals-separate", "operation.oracle"),
    source="linear biases of the column in the packed array",
)
class DistancesInRow(Formulas):
    """Distances are those of rows of the packed arrays."""

    def variable_length_attention(
        self, query: Numbers, key: Numbers, value: Numbers, query_ends: Numbers, key_ends: Numbers, **options: Any
    ) -> Numbers:
        """Remember where the sequences begin."""
        vars(self)["starts"] = iter(zip(query_ends[:-1], key_ends[:-1], strict=True))
        return super().variable_length_attention(query, key, value, query_ends, key_ends, **options)

    def distances(self, n: int, m: int) -> Numbers:
        """Distances |a + i − b − j| of the next sequence."""
        start, key_start = next(vars(self)["starts"])
        return np.abs(start + np.arange(n)[:, None] - key_start - np.arange(m))


@mutant(
    "sinks indexed by the sequence",
    replaces="variable_length_attention",
    operations=(VariableLengthAttention,),
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="the index of a block of queries taken for that of its head",
)
def sinks_of_sequences(
    correct: Formulas,
    query: Numbers,
    key: Numbers,
    value: Numbers,
    query_ends: Numbers,
    key_ends: Numbers,
    *,
    sinks: Numbers = None,
    key_lengths: Numbers = None,
    **options: Any,
) -> Numbers:
    """In sequence s, all heads have the sink of head s."""
    if sinks is None:
        ends = query_ends, key_ends
        return Formulas.variable_length_attention(correct, query, key, value, *ends, key_lengths=key_lengths, **options)
    of_queries, of_keys = correct.sequence_slices(query_ends), correct.used_keys(key_ends, key_lengths)
    parts = [
        correct.grouped_query_attention(
            query[..., i, :], key[..., j, :], value[..., j, :],
            sinks=sinks[np.full(sinks.size, s % sinks.size)], **options,
        )
        for s, (i, j) in enumerate(zip(of_queries, of_keys, strict=True))
    ]  # fmt: skip
    outputs, logarithms = zip(*parts, strict=True)
    return np.concatenate(outputs, axis=-2), np.concatenate(logarithms, axis=-1)


@mutant(
    "distances counted within the page",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="the index of a row in its page taken for its position",
)
class DistancesInPage(Formulas):
    """Key j has the distance of row j mod p of its page."""

    def paged_attention(
        self,
        query: Numbers,
        key_pages: Numbers,
        value_pages: Numbers,
        block_table: Numbers,
        key_lengths: Numbers,
        **options: Any,
    ) -> Numbers:
        """Remember the number of rows per page."""
        vars(self)["rows_per_page"] = key_pages.shape[-2]
        return super().paged_attention(query, key_pages, value_pages, block_table, key_lengths, **options)

    def cache_distances(self, lengths: Numbers, n: int, m: int) -> Numbers:
        """Distances |ℓ − n + i − j mod p|."""
        return np.abs(self.query_positions(lengths, n) - np.arange(m) % max(vars(self)["rows_per_page"], 1))


@mutant(
    "distances from the first positions of the cache",
    replaces="cache_distances",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="Dao-AILab/flash-attention#517: the mask moved, biases did not",
)
def distances_of_first_positions(correct: Formulas, lengths: Numbers, n: int, m: int) -> Numbers:
    """Distances place query i at position i, the mask at ℓ − n + i."""
    return np.abs(np.arange(n)[:, None] - np.arange(m)) + 0 * lengths[..., None, None]


@mutant(
    "distances from the longest length of the batch",
    replaces="cache_distances",
    operations=(PagedAttention,),
    breaks=("kernels.paged-equals-contiguous", "operation.oracle"),
    source="HabanaAI/vllm-fork#503: position offsets for sequences of varying length came later",
)
def distances_of_the_longest(correct: Formulas, lengths: Numbers, n: int, m: int) -> Numbers:
    """Distances count from the end of the longest sequence of the batch."""
    return Formulas.cache_distances(correct, np.maximum(lengths, np.max(lengths, initial=0)), n, m)


@mutant(
    "sink added once per page",
    operations=(PagedAttention,),
    breaks=("kernels.slopes-and-sinks-are-biases", "operation.oracle"),
    source="EricLBuehler/mistral.rs#1872: sinks are added in the reduction alone, lest every partition adds them",
)
class SinkPerPage(Formulas):
    """The denominator holds the exponential of the sink once for each page of the table."""

    def paged_attention(
        self,
        query: Numbers,
        key_pages: Numbers,
        value_pages: Numbers,
        block_table: Numbers,
        key_lengths: Numbers,
        *,
        sinks: Numbers = None,
        **options: Any,
    ) -> Numbers:
        """Attention with sinks b + log(pages)."""
        more = None if sinks is None else sinks + sinks.dtype.type(np.log(max(block_table.shape[-1], 1)))
        return super().paged_attention(query, key_pages, value_pages, block_table, key_lengths, sinks=more, **options)


# Latent keys ----------------------------------------------------------------------------------------------------------


@mutant(
    "rotary part of the scores left out",
    replaces="latent_attention",
    operations=(LatentAttention,),
    breaks=("kernels.latent-weight-absorption", "operation.oracle"),
    source="an absorbed path for queries without positions",
)
def without_rotated(correct: Formulas, query: Numbers, query_rope: Numbers, *others: Any, **options: Any) -> Numbers:
    """Scores leave out the rotated parts of queries and keys."""
    # 0 * … keeps shape and record of gradients
    return Formulas.latent_attention(correct, query, 0 * query_rope, *others, **options)


@mutant(
    "scale 1/√(2d) in latent attention",
    replaces="scaled_by",
    operations=(LatentAttention,),
    breaks=("kernels.latent-weight-absorption", "operation.oracle"),
    source="1/√(d_c + d_r), the size that the absorbed form multiplies",
)
def absorbed_scale(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """The default scale is 1/√(2d) in place of 1/√d."""
    return Formulas.scaled_by(correct, scores, 2 * d, scale)


# Positions and masks --------------------------------------------------------------------------------------------------


@mutant(
    "one angle for two neighbouring pairs",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("operation.oracle",),
    source="rotate_half with angles that are repeated in pairs",
)
def repeated_angles(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Feature pairs 2k and 2k + 1 are rotated by the angle of pair k."""
    angles = Formulas.angles(correct, positions, d, theta)
    return np.repeat(angles[..., : (angles.shape[-1] + 1) // 2], 2, axis=-1)[..., : angles.shape[-1]]


@mutant(
    "pairs of halves, undeclared",
    replaces="split_pairs",
    operations=(RotaryEmbedding, AxialRotaryEmbedding),
    breaks=("semantics.rotary_pairs", "operation.oracle"),
    source="huggingface/candle#3410: weights of one convention under the other",
)
def half_pairs(correct: Formulas, x: Numbers) -> tuple[Numbers, Numbers]:
    """Feature i is paired with i + d/2, not its neighbour; the result is interleaved."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


@mutant(
    "reflection in place of a rotation",
    replaces="rotate",
    operations=(RotaryEmbedding, AxialRotaryEmbedding),
    breaks=("kernels.rotary-relative-position", "operation.oracle"),
    source="a lost sign",
)
def reflected_pairs(
    correct: Formulas, first: Numbers, second: Numbers, cosine: Numbers, sine: Numbers
) -> tuple[Numbers, Numbers]:
    """The first feature is rotated with +sin in place of −sin."""
    return first * cosine + second * sine, first * sine + second * cosine


@mutant(
    "angles that grow with the square of the position",
    replaces="angles",
    operations=(RotaryEmbedding,),
    breaks=("kernels.rotary-relative-position", "operation.oracle"),
    source="positions added in place, and counted twice in a loop",
)
def squared_positions(correct: Formulas, positions: Numbers, d: int, theta: float) -> Numbers:
    """Angles are those of t²/16 in place of the position t."""
    return Formulas.angles(correct, positions**2 / 16, d, theta)


@mutant(
    "all axes at the positions of the first",
    replaces="axial_angles",
    operations=(AxialRotaryEmbedding,),
    breaks=("operation.oracle",),
    source="sgl-project/sglang#34446: a fused kernel that loads one position per token",
)
def first_axis_only(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Every axis has the positions of the first one."""
    return Formulas.axial_angles(correct, np.broadcast_to(positions[..., :1], positions.shape), frequencies)


@mutant(
    "axes in reverse order",
    replaces="axial_angles",
    operations=(AxialRotaryEmbedding,),
    breaks=("operation.oracle",),
    source="height and width exchanged",
)
def exchanged_axes(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Frequencies of the first axis are used for the last, and so on."""
    return Formulas.axial_angles(correct, positions, frequencies[::-1])


@mutant(
    "root of the sum of squared angles",
    replaces="axial_angles",
    operations=(AxialRotaryEmbedding,),
    breaks=("kernels.rotary-axes", "kernels.rotary-relative-position", "operation.oracle"),
    source="a distance in the plane, √(x² + y²), for two positions",
)
def angles_by_distance(correct: Formulas, positions: Numbers, frequencies: Numbers) -> Numbers:
    """The angle is the root of the sum of squares over axes, not the sum."""
    terms = positions.astype(np.float64)[..., None] * frequencies.astype(np.float64)
    return np.sqrt(np.sum(terms**2, axis=-2))


@mutant(
    "features beyond the pairs set to 0",
    replaces="axial_rotary_embedding",
    operations=(AxialRotaryEmbedding,),
    breaks=("kernels.rotary-axes", "kernels.rotary-relative-position", "operation.oracle"),
    source="a buffer of which a kernel for whole heads writes the rotated part only",
)
def rest_lost(correct: Formulas, x: Numbers, positions: Numbers, frequencies: Numbers) -> Numbers:
    """Features that are not rotated become 0."""
    rotated = np.arange(x.shape[-1]) < 2 * frequencies.shape[-1]
    return Formulas.axial_rotary_embedding(correct, x * rotated.astype(x.dtype), positions, frequencies)


@mutant(
    "last features rotated, not the first",
    replaces="axial_rotary_embedding",
    operations=(AxialRotaryEmbedding,),
    breaks=("kernels.rotary-axes", "operation.oracle"),
    source="heads whose part with positions comes last, as in latent attention",
)
def last_features_rotated(correct: Formulas, x: Numbers, positions: Numbers, frequencies: Numbers) -> Numbers:
    """The rest comes first: the last features are rotated."""
    width = 2 * frequencies.shape[-1]
    start = x.shape[-1] - width
    rolled = np.concatenate([x[..., start:], x[..., :start]], axis=-1)
    rotated = Formulas.axial_rotary_embedding(correct, rolled, positions, frequencies)
    return np.concatenate([rotated[..., width:], rotated[..., :width]], axis=-1)


@mutant(
    "frequencies not scaled",
    replaces="mix_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("operation.oracle", "operation.options-have-effect"),
    source="lablup/mlxcel#1355, jmaczan/tiny-vllm#1: rope_scaling of a configuration read and not used",
)
def unscaled(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """The geometric frequencies are returned."""
    return unscaled


@mutant(
    "all frequencies divided by the factor",
    replaces="mix_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("operation.oracle", "operation.options-have-effect"),
    source="linear scaling for a model of Llama 3",
)
def divided_frequencies(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """Every frequency is divided by the factor, fast ones too."""
    return unscaled / factor


@mutant(
    "shares of both frequencies exchanged",
    replaces="mix_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("kernels.rotary-interpolation", "operation.oracle"),
    source="pytorch/torchtitan#3787: beta_slow and beta_fast exchanged",
)
def exchanged_shares(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """Fast frequencies are divided by the factor, slow ones are not."""
    return Formulas.mix_frequencies(correct, unscaled, 1 - share, factor)


@mutant(
    "frequencies multiplied by the factor",
    replaces="mix_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("kernels.rotary-interpolation", "operation.oracle"),
    source="wavelengths scaled for frequencies",
)
def multiplied_frequencies(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """Slow frequencies are multiplied by the factor."""
    return Formulas.mix_frequencies(correct, unscaled, share, 1 / factor)


@mutant(
    "wavelengths interpolated, not frequencies",
    replaces="mix_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("operation.oracle",),
    source="a weighted mean of 1/θ and s/θ",
)
def interpolated_wavelengths(correct: Formulas, unscaled: Numbers, share: Numbers, factor: float) -> Numbers:
    """Between both ends, the inverses of frequencies are interpolated."""
    return unscaled / (share + (1 - share) * factor)


@mutant(
    "rotations counted without 2π",
    replaces="ramp",
    operations=(RotaryFrequencies,),
    breaks=("operation.oracle",),
    source="frequencies taken for turns per position",
)
def radians_for_rotations(
    correct: Formulas, unscaled: Numbers, theta: float, length: float, low: float, high: float
) -> Numbers:
    """The number of rotations is Lθ, not Lθ/2π."""
    return Formulas.ramp(correct, unscaled, theta, length * 2 * np.pi, low, high)


@mutant(
    "frequencies of the first of two pairs",
    replaces="unscaled_frequencies",
    operations=(RotaryFrequencies,),
    breaks=("kernels.rotary-interpolation", "operation.oracle"),
    source="pie-project/pie#603: exponents over the width of the head, not over the rotated width",
)
def frequencies_of_wider_heads(correct: Formulas, pairs: int, theta: float) -> Numbers:
    """Frequencies are Θ^(−i/2p), those of twice as many pairs."""
    return theta ** (-np.arange(pairs) / (2 * pairs))


@mutant(
    "slopes start at 1",
    replaces="alibi_slopes",
    operations=(AlibiSlopes,),
    breaks=("kernels.geometric-alibi-slopes", "operation.oracle"),
    source="paiml/aprender#2143: 2^(−8r/h) for 2^(−8(r + 1)/h)",
)
def early_slopes(correct: Formulas, heads: int) -> Numbers:
    """Slopes are 2^(8/p) times too large, with p ≤ h the greatest power of two."""
    slopes = Formulas.alibi_slopes(correct, heads)
    below = 2 ** int(np.floor(np.log2(heads)))
    return (slopes * 2.0 ** (8 / below)).astype(slopes.dtype)


@mutant(
    "one series of slopes for any number of heads",
    replaces="alibi_slopes",
    operations=(AlibiSlopes,),
    breaks=("kernels.geometric-alibi-slopes", "operation.oracle"),
    source="the closed formula for powers of two",
)
def one_series_of_slopes(correct: Formulas, heads: int) -> Numbers:
    """The slopes are 2^(−8(r + 1)/h) even if h is no power of two."""
    return (2.0 ** (-8 * (np.arange(heads) + 1) / heads)).astype(correct.default)


@mutant(
    "sigmoid weights that are normalised",
    replaces="sigmoid_weights",
    operations=(SigmoidAttention,),
    breaks=("kernels.sigmoids-of-keys-add-up", "operation.oracle"),
    source="gates of experts, whose sigmoids are divided by their sum",
)
def normalised_sigmoids(correct: Formulas, scores: Numbers, attendable: Numbers) -> Numbers:
    """Weights are divided by their sum."""
    weights = Formulas.sigmoid_weights(correct, scores, attendable)
    total = correct.total(weights)
    return weights / np.where(total == 0, weights.dtype.type(1), total)


@mutant(
    "softmax for sigmoids",
    replaces="sigmoid_weights",
    operations=(SigmoidAttention,),
    breaks=("kernels.sigmoids-of-keys-add-up", "operation.oracle", "operation.options-have-effect"),
    source="an option of the normalisation that is not passed on",
)
def softmax_for_sigmoids(correct: Formulas, scores: Numbers, attendable: Numbers) -> Numbers:
    """Weights are the softmax of the scores."""
    return correct.softmax(scores, mask=attendable)


@mutant(
    "masked scores 0 before the sigmoid",
    replaces="sigmoid_weights",
    operations=(SigmoidAttention,),
    breaks=("masking.masked-keys-ignored", "operation.oracle"),
    source="scores that are multiplied by the mask",
)
def half_for_masked(correct: Formulas, scores: Numbers, attendable: Numbers) -> Numbers:
    """Masked keys have weight σ(0) = 1/2."""
    kept = scores if attendable is None else np.where(attendable, scores, scores.dtype.type(0))
    return correct.sigmoid_of_scores(kept)


@mutant(
    "bias divided by √d",
    replaces="biased_scores",
    operations=(SigmoidAttention,),
    breaks=("operation.oracle",),
    source="tenstorrent/tt-metal#55337: a bias that is added before the scores are scaled",
)
def scaled_bias(correct: Formulas, query: Numbers, key: Numbers, bias: float) -> Numbers:
    """The bias is added to the dot products, then both are divided by √d."""
    products = correct.dot_scores(query, key)
    return correct.scale_scores(products + products.dtype.type(bias), query.shape[-1])


@mutant(
    "bias always −log m",
    replaces="biased_scores",
    operations=(SigmoidAttention,),
    breaks=("kernels.sigmoids-of-keys-add-up", "operation.oracle", "operation.options-have-effect"),
    source="the authors' choice of the bias as a constant",
)
def logarithmic_bias(correct: Formulas, query: Numbers, key: Numbers, bias: float) -> Numbers:
    """The bias is −log m."""
    return Formulas.biased_scores(correct, query, key, -float(np.log(max(key.shape[-2], 1))))


@mutant(
    "hard sigmoid for weights",
    replaces="sigmoid_of_scores",
    operations=(SigmoidAttention,),
    breaks=("operation.oracle",),
    source="a piecewise linear sigmoid, as on mobile devices",
)
def hard_weights(correct: Formulas, scores: Numbers) -> Numbers:
    """σ(x) is clip(x/6 + 1/2, 0, 1)."""
    half = scores.dtype.type(0.5)
    return np.minimum(np.maximum(scores / scores.dtype.type(6) + half, scores.dtype.type(0)), scores.dtype.type(1))


@mutant(
    "sigmoids that overflow",
    replaces="sigmoid_of_scores",
    operations=(SigmoidAttention,),
    breaks=("attention.extreme-magnitudes",),
    source="eˣ/(1 + eˣ) for scores of any size",
)
def overflowing_sigmoids(correct: Formulas, scores: Numbers) -> Numbers:
    """σ(x) is eˣ/(1 + eˣ), which is NaN for large scores."""
    grown = np.exp(scores)
    return grown / (scores.dtype.type(1) + grown)


@mutant(
    "sigmoid without its derivative",
    replaces="sigmoid_of_scores",
    operations=(SigmoidAttention,),
    breaks=("operation.gradient",),
    source="the weights of the forward pass saved for backward, 1 − σ forgotten",
)
def derivative_of_the_exponential(correct: Formulas, scores: Numbers) -> Numbers:
    """The derivative of σ is σ in place of σ(1 − σ)."""
    weights = value_of(Formulas.sigmoid_of_scores(correct, scores))
    return weights * np.exp(scores - value_of(scores))


@mutant(
    "distances from keys to queries",
    replaces="positions_ahead",
    operations=(RelativePositionBias,),
    breaks=("kernels.buckets-of-distances", "operation.oracle"),
    source="dmlc/gluon-nlp#1470: query position minus key position",
)
def reversed_distances(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """Earlier keys count as later ones."""
    return -Formulas.positions_ahead(correct, query_positions, key_positions)


@mutant(
    "half of the buckets for single distances, of both directions",
    replaces="one_way_bucket",
    operations=(RelativePositionBias,),
    breaks=("operation.oracle",),
    source="buckets that are halved once for both directions, and not again",
)
def single_distances_only(correct: Formulas, distance: Numbers, buckets: int, max_distance: int) -> Numbers:
    """All buckets of a direction hold a single distance, and the last one the others."""
    return np.minimum(distance, buckets - 1)


@mutant(
    "buckets of distances that grow to the base 2",
    replaces="logarithmic_buckets",
    operations=(RelativePositionBias,),
    breaks=("operation.oracle",),
    source="a logarithm that is not divided by that of the largest distance",
)
def octaves(correct: Formulas, distance: Numbers, exact: int, wide: int, max_distance: int) -> Numbers:
    """Each bucket ends at twice the distance of the one before."""
    return np.floor(np.log2(np.maximum(distance, exact) / exact)).astype(np.int64)


@mutant(
    "buckets of distances rounded to the nearest",
    replaces="logarithmic_buckets",
    operations=(RelativePositionBias,),
    breaks=("operation.oracle",),
    source="round for floor",
)
def rounded_buckets(correct: Formulas, distance: Numbers, exact: int, wide: int, max_distance: int) -> Numbers:
    """Logarithms are rounded, not cut."""
    ratio = np.log(np.maximum(distance, exact) / exact) / np.log(max_distance / exact)
    return np.rint(ratio * wide).astype(np.int64)


@mutant(
    "largest distance always 128",
    replaces="logarithmic_buckets",
    operations=(RelativePositionBias,),
    breaks=("operation.oracle", "operation.options-have-effect"),
    source="a constant of T5, which other models configure",
)
def always_128(correct: Formulas, distance: Numbers, exact: int, wide: int, max_distance: int) -> Numbers:
    """The option is ignored."""
    return Formulas.logarithmic_buckets(correct, distance, exact, wide, 128)


@mutant(
    "positions of a bias counted from the first key",
    replaces="positions_ahead",
    operations=(RelativePositionBias,),
    breaks=("operation.oracle",),
    source="two ranges from 0, whatever the positions are",
)
def both_from_zero(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """Positions are the indices of rows and columns."""
    ahead = Formulas.positions_ahead(correct, query_positions, key_positions)
    n, m = ahead.shape[-2:]
    return np.zeros_like(ahead) + np.arange(m) - np.arange(n)[:, None]


@mutant(
    "later keys in buckets of their own in a causal bias",
    replaces="distance_bucket",
    operations=(RelativePositionBias,),
    breaks=("kernels.buckets-of-distances", "operation.oracle"),
    source="one function for encoder and decoder",
)
def always_both_directions(
    correct: Formulas, ahead: Numbers, buckets: int, bidirectional: bool, max_distance: int
) -> Numbers:
    """Buckets are always those of both directions."""
    return Formulas.distance_bucket(correct, ahead, buckets, True, max_distance)


@mutant(
    "positions of a bias in bfloat16",
    replaces="positions_ahead",
    operations=(RelativePositionBias,),
    breaks=("kernels.buckets-of-distances", "operation.oracle"),
    source="positions cast to the dtype of the table",
)
def rounded_positions(correct: Formulas, query_positions: Numbers, key_positions: Numbers) -> Numbers:
    """Positions are rounded to 8 bits before they are subtracted."""
    narrow = [rounded(x.astype(np.float64), "bfloat16").astype(np.int64) for x in (query_positions, key_positions)]
    return Formulas.positions_ahead(correct, *narrow)


@mutant(
    "earlier documents attendable",
    replaces="document_mask",
    operations=(DocumentMask,),
    breaks=("kernels.window-and-document-masks", "operation.oracle"),
    source="≥ for =, as in a mask that is causal between documents",
)
def earlier_documents(correct: Formulas, query_documents: Numbers, key_documents: Numbers) -> Numbers:
    """Keys of documents with smaller numbers are attendable, too."""
    return query_documents[..., :, None] >= key_documents[..., None, :]


@mutant(
    "siblings attendable",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents", "operation.oracle"),
    source="PaddlePaddle/FastDeploy#3514: tiles below the diagonal, of which a causal kernel checks no mask",
)
def causal_tree(correct: Formulas, parents: Numbers) -> Numbers:
    """All earlier tokens are attendable, as in a single sequence."""
    n = parents.shape[-1]
    return np.array(np.broadcast_to(np.tri(n, dtype=bool), (*parents.shape, n)))


@mutant(
    "tokens of a tree without themselves",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents", "operation.oracle"),
    source="paths that are collected from the parent on",
)
def ancestors_only(correct: Formulas, parents: Numbers) -> Numbers:
    """A token may attend to its ancestors alone."""
    return Formulas.tree_mask(correct, parents) & ~np.eye(parents.shape[-1], dtype=bool)


@mutant(
    "grandparents masked",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents", "operation.oracle"),
    source="a row that is copied before its parent's is complete",
)
def parents_only(correct: Formulas, parents: Numbers) -> Numbers:
    """A token may attend to itself and to its parent."""
    own = np.arange(parents.shape[-1])
    is_parent = correct.is_earlier(parents, own)[..., None] & (parents[..., None] == own)
    return is_parent | np.eye(len(own), dtype=bool)


@mutant(
    "descendants in place of ancestors",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents", "operation.oracle"),
    source="a transposed mask",
)
def descendants(correct: Formulas, parents: Numbers) -> Numbers:
    """A token may attend to itself and to its descendants."""
    return np.swapaxes(Formulas.tree_mask(correct, parents), -1, -2)


@mutant(
    "first token attendable to all",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents", "operation.oracle"),
    source="one root is assumed, the token that was verified last",
)
def common_root(correct: Formulas, parents: Numbers) -> Numbers:
    """The first token counts as an ancestor of every other."""
    return Formulas.tree_mask(correct, parents) | (np.arange(parents.shape[-1]) == 0)


@mutant(
    "roots below the last token",
    replaces="is_earlier",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents",),
    source="−1 as an index, which counts from the end",
)
def last_token_above_roots(correct: Formulas, parents: Numbers, tokens: Numbers) -> Numbers:
    """The parent −1 is the last token."""
    return parents < tokens


@mutant(
    "trees of at most eight levels",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents",),
    source="a loop over the depth of usual trees",
)
def eight_levels(correct: Formulas, parents: Numbers) -> Numbers:
    """Only the seven nearest ancestors are attendable."""
    mask = Formulas.tree_mask(correct, parents)
    levels = np.cumsum(mask[..., ::-1], axis=-1)[..., ::-1]
    return mask & (levels <= 8)


@mutant(
    "trees of at most 64 tokens",
    replaces="tree_mask",
    operations=(TreeMask,),
    breaks=("kernels.rows-of-parents",),
    source="a row of the mask in the bits of one integer, as in packed masks of SGLang and TensorRT-LLM",
)
def rows_of_64_bits(correct: Formulas, parents: Numbers) -> Numbers:
    """A row has 64 bits: later tokens are attendable to nobody."""
    return Formulas.tree_mask(correct, parents) & (np.arange(parents.shape[-1]) < 64)


@mutant(
    "dropout without scaling",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-keeps-mean", "operation.oracle"),
    source="dropout before it was inverted: scaled when testing",
)
def unscaled_dropout(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """Kept weights are not divided by 1 − rate."""
    return Formulas.dropout(correct, weights, keep=keep, rate=0.0)


@mutant(
    "dropout scaled by the rate",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-keeps-mean", "operation.oracle", "operation.options-have-effect"),
    source="a keep probability taken for a drop probability",
)
def scaled_by_rate(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """Kept weights are divided by the rate in place of 1 − rate."""
    return Formulas.dropout(correct, weights, keep=keep, rate=1 - rate if rate else 0.0)


@mutant(
    "dropped weights kept",
    replaces="dropout",
    operations=(Dropout,),
    breaks=("kernels.dropout-keeps-mean", "operation.oracle"),
    source="a mask of what is dropped, passed as one of what is kept",
)
def dropped_for_kept(correct: Formulas, weights: Numbers, *, keep: Numbers = None, rate: float = 0.0) -> Numbers:
    """The mask of kept weights is inverted: True is dropped."""
    return Formulas.dropout(correct, weights, keep=None if keep is None else ~keep, rate=rate)


# Gated outputs --------------------------------------------------------------------------------------------------------


@mutant(
    "gate by tanh",
    replaces="output_gate",
    operations=(GatedOutput,),
    breaks=("kernels.output-gate", "operation.oracle"),
    source="the gates of an LSTM taken for its candidate",
)
def tanh_gate(correct: Formulas, gate: Numbers) -> Numbers:
    """The gate is tanh g."""
    return np.tanh(gate)


@mutant(
    "gate by SiLU",
    replaces="output_gate",
    operations=(GatedOutput,),
    breaks=("kernels.output-gate", "operation.oracle"),
    source="sgl-project/sglang#37639: which activation a model's gate has",
)
def silu_gate(correct: Formulas, gate: Numbers) -> Numbers:
    """The gate is g σ(g)."""
    return gate * Formulas.output_gate(correct, gate)


@mutant(
    "first feature's gate for all",
    replaces="gated_output",
    operations=(GatedOutput,),
    breaks=("operation.oracle",),
    source="a gate per head, called with a gate per feature",
)
def gate_of_first_feature(correct: Formulas, x: Numbers, gate: Numbers) -> Numbers:
    """Every feature is gated by the gate of the first."""
    return Formulas.gated_output(correct, x, gate[..., :1])


@mutant(
    "gate and output exchanged",
    replaces="gated_output",
    operations=(GatedOutput,),
    breaks=("kernels.output-gate", "operation.oracle"),
    source="arguments of mul_sigmoid in the other order",
)
def exchanged_gate(correct: Formulas, x: Numbers, gate: Numbers) -> Numbers:
    """The gate is multiplied by the sigmoid of the output."""
    return gate * Formulas.output_gate(correct, x)
