"""Rediscovered defects of grouped heads and of the options of attention kernels.

Each function is one step of ``Formulas``, the correct formulas, or one method of ``Library``, the backend around them,
with a defect; ``replaces`` names it, and ``Formulas.step(correct, …)`` calls the original. A law in ``breaks`` must
detect the defect. ``prepare`` converts the arguments, ``finish`` converts the result, ``differentiate`` computes the
gradients and ``vjp`` is the backend's call for gradients. ``vars(self)`` holds what one backend remembers between
calls. ``value_of(x)`` is x without its record of gradients, so that no gradient flows through it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Library, Numbers
from attnspec.conformance.mutants.correct.tape import value_of
from attnspec.conformance.mutants.roles import at, changed, key, key_lengths, mask_of, query, sizes, value
from attnspec.conformance.rediscovered.registry import rediscovered
from attnspec.spec.attention import ScaledDotProductAttention
from attnspec.spec.contract.axes import ScoreEffect
from attnspec.spec.contract.operation import Operation
from attnspec.spec.kernels import GroupedQueryAttention, MergeAttention, PagedAttention, VariableLengthAttention

HEAD_AXIS = -3

# Heads in groups ------------------------------------------------------------------------------------------------------


def heads_of(operation: Operation, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of query heads and key heads."""
    return at(arguments, query(operation)).shape[HEAD_AXIS], at(arguments, key(operation)).shape[HEAD_AXIS]


