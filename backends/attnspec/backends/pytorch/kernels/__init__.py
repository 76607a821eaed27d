"""The chapter `kernels`: grouped, packed, paged, latent attention. Protocols: ``attnspec.spec.kernels``.

A fast kernel computes a call if one supports it (`dot.groups`, `dot.packed`), otherwise `formula` does.
"""

from collections.abc import Iterator
from math import inf, pi

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.dot import groups, packed
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.rotation import rotate_pairs
from attnspec.backends.pytorch.kernels.visible import Visible, conjunction, locate, visible, window_mask, within_window
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast, ignores_autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.devices import float64_device
from attnspec.backends.pytorch.runtime.products import operand, wide_product
from attnspec.backends.pytorch.runtime.ranges import refuse_decreasing_ends, refuse_out_of_range, refuse_scale_and_cap
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.tables import embedding_rows
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted
from attnspec.spec import (
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
    implements,
)

__all__ = [
    "alibi_slopes",
    "attention_weights",
    "axial_rotary_embedding",
    "document_mask",
    "dropout",
    "gated_output",
    "grouped_query_attention",
    "latent_attention",
    "merge_attention",
    "paged_attention",
    "positions_from_mask",
    "relative_position_bias",
    "rolling_buffer_positions",
    "rotary_embedding",
    "rotary_frequencies",
    "sigmoid_attention",
    "sliding_window_mask",
    "tree_mask",
    "variable_length_attention",
]

_grouped = Check("grouped_query_attention")
_weights = Check("attention_weights")
_packed = Check("variable_length_attention")
_paged = Check("paged_attention")
_latent = Check("latent_attention")
_sigmoid = Check("sigmoid_attention")
_merge = Check("merge_attention")
_rotary = Check("rotary_embedding")
_axial = Check("axial_rotary_embedding")
_frequencies = Check("rotary_frequencies")
_slopes = Check("alibi_slopes")
_relative = Check("relative_position_bias")
_window = Check("sliding_window_mask")
_documents = Check("document_mask")
_buffer = Check("rolling_buffer_positions")
_positions = Check("positions_from_mask")
_tree = Check("tree_mask")
_dropout = Check("dropout")
_gated = Check("gated_output")


# Attention in groups of heads -----------------------------------------------------------------------------------------