@rediscovered(
    "pytorch/pytorch#193893",
    "SDPA cuDNN backend silently corrupts greedy generation on B200 (sm_100) for models with num_key_value_heads < 8",
    framework="PyTorch (cuDNN, B200)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="prepare",
)
def few_heads(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A single query attends to the previous head's keys, for fewer than 8 key heads."""
    prepared = Library.prepare(correct, operation, arguments)
    heads, heads_k = heads_of(operation, prepared)
    if sizes(operation, prepared)[0] != 1 or heads == heads_k or heads_k >= 8:
        return prepared
    return changed(prepared, {key(operation): np.roll(at(prepared, key(operation)), 1, axis=HEAD_AXIS)})


@rediscovered(
    "pytorch/pytorch#174861",
    "[MPS] Out of bounds memory access/corruption and correctness issue in SDPA",
    framework="PyTorch (MPS)",
    operation=GroupedQueryAttention,
    breaks=("sizes.large-sizes",),
    replaces="prepare",
    profile="full",
)
def two_passes(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Grouped heads read the value of key j + 1 for key j: for up to 8 queries and 1,024 or more keys."""
    prepared = Library.prepare(correct, operation, arguments)
    heads, heads_k = heads_of(operation, prepared)
    n, m, *_ = sizes(operation, prepared)
    if n > 8 or m < 1024 or heads == heads_k:
        return prepared
    return changed(prepared, {value(operation): np.roll(at(prepared, value(operation)), -1, axis=-2)})


@rediscovered(
    "huggingface/candle#3388",
    "Metal SDPA kernel produces NaN with non-square mask + GQA",
    framework="candle (Metal)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="finish",
)
def rectangular_mask(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """A mask with n ≠ m gives NaN if heads share keys."""
    output, logarithms = Library.finish(correct, operation, result, arguments)
    heads, heads_k = heads_of(operation, arguments)
    n, m, *_ = sizes(operation, arguments)
    broken = mask_of(operation, arguments) is not None and n != m and heads != heads_k
    return (np.full_like(output, np.nan) if broken else output), logarithms


@rediscovered(
    "NVIDIA/cudnn-frontend#1083",
    "[Bug]: SDPA fwd ragged Stats (LSE) written only for the first head of each kv group when s_q == 1 with GQA "
    "(cuDNN 9.26/9.27, all archs)",
    framework="cuDNN",
    operation=VariableLengthAttention,
    breaks=("operation.options-have-effect",),
    replaces="finish",
)
def first_of_group(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """For one query, only the first head of each group gets its log-sum-exp; the others are 0."""
    output, logarithms = Library.finish(correct, operation, result, arguments)
    heads, heads_k = heads_of(operation, arguments)
    group = heads // max(heads_k, 1)
    if at(arguments, query(operation)).shape[-2] == 1:
        logarithms[..., np.arange(heads) % max(group, 1) > 0, :] = 0
    return output, logarithms


@rediscovered(
    "XunhaoLai/native-sparse-attention-triton#27",
    "flash_attention_varlen backward: wrong head-count division under gqa_interleave and wrong v-space extents in "
    "backward_dq",
    framework="native-sparse-attention-triton",
    operation=VariableLengthAttention,
    breaks=("training.options-affect-gradients",),
    replaces="differentiate",
)
def as_wide_as_queries(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """dQ leaves out the columns of the values beyond the width d of the queries."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    of_output, of_logarithms = cotangent
    if of_output is None:
        return gradients
    narrow_columns = np.arange(of_output.shape[-1]) < at(arguments, query(operation)).shape[-1]
    narrow_cotangent = np.where(narrow_columns, of_output, of_output.dtype.type(0)), of_logarithms
    path = query(operation)
    return {**gradients, path: Library.differentiate(correct, operation, arguments, narrow_cotangent)[path]}


# Windows, lengths and pages -------------------------------------------------------------------------------------------


@rediscovered(
    "karpathy/nanochat#456",
    "Fix SDPA KV-cache decode to respect sliding window",
    framework="nanochat",
    operation=PagedAttention,
    breaks=("operation.options-have-effect",),
    replaces="prepare",
)
def unlimited_decoding(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A single query attends to the whole cache, whatever the window."""
    prepared = Library.prepare(correct, operation, arguments)
    single = at(prepared, query(operation)).shape[-2] == 1
    return {name: x for name, x in prepared.items() if name != operation.window} if single else prepared


@rediscovered(
    "goombalab/hnet#20",
    "Sliding window size not passed during KV cache inference",
    framework="H-Net",
    operation=GroupedQueryAttention,
    breaks=("operation.oracle",),
    replaces="prepare",
)
def unlimited_cache(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """With key lengths, the window is ignored."""
    prepared = Library.prepare(correct, operation, arguments)
    uncached = prepared.get(key_lengths(operation)) is None
    return prepared if uncached else {name: x for name, x in prepared.items() if name != operation.window}


@rediscovered(
    "tenstorrent/tt-metal#41215",
    "SDPA decode causal mask fails to exclude positions beyond cur_pos (block_size=32)",
    framework="ttnn",
    operation=PagedAttention,
    breaks=("operation.options-have-effect",),
    replaces="cache_mask",
)
def whole_blocks(correct: Formulas, lengths: Numbers, n: int, m: int, causal: bool, window: Any) -> Numbers:
    """A single query attends beyond the length, to the end of its block of 32."""
    exact = Formulas.cache_mask(correct, lengths, n, m, causal, window)
    return exact if n != 1 else exact | (np.arange(m) < (-(-lengths // 32) * 32)[..., None, None])


@rediscovered(
    "flashinfer-ai/flashinfer#3716",
    "[Bug] CuteDSL paged decode with `is_causal=False` uses padding KV lanes",
    framework="FlashInfer (CuTe DSL)",
    operation=PagedAttention,
    breaks=("operation.oracle",),
    replaces="cache_mask",
)
def padding_lanes(correct: Formulas, lengths: Numbers, n: int, m: int, causal: bool, window: Any) -> Numbers:
    """Non-causal queries attend beyond the length, to the end of its tile of 256."""
    exact = Formulas.cache_mask(correct, lengths, n, m, causal, window)
    return exact if causal else exact | (np.arange(m) < (-(-lengths // 256) * 256)[..., None, None])


@rediscovered(
    "vllm-project/vllm#50427",
    "[Bug]: FlexAttention paged K/V offsets overflow int32 once num_gpu_blocks ≥ 2**31 / (block_size · 2 · "
    "num_kv_heads · head_size) — crash or silent wrong output",
    framework="vLLM (FlexAttention)",
    operation=PagedAttention,
    replaces="gather_rows",
    needs="a cache of 2³¹ numbers",
)
def offsets_of_pages(correct: Formulas, pages: Numbers, table: Numbers) -> Numbers:
    """Pages that begin at offset 2³¹ or beyond are read as page 0."""
    beyond = table * pages[:1].size >= 2**31
    return Formulas.gather_rows(correct, pages, np.where(beyond, 0, table))


@rediscovered(
    "pytorch/pytorch#186075",
    "[CUDA] Fix SDPA incorrect result with manual mask on long sequences",
    framework="PyTorch (CUDA)",
    operation=ScaledDotProductAttention,
    replaces="attendable",
    needs="a mask of 2³² elements",
)
def offsets_of_masks(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Offsets into a mask of 2³² or more elements overflow 32 bits: rows are read from elsewhere."""
    attendable = Formulas.attendable(correct, mask, causal, n, m)
    if mask is None or mask.shape[-2:] != (n, m) or n * m < 2**32:
        return attendable
    return np.take(attendable, np.arange(n) * m % 2**32 // m, axis=-2)


@rediscovered(
    "vllm-project/vllm-ascend#15503",
    "[Bug]: npu_fused_infer_attention_score silently ignores atten_mask past KV position 512 (bool [1,1,1,S], "
    "sparse_mode=0)",
    framework="vLLM (Ascend)",
    operation=ScaledDotProductAttention,
    breaks=("sizes.large-sizes",),
    replaces="attendable",
    profile="full",
)
def mask_of_512(correct: Formulas, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
    """Up to 8 queries attend to every key beyond the 512th, whatever the mask."""
    attendable = Formulas.attendable(correct, mask, causal, n, m)
    return attendable if mask is None or n > 8 or m <= 512 else attendable | (np.arange(m) >= 512)


# Scores ---------------------------------------------------------------------------------------------------------------


@rediscovered(
    "onnx/onnx#7865",
    "Softcap in Attention op",
    framework="ONNX (Attention)",
    operation=GroupedQueryAttention,
    breaks=("pooling.unbiased-gain",),
)
class MaskedBeforeCapped(Formulas):
    """With a cap, masked keys get the score −cap, not −∞, and thus weight."""

    def weighted(self, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
        """Weigh every key if scores are capped."""
        return super().weighted(scores, values, None if vars(self).get("cap") else attendable)

    def biased(self, scores: Numbers, softcap: Any, bias: Numbers, slopes: Numbers, attendable: Numbers) -> Numbers:
        """Set masked scores to −cap."""
        vars(self)["cap"] = softcap
        scored = super().biased(scores, softcap, bias, slopes, attendable)
        if softcap is None or attendable is None:
            return scored
        return np.where(attendable, scored, scored.dtype.type(-softcap))


@rediscovered(
    "Dao-AILab/flash-attention#2402",
    "feat(cute): implement softcap backward pass, correct math formula, and resolve JIT cache bug",
    framework="FlashAttention 4",
    operation=GroupedQueryAttention,
    breaks=("pooling.unbiased-gain",),
    replaces="capped",
)
def times_itself(correct: Formulas, scores: Numbers, softcap: Any) -> Numbers:
    """Capped scores are s tanh(s/cap) in place of cap tanh(s/cap)."""
    return scores if softcap is None else scores * np.tanh(scores / scores.dtype.type(softcap))


@rediscovered(
    "tenstorrent/tt-metal#33304",
    "Incorrect result for sdpa op",
    framework="ttnn",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="scaled_by",
)
def default_scale(correct: Formulas, scores: Numbers, d: int, scale: Any) -> Numbers:
    """The option ``scale`` is ignored."""
    return Formulas.scaled_by(correct, scores, d, None)


@rediscovered(
    "tenstorrent/tt-metal#55337",
    "ttnn.transformer.scaled_dot_product_attention_decode scales the user attn_mask by scale: a finite additive bias "
    "is attenuated by 1/sqrt(D), unlike PyTorch and unlike the prefill op, which compensate",
    framework="ttnn",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="prepare",
)
def scaled_bias(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """For a single query, the scale multiplies the bias as well."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.part(ScoreEffect.BIAS)
    bias, queries = at(prepared, path), at(prepared, query(operation))
    if bias is None or queries.shape[-2] != 1:
        return prepared
    scale = prepared.get(operation.part(ScoreEffect.SCALE)) or queries.shape[-1] ** -0.5
    return changed(prepared, {path: bias * bias.dtype.type(scale)})


@rediscovered(
    "pytorch/pytorch#107084",
    "[regression] nn.MultiheadAttention does not respect adding of floating point mask to attention for the fast path",
    framework="PyTorch (nn.MultiheadAttention)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="prepare",
)
def boolean_bias(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A bias is read as a boolean mask: keys with a bias other than 0 are masked."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.part(ScoreEffect.BIAS)
    bias = at(prepared, path)
    if bias is None:
        return prepared
    lowest = np.finfo(bias.dtype).min / 4
    return changed(prepared, {path: np.where(bias == 0, bias, lowest).astype(bias.dtype)})


@rediscovered(
    "microsoft/onnxruntime#24017",
    "Fix attention bias broadcast",
    framework="ONNX Runtime",
    operation=GroupedQueryAttention,
    breaks=("training.broadcast-gradients-sum",),
    replaces="prepare",
)
def shared_by_heads(correct: Library, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A bias shared by all heads is read from the first batch element for all."""
    prepared = Library.prepare(correct, operation, arguments)
    path = operation.part(ScoreEffect.BIAS)
    bias = at(prepared, path)
    if bias is None or bias.ndim < 4 or bias.shape[HEAD_AXIS] != 1 or heads_of(operation, prepared)[0] == 1:
        return prepared
    return changed(prepared, {path: np.broadcast_to(bias[:1], bias.shape)})


# Slopes ---------------------------------------------------------------------------------------------------------------


@rediscovered(
    "vllm-project/vllm#945",
    "[FIX] Fix Alibi implementation in PagedAttention kernel",
    framework="vLLM",
    operation=PagedAttention,
    breaks=("operation.options-have-effect",),
    replaces="cache_distances",
)
def distances_from_the_length(correct: Formulas, lengths: Numbers, n: int, m: int) -> Numbers:
    """For a single query, slopes count distances from the length ℓ, not ℓ − 1."""
    return Formulas.cache_distances(correct, lengths + (n == 1), n, m)


@rediscovered(
    "keras-team/keras-hub#2862",
    "Fix Falcon ALiBi bias when using the KV cache",
    framework="KerasHub (Falcon)",
    operation=PagedAttention,
    breaks=("operation.options-have-effect",),
    replaces="cache_distances",
)
def distances_of_queries(correct: Formulas, lengths: Numbers, n: int, m: int) -> Numbers:
    """For a single query, the linear bias is 0 for the whole cache."""
    distances = Formulas.cache_distances(correct, lengths, n, m)
    return 0 * distances if n == 1 else distances


@rediscovered(
    "Dao-AILab/flash-attention#1585",
    "alibi_slopes with flash_attn_varlen_kvpacked_func",
    framework="FlashAttention 2",
    operation=VariableLengthAttention,
    breaks=("operation.options-have-effect",),
)
class SlopesOfColumns(Formulas):
    """With the causal flag, the linear bias is m·j, not −m(i − j): log-sum-exps grow by m·i."""

    def variable_length_attention(
        self, query: Numbers, key: Numbers, value: Numbers, *ends: Numbers, causal: bool = False, **options: Any
    ) -> Numbers:
        """Remember the causal flag."""
        vars(self)["is_causal"] = causal
        return super().variable_length_attention(query, key, value, *ends, causal=causal, **options)

    def distances(self, n: int, m: int) -> Numbers:
        """−j in place of i − j if causal."""
        behind = super().distances(n, m)
        return -np.arange(m) + 0 * behind if vars(self)["is_causal"] else behind


# Sinks, tiles without weight and parts --------------------------------------------------------------------------------


@rediscovered(
    "ROCm/rocm-libraries#12227",
    "[CK_TILE] Split-KV attention adds the sink logit twice, and the nwarp pipeline seeds it at the wrong scale",
    framework="ROCm (CK Tile)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="log_sum_exps",
)
def sink_twice(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The sink counts twice in log-sum-exps of rows without attendable keys among the first 64."""
    if sinks is None or attendable is None:
        return Formulas.log_sum_exps(correct, scores, attendable, sinks)
    once = Formulas.log_sum_exps(correct, scores, attendable, sinks)
    twice = Formulas.log_sum_exps(correct, scores, attendable, sinks + sinks.dtype.type(np.log(2)))
    first = np.broadcast_to(attendable, np.broadcast_shapes(attendable.shape, scores.shape))[..., :64].any(-1)
    return np.where(first, once, twice)


@rediscovered(
    "Dao-AILab/flash-attention#2752",
    "[CuTe, SM80/SM120] Support learnable_sink (attention sinks) on Ampere/Ada/consumer-Blackwell",
    framework="FlashAttention 4 (SM80, SM120)",
    operation=PagedAttention,
    breaks=("semantics.sink_alone",),
    replaces="log_sum_exps",
)
def sink_beside_the_maximum(correct: Formulas, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
    """The maximum leaves out the sink: the log-sum-exp is NaN without keys."""
    with_sinks = Formulas.log_sum_exps(correct, scores, attendable, sinks)
    if sinks is None:
        return with_sinks
    highest = np.max(value_of(correct.mask_scores(scores, attendable)), axis=-1, initial=-np.inf)
    above = value_of(sinks)[:, None] - highest
    with_sinks = np.where(above > np.log(np.finfo(scores.dtype).max), scores.dtype.type(np.inf), with_sinks)
    return np.where(np.isneginf(highest), scores.dtype.type(np.nan), with_sinks)


@rediscovered(
    "modular/modular#6591",
    "[Kernels][GPU] Fix attention sink on consumer Blackwell (sm_120/sm_121)",
    framework="MAX (naive kernel)",
    operation=GroupedQueryAttention,
    breaks=("kernels.slopes-and-sinks-are-biases",),
)
class SinksOfRows(Formulas):
    """Query i of head h has the sink of head (h·n + i) mod heads."""

    def with_sink(
        self, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Weights and outputs with a sink for each row."""
        weights, output = self.weighted(scores, values, attendable)
        logarithms, with_sinks = (self.log_sum_exps(scores, attendable, x) for x in (None, sinks))
        return weights, output * np.exp(logarithms - with_sinks)[..., None]

    def log_sum_exps(self, scores: Numbers, attendable: Numbers, sinks: Numbers) -> Numbers:
        """Log-sum-exps with a sink for each row."""
        logarithms = super().log_sum_exps(scores, attendable, None)
        if sinks is None:
            return logarithms
        heads, n = sinks.size, scores.shape[-2]
        of_rows = sinks[np.arange(heads * n).reshape(heads, n) % max(heads, 1)]
        highest = np.maximum(value_of(logarithms), value_of(of_rows))
        return highest + np.log(np.exp(logarithms - highest) + np.exp(of_rows - highest))


@rediscovered(
    "pytorch/torchtitan#4796",
    "Fix GPT-OSS sink gradients by defaulting to FlexAttention",
    framework="torchtitan",
    operation=GroupedQueryAttention,
    breaks=("training.broadcast-gradients-sum",),
    replaces="with_sink",
)
def detached_logarithms(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers, sinks: Numbers
) -> tuple[Numbers, Numbers]:
    """No gradient flows through ℓ in a sink's factor σ(ℓ − b) of the output: ℓ is the log-sum-exp, b the sink."""
    weights, output = correct.weighted(scores, values, attendable)
    logarithms = value_of(correct.log_sum_exps(scores, attendable, None))
    share = 1 / (1 + np.exp(sinks[:, None] - logarithms))
    return weights, output * share[..., None]


@rediscovered(
    "Dao-AILab/flash-attention#1973",
    "Learnable sink gradient support in flash_attn.cute",
    framework="FlashAttention 4",
    operation=GroupedQueryAttention,
    breaks=("training.broadcast-gradients-sum",),
    replaces="differentiate",
)
def unlearned_sinks(
    correct: Library, operation: Operation, arguments: Mapping[str, Any], cotangent: Any
) -> dict[str, Numbers]:
    """The gradient of the sinks is 0."""
    gradients = Library.differentiate(correct, operation, arguments, cotangent)
    return {path: np.zeros_like(g) if path == operation.part(ScoreEffect.SINK) else g for path, g in gradients.items()}


@rediscovered(
    "pytorch/pytorch#109517",
    "SDPA Memory Efficient Attention is producing NaNs for certain mask patterns.",
    framework="PyTorch (memory-efficient kernel)",
    operation=GroupedQueryAttention,
    breaks=("sizes.model-sizes",),
    replaces="weighted",
)
def lowest_tile(correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers) -> tuple[Numbers, Numbers]:
    """Rows are NaN if their first 128 scores, times log₂e, all overflow to −∞: with more than 128 keys."""
    weights, output = Formulas.weighted(correct, scores, values, attendable)
    tile = value_of(scores)[..., :128] * scores.dtype.type(np.log2(np.e))
    lost = np.isneginf(tile).all(-1, keepdims=True) & (scores.shape[-1] > 128)
    return weights, np.where(lost, output.dtype.type(np.nan), output)


@rediscovered(
    "flashinfer-ai/flashinfer#4401",
    "fix(attention): handle extreme negative logits in masked softmax",
    framework="FlashInfer",
    operation=GroupedQueryAttention,
    breaks=("masking.no-finite-fill",),
    replaces="weighted",
)
def below_the_sentinel(
    correct: Formulas, scores: Numbers, values: Numbers, attendable: Numbers
) -> tuple[Numbers, Numbers]:
    """The running maximum starts at −5·10⁴: rows whose scores are all below are 0."""
    weights, output = Formulas.weighted(correct, scores, values, attendable)
    highest = np.max(value_of(correct.mask_scores(scores, attendable)), axis=-1, keepdims=True, initial=-np.inf)
    return weights, np.where(highest < -5e4, output.dtype.type(0), output)


@rediscovered(
    "microsoft/onnxruntime#27831",
    "Fix CUDA ONNX Attention: min_bias_align crash on SM<80 and MEA NaN for fully-masked batches",
    framework="ONNX Runtime (CUDA)",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="finish",
)
def nothing_over_nothing(correct: Library, operation: Operation, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Outputs of batch elements with key length 0 are 0/0 = NaN, not 0."""
    output, logarithms = Library.finish(correct, operation, result, arguments)
    lengths = arguments.get(key_lengths(operation))
    if lengths is None:
        return output, logarithms
    return np.where(lengths[..., None, None, None] == 0, output.dtype.type(np.nan), output), logarithms


@rediscovered(
    "Dao-AILab/flash-attention#978",
    "Fix +/-inf in LSE returned by forward",
    framework="FlashAttention 2",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="log_sum_exp",
)
def plus_infinity(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp of a row without keys is +∞."""
    log_sum_exps = Formulas.log_sum_exp(correct, scores)
    return np.where(np.isneginf(value_of(log_sum_exps)), log_sum_exps.dtype.type(np.inf), log_sum_exps)


@rediscovered(
    "flashinfer-ai/flashinfer#4452",
    "[Bug] Paged causal prefill returns finite LSE for fully masked rows when qo_len > kv_len",
    framework="FlashInfer",
    operation=GroupedQueryAttention,
    breaks=("operation.options-have-effect",),
    replaces="log_sum_exp",
)
def finite_sentinel(correct: Formulas, scores: Numbers) -> Numbers:
    """The log-sum-exp of a row without keys is finite, −49,994."""
    return np.maximum(Formulas.log_sum_exp(correct, scores), scores.dtype.type(-49994))


@rediscovered(
    "flashinfer-ai/flashinfer#4051",
    "[Bug]: Cascade state merging returns NaN when all input states are empty",
    framework="FlashInfer",
    operation=MergeAttention,
    breaks=("kernels.merged-parts-equal-whole",),
    replaces="merge_attention",
)
def merged_to_nan(correct: Formulas, outputs: Numbers, log_sum_exps: Numbers) -> Numbers:
    """If all parts are empty, −∞ − (−∞) makes output and log-sum-exp NaN."""
    merged, logarithms = Formulas.merge_attention(correct, outputs, log_sum_exps)
    lost = np.isneginf(value_of(logarithms))
    nan = merged.dtype.type(np.nan)
    return np.where(lost[..., None], nan, merged), np.where(lost, nan, logarithms)


# Alignment in the backward pass ---------------------------------------------------------------------------------------


@rediscovered(
    "xlite-dev/ffpa-attn#300",
    "Fix causal cross-attention alignment in Triton backward",
    framework="ffpa-attn (Triton)",
    operation=ScaledDotProductAttention,
    breaks=("training.recording-changes-nothing",),
    declares={"causal_alignment": "bottom-right"},
)
class AlignedForwardAlone(Library):
    """The backward pass aligns the causal mask at the top left, not bottom right. The forward pass is as declared."""

    def prepare(self, operation: Operation, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the flag by a bottom-right causal mask, except in the backward pass."""
        prepared = super().prepare(operation, arguments)
        flag, path = str(operation.flag), "" if operation.mask is None else operation.mask.path
        if not prepared.get(flag) or vars(self).get("in_vjp"):
            return prepared
        n, m, *_ = sizes(operation, prepared)
        mask, triangle = prepared.get(path), np.tri(n, m, m - n, dtype=bool)
        return {**prepared, path: triangle if mask is None else mask & triangle, flag: False}

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Numbers]:
        """Differentiate with the causal flag itself, aligned at the top left."""
        vars(self)["in_vjp"] = True
        try:
            return super().vjp(operation, arguments, cotangent)
        finally:
            vars(self)["in_vjp"] = False