@implements(GroupedQueryAttention[Tensor])
@follows_autocast
def grouped_query_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    value: Float[Tensor, "*#batch heads_k m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Float[Tensor, "*#batch #heads #n #m"] | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    key_lengths: Int[Tensor, "*#batch"] | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """softmax(QKᵀ)V with all options; the heads of a group share keys and values without copies."""

    def check() -> tuple[int, ...]:
        shape = _grouped(
            query, key, value, mask, scale, window, softcap, bias, slopes, sinks, key_lengths, causal=causal
        )
        refuse_scale_and_cap("grouped_query_attention", scale, softcap)
        return shape

    options = mask, window, softcap, bias, slopes, sinks, key_lengths
    if all(x is None for x in options) and type(causal) is bool and type(scale) in (float, type(None)):
        pairs, scoring = visible(None, causal, None), Scoring(scale)
        results = groups.attend(query, key, value, pairs, scoring, check)
        if results is not None and results[0].dtype is results[1].dtype is query.dtype:
            return results
        return _finish(results, query, key, value, check(), pairs, scoring)
    shape = check()
    refuse_out_of_range("grouped_query_attention", "key_lengths", key_lengths, key.shape[-2])
    pairs = visible(mask, causal, window, key_lengths)
    scoring = _scoring(query, scale, softcap, bias, slopes, sinks)
    return _finish(groups.attend(query, key, value, pairs, scoring), query, key, value, shape, pairs, scoring, sinks)


def _scoring(query: Tensor, scale: float | None, softcap: float | None, bias: Tensor | None, slopes: Tensor | None,
             sinks: Tensor | None) -> Scoring:  # fmt: skip
    return Scoring(scale, softcap, bias, slopes, sinks if query.dtype.itemsize == 2 else None)


def _attention(query: Tensor, key: Tensor, value: Tensor, shape: tuple[int, ...], pairs: Visible,
               scoring: Scoring, sinks: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output of this shape and log Σ exp, by a fast kernel if possible."""
    return _finish(groups.attend(query, key, value, pairs, scoring), query, key, value, shape, pairs, scoring, sinks)


def _finish(results: tuple[Tensor, Tensor] | None, query: Tensor, key: Tensor, value: Tensor, shape: tuple[int, ...],
              pairs: Visible, scoring: Scoring, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Complete the results of a kernel, or of the formula if None: sinks, rounding, shape."""
    if results is None:
        allowed = pairs.allowed(query.shape[-2], key.shape[-2], query.device)
        results = formula.attention(query, key, value, allowed, scoring, pairs.offsets)
    output, logarithms = results if sinks is None else formula.with_sinks(*results, sinks)
    return _round(output, logarithms, query, shape)


def _round(output: Tensor, logarithms: Tensor, query: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Output of this shape and log Σ exp, both in the dtype of the queries."""
    return output.to(query.dtype).reshape(shape), logarithms.to(query.dtype).reshape(shape[:-1])


@implements(AttentionWeights[Tensor])
@follows_autocast
def attention_weights(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Float[Tensor, "*#batch #heads #n #m"] | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    key_lengths: Int[Tensor, "*#batch"] | None = None,
) -> Float[Tensor, "*batch heads n m"]:
    """softmax(QKᵀ) with all options; multiplied by the share that a sink leaves."""
    shape = _weights(query, key, mask, scale, window, softcap, bias, slopes, sinks, key_lengths, causal=causal)
    refuse_scale_and_cap("attention_weights", scale, softcap)
    refuse_out_of_range("attention_weights", "key_lengths", key_lengths, key.shape[-2])
    pairs = visible(mask, causal, window, key_lengths)
    allowed = pairs.allowed(query.shape[-2], key.shape[-2], query.device)
    scoring = Scoring(scale, softcap, bias, slopes)
    scores, allowed = formula.scores_and_mask(query, key, allowed, scoring, pairs.offsets)
    weights, logarithms = formula.softmax_and_logarithms(scores, allowed)
    weights = weights.flatten(-4, -3)
    if sinks is not None:
        weights, _ = formula.with_sinks(weights, logarithms.flatten(-3, -2), sinks)
    return weights.to(query.dtype).expand(shape).clone()


# Sequences in one tensor, and in pages --------------------------------------------------------------------------------


@implements(VariableLengthAttention[Tensor])
@follows_autocast
def variable_length_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key: Float[Tensor, "*#batch heads_k m d"],
    value: Float[Tensor, "*#batch heads_k m d_v"],
    query_ends: Int[Tensor, " ends"],
    key_ends: Int[Tensor, " ends"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
    key_lengths: Int[Tensor, " sequences"] | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """Attention within each packed sequence; positions count from the sequence's first."""
    others = scale, window, softcap, slopes, sinks, key_lengths
    shape = _packed(query, key, value, query_ends, key_ends, *others, causal=causal)
    n, m = query.shape[-2], key.shape[-2]
    refuse_scale_and_cap("variable_length_attention", scale, softcap)
    refuse_decreasing_ends("variable_length_attention", "query_ends", query_ends, n)
    refuse_decreasing_ends("variable_length_attention", "key_ends", key_ends, m)
    pairs, scoring = visible(None, causal, window), _scoring(query, scale, softcap, None, slopes, sinks)
    path = packed.path_for(query, key, value, query_ends, key_ends, pairs, scoring)
    if path in ("varlen", "flex") and key_lengths is None:
        results = packed.attend(path, query, key, value, query_ends, key_ends, pairs, scoring)
        return _finish(results, query, key, value, shape, pairs, scoring, sinks)
    if path in ("varlen", "flex", "plain"):
        (query_sequence, query_position), (key_sequence, key_position) = locate(query_ends, n), locate(key_ends, m)
        relative = key_position - query_position[:, None]
        allowed = (query_sequence[:, None] == key_sequence) & within_window(relative, window)
        allowed = allowed & (relative <= 0) if causal else allowed
        if key_lengths is not None:
            unused = key_position >= key_lengths[key_sequence]
            allowed = allowed & ~unused
            # On CUDA, kernels multiply excluded NaN by 0.
            key, value = (x.masked_fill(unused[:, None], 0) for x in (key, value))
        bias = None if slopes is None else -formula.linear_penalty(slopes, relative)
        scoring = scoring._replace(bias=bias, slopes=None)
        return _attention(query, key, value, shape, Visible(allowed), scoring, sinks)
    parts = [
        _attention(x, key[..., j, :], value[..., j, :], (*shape[:-2], x.shape[-2], shape[-1]), pairs, scoring, sinks)
        for x, j in _sequences(query, query_ends, key_ends, key_lengths)
    ]
    outputs, logarithms = zip(*parts, strict=True)
    return torch.cat(outputs, -2), torch.cat(logarithms, -1)


def _sequences(query: Tensor, query_ends: Tensor, key_ends: Tensor,
               key_lengths: Tensor | None) -> Iterator[tuple[Tensor, slice]]:  # fmt: skip
    """Yield the queries of each sequence with queries, and the slice of its used keys."""
    ends, starts = query_ends.tolist(), key_ends[:-1]
    stops = key_ends[1:] if key_lengths is None else torch.minimum(key_ends[1:].long(), starts.long() + key_lengths)
    for start, end, first, last in zip(ends[:-1], ends[1:], starts.tolist(), stops.tolist(), strict=True):
        if start < end:
            yield query[..., start:end, :], slice(first, last)


@implements(PagedAttention[Tensor])
@follows_autocast
def paged_attention(
    query: Float[Tensor, "*#batch heads n d"],
    key_pages: Float[Tensor, "pages heads_k page d"],
    value_pages: Float[Tensor, "pages heads_k page d_v"],
    block_table: Int[Tensor, "*#batch blocks"],
    key_lengths: Int[Tensor, "*#batch"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    slopes: Float[Tensor, " heads"] | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> tuple[Float[Tensor, "*batch heads n d_v"], Float[Tensor, "*batch heads n"] | None]:
    """Attention to keys and values in pages, in the order of ``block_table``."""
    others = scale, window, softcap, slopes, sinks
    shape = _paged(query, key_pages, value_pages, block_table, key_lengths, *others, causal=causal)
    n, m = query.shape[-2], block_table.shape[-1] * key_pages.shape[-2]
    refuse_scale_and_cap("paged_attention", scale, softcap)
    refuse_out_of_range("paged_attention", "block_table", block_table, key_pages.shape[0] - 1)
    refuse_out_of_range("paged_attention", "key_lengths", key_lengths, m)
    pairs = visible(None, causal, window, key_lengths, key_lengths.long() - n)  # uint8 lengths would wrap around
    scoring = _scoring(query, scale, softcap, None, slopes, sinks)
    results = groups.attend_in_pages(query, key_pages, value_pages, block_table, pairs, scoring)
    if results is not None:
        return _finish(results, query, key_pages, value_pages, shape, pairs, scoring, sinks)
    key, value = (_gathered_pages(pages, block_table.long()) for pages in (key_pages, value_pages))
    return _attention(query, key, value, shape, pairs, scoring, sinks)


def _gathered_pages(pages: Tensor, table: Tensor) -> Tensor:
    """Each sequence's pages, concatenated in the order of the table.

    Pages with gradients are widened first: a page shared by several sequences sums their gradients.
    """
    rows = upcast(pages)[table].to(pages.dtype) if needs_gradients(pages) else pages[table]
    return rows.movedim(-4, -3).flatten(-3, -2)


# Latent keys, and parts -----------------------------------------------------------------------------------------------


@implements(LatentAttention[Tensor])
@follows_autocast
def latent_attention(
    query: Float[Tensor, "*#batch heads n d"],
    query_rope: Float[Tensor, "*#batch heads n d_r"],
    latent: Float[Tensor, "*#batch m d_c"],
    key_rope: Float[Tensor, "*#batch m d_r"],
    w_k: Float[Tensor, "heads d d_c"],
    w_v: Float[Tensor, "heads d_v d_c"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch heads n d_v"]:
    """The absorbed form if there are fewer queries than keys, otherwise the plain form."""
    shape = _latent(query, query_rope, latent, key_rope, w_k, w_v, mask, scale, causal=causal)
    refuse_scale_and_cap("latent_attention", scale)
    n, m, dtype = query.shape[-2], latent.shape[-2], query.dtype
    pairs = visible(mask, causal, None)
    query, query_rope, rows, rotated = map(upcast, (query, query_rope, latent.unsqueeze(-3), key_rope.unsqueeze(-3)))
    scale = (query.shape[-1] + query_rope.shape[-1]) ** -0.5 if scale is None else scale
    absorbed = n < m
    queries, keys = (wide_product(query, w_k), rows) if absorbed else (query, wide_product(rows, w_k.mT))
    values = rows if absorbed else wide_product(rows, w_v.mT)
    results = None
    if not operations_intercepted():
        queries_of_both, keys_of_both = _join_features(queries, query_rope), _join_features(keys, rotated)
        results = groups.attend(queries_of_both, keys_of_both, values, pairs, Scoring(scale))
    if results is None:
        allowed = pairs.allowed(n, m, query.device)
        allowed = None if allowed is None else allowed.expand(*allowed.shape[:-2], n, m)
        scores = formula.dot_products(queries, keys, allowed) + formula.dot_products(query_rope, rotated, allowed)
        weights, _ = formula.softmax_and_logarithms(scale * scores, allowed)
        output = formula.pooled(weights, values, allowed)
    else:
        output = results[0]
    if absorbed:  # no product of halves: rounding the pooled latent is not averaged over keys, as rounding values is
        output = output @ upcast(w_v).mT
    return output.to(dtype).reshape(shape)


def _join_features(x: Tensor, y: Tensor) -> Tensor:
    rows = broadcast(x.shape[:-1], y.shape[:-1])
    return torch.cat((x.expand(*rows, x.shape[-1]), y.expand(*rows, y.shape[-1])), -1)


@implements(SigmoidAttention[Tensor])
@follows_autocast
def sigmoid_attention(
    query: Float[Tensor, "*#batch n d"],
    key: Float[Tensor, "*#batch m d"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
    bias: float = 0.0,
) -> Float[Tensor, "*batch n d_v"]:
    """Σ σ(q·k/√d + b) v over the attendable keys, by PyTorch's operations."""
    _sigmoid(query, key, value, mask, bias, causal=causal)
    if not -inf < bias < inf:
        raise ValueError(f"sigmoid_attention: bias: expected a finite number; got {bias}")
    n, m = query.shape[-2], key.shape[-2]
    allowed = conjunction(mask, window_mask(n, m, (None, 0), query.device) if causal else None)
    allowed = None if allowed is None else allowed.expand(*allowed.shape[:-2], n, m)
    # In place, since new memory for n·m numbers takes longer than a pass over them.
    scores = formula.dot_products(operand(query), operand(key), allowed).mul_(query.shape[-1] ** -0.5)
    scores = scores.add_(bias) if bias else scores
    if allowed is None:
        return wide_product(scores.sigmoid_(), operand(value)).to(query.dtype)
    # A hidden score may be NaN, and so may its derivative.
    weights = scores.masked_fill(~allowed, 0).sigmoid().masked_fill(~allowed, 0)
    output = formula.pooled(weights, operand(value), allowed).to(query.dtype)
    return output.masked_fill(~allowed.any(-1, keepdim=True), 0)


@implements(MergeAttention[Tensor])
@ignores_autocast
def merge_attention(
    outputs: Float[Tensor, "*#batch parts d_v"], log_sum_exps: Float[Tensor, "*#batch parts"]
) -> tuple[Float[Tensor, "*batch d_v"], Float[Tensor, "*batch"]]:
    """Outputs weighted by the softmax of ``log_sum_exps``."""
    shape = _merge(outputs, log_sum_exps)
    scores = upcast(log_sum_exps).unsqueeze(-2)
    with_keys = scores != -torch.inf
    weights, logarithms = formula.softmax_and_logarithms(scores, with_keys)
    output = formula.pooled(weights, upcast(outputs), with_keys).squeeze(-2)
    logarithms = logarithms.squeeze(-1).expand(shape[:-1]).clone()
    return output.to(outputs.dtype), logarithms.to(outputs.dtype)


# Positions and masks --------------------------------------------------------------------------------------------------


@implements(RotaryEmbedding[Tensor])
@ignores_autocast
def rotary_embedding(
    x: Float[Tensor, "*#batch n d"], positions: Int[Tensor, "*#batch n"] | None = None, *, theta: float = 10000.0
) -> Float[Tensor, "*batch n d"]:
    """Rotate neighbouring features (2i, 2i + 1) as pairs, by angles computed in float64."""
    _rotary(x, positions, theta)
    if not 0 < theta < inf:
        raise ValueError(f"rotary_embedding: theta: expected a positive, finite number; got {theta}")
    n, d = x.shape[-2:]
    place = float64_device(x.device)
    t = torch.arange(n, device=place) if positions is None else positions.to(place)
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64, device=place) / d)
    return rotate_pairs(x, t.to(torch.float64).unsqueeze(-1) * frequency)


@implements(AxialRotaryEmbedding[Tensor])
@ignores_autocast
def axial_rotary_embedding(
    x: Float[Tensor, "*#batch n d"],
    positions: Int[Tensor, "*#batch n axes"],
    frequencies: Float[Tensor, "axes pairs"],
) -> Float[Tensor, "*batch n d"]:
    """Rotate neighbouring features (2i, 2i + 1) as pairs, by angles computed in float64; copy the rest."""
    _axial(x, positions, frequencies)
    width, place = 2 * frequencies.shape[-1], float64_device(x.device)
    angle = positions.to(place, torch.float64) @ frequencies.to(place, torch.float64)
    pairs = rotate_pairs(x[..., :width], angle)
    if width == x.shape[-1]:
        return pairs
    return torch.cat((pairs, x[..., width:].expand(*pairs.shape[:-1], -1)), -1)


@implements(RotaryFrequencies[Tensor])
def rotary_frequencies(
    pairs: int,
    *,
    theta: float = 500_000.0,
    factor: float = 8.0,
    length: float = 8192.0,
    low: float = 1.0,
    high: float = 4.0,
) -> Float[Tensor, "{pairs}"]:
    """Frequencies, computed in float64, on PyTorch's default device and in its default dtype."""
    _frequencies(pairs, theta, factor, length, low, high)
    options = {"theta": theta, "factor": factor, "length": length, "low": low, "high": high}
    for name, number in options.items():
        if not 0 < number < inf:
            raise ValueError(f"rotary_frequencies: {name}: expected a positive, finite number; got {number}")
    if low >= high:
        raise ValueError(f"rotary_frequencies: low: expected less than high = {high}; got {low}")
    unscaled = theta ** (-torch.arange(pairs, dtype=torch.float64, device="cpu") / pairs)
    share = ((unscaled * (length / (2 * pi)) - low) / (high - low)).clamp(0, 1)
    frequencies = share * unscaled + (1 - share) * (unscaled / factor)
    return frequencies.to(torch.get_default_device(), torch.get_default_dtype())


@implements(AlibiSlopes[Tensor])
def alibi_slopes(heads: int) -> Float[Tensor, "{heads}"]:
    """Powers of two, on PyTorch's default device and in its default dtype."""
    _slopes(heads)
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * (r + 1) / power for r in range(power)] + [4 * (2 * r + 1) / power for r in range(heads - power)]
    return torch.tensor([2.0**-exponent for exponent in exponents])


@implements(RelativePositionBias[Tensor])
@ignores_autocast
def relative_position_bias(
    table: Float[Tensor, "buckets heads"],
    query_positions: Int[Tensor, "*#batch n"],
    key_positions: Int[Tensor, "*#batch m"],
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Float[Tensor, "*batch heads n m"]:
    """Rows of the table, one for each bucket of distances; gradients of half dtypes are summed in float32."""
    _relative(table, query_positions, key_positions, max_distance, bidirectional=bidirectional)
    buckets = table.shape[0] // 2 if bidirectional else table.shape[0]
    if not max_distance > buckets // 2:
        raise ValueError(
            f"relative_position_bias: max_distance: expected more than the {buckets // 2} distances with a bucket each;"
            f" got {max_distance}"
        )
    ahead = key_positions.long().unsqueeze(-2) - query_positions.long().unsqueeze(-1)
    distance = ahead.abs() if bidirectional else (-ahead).clamp(min=0)
    bucket = buckets * (ahead > 0) if bidirectional else torch.zeros_like(ahead)
    # Comparisons with numbers: copying a tensor of them to a GPU would wait for it.
    for start in _bucket_starts(buckets, max_distance):
        bucket = bucket + (distance >= start)
    rows = embedding_rows(bucket, upcast(table) if needs_gradients(table) else table)
    return rows.to(table.dtype).movedim(-1, -3)


def _bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The least distance in each bucket but the first, decided by powers of integers."""
    exact = buckets // 2
    starts, growing = list(range(1, exact + 1)), buckets - exact
    for k in range(1, growing):
        start = int(exact * (max_distance / exact) ** (k / growing))
        starts.append(start + int(start**growing * exact**k < max_distance**k * exact**growing))
    return starts


@implements(SlidingWindowMask[Tensor])
def sliding_window_mask(
    n: int, m: int, *, window: tuple[int | None, int | None] | None = None
) -> Bool[Tensor, "{n} {m}"]:
    """True where i − left ≤ j ≤ i + right (query i, key j); on PyTorch's default device."""
    _window(n, m, window)
    return window_mask(n, m, window, None)


@implements(DocumentMask[Tensor])
def document_mask(
    query_documents: Int[Tensor, "*#batch n"], key_documents: Int[Tensor, "*#batch m"]
) -> Bool[Tensor, "*batch n m"]:
    """True where query and key have the same document number."""
    _documents(query_documents, key_documents)
    return query_documents.unsqueeze(-1) == key_documents.unsqueeze(-2)


@implements(RollingBufferPositions[Tensor])
def rolling_buffer_positions(lengths: Int[Tensor, "*batch"], slots: int) -> Int[Tensor, "*batch {slots}"]:
    """The last position stored in each slot, −1 if there is none."""
    _buffer(lengths, slots)
    last = lengths.long().unsqueeze(-1) - 1
    return (last - (last - torch.arange(slots, device=lengths.device)) % slots).clamp(min=-1)


@implements(PositionsFromMask[Tensor])
def positions_from_mask(mask: Bool[Tensor, "*batch t"]) -> Int[Tensor, "*batch t"]:
    """Number of tokens before each token; 0 for padding."""
    _positions(mask)
    return (mask.cumsum(-1) - 1).masked_fill(~mask, 0)


@implements(TreeMask[Tensor])
def tree_mask(parents: Int[Tensor, "*batch n"]) -> Bool[Tensor, "*batch n n"]:
    """True where the key is the query or an ancestor of it; every step doubles the number of ancestors."""
    _tree(parents)
    n = parents.shape[-1]
    own = torch.arange(n, device=parents.device)
    ancestor = torch.where((parents >= 0) & (parents < own), parents, own).long()
    mask = (own[:, None] == own).expand(*parents.shape, n)
    for _ in range((n - 1).bit_length() if n else 0):
        mask = mask | mask.gather(-2, ancestor[..., None].expand_as(mask))
        ancestor = ancestor.gather(-1, ancestor)
    return mask.contiguous()


@implements(Dropout[Tensor])
@ignores_autocast
def dropout(
    weights: Float[Tensor, "*#batch n m"], *, keep: Bool[Tensor, "*#batch #n #m"] | None = None, rate: float = 0.0
) -> Float[Tensor, "*batch n m"]:
    """Weights divided by 1 − rate where kept, 0 elsewhere."""
    _dropout(weights, keep, rate)
    if not 0 <= rate < 1:
        raise ValueError(f"dropout: rate: expected a number in [0, 1); got {rate}")
    scaled = (upcast(weights) / (1 - rate)).to(weights.dtype)
    return scaled if keep is None else torch.where(keep, scaled, 0.0)


@implements(GatedOutput[Tensor])
@ignores_autocast
def gated_output(
    x: Float[Tensor, "*#batch n d_v"], gate: Float[Tensor, "*#batch #n #d_v"]
) -> Float[Tensor, "*batch n d_v"]:
    """The product with the sigmoid of the gate, rounded once."""
    _gated(x, gate)
    return (upcast(x) * upcast(gate).sigmoid()).to(x.dtype)
