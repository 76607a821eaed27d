"""Attention as models run it: grouped heads with options, packed, paged, latent and merged.

These functions define the results. They favour the formula over speed. Logarithms are always returned; the types allow
None for backends that lack them.
"""

from fractions import Fraction
from itertools import count, pairwise
from math import ceil, floor, log, pi

import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.reference.attention import attend
from attnspec.reference.defining.arithmetic import counted
from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import beyond_diagonal, joint_mask, padding_mask
from attnspec.reference.normalization import log_sum_exp, sigmoid, softmax
from attnspec.reference.pooling import pooled
from attnspec.reference.scoring import scaled_dot_scores
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

Window = tuple[int | None, int | None] | None


@defines(GroupedQueryAttention[np.ndarray])
def grouped_query_attention(
    query: Float[np.ndarray, "*#batch heads n d"],
    key: Float[np.ndarray, "*#batch heads_k m d"],
    value: Float[np.ndarray, "*#batch heads_k m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Float[np.ndarray, "*#batch #heads #n #m"] | None = None,
    slopes: Float[np.ndarray, " heads"] | None = None,
    sinks: Float[np.ndarray, " heads"] | None = None,
    key_lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> tuple[Float[np.ndarray, "*batch heads n d_v"], Float[np.ndarray, "*batch heads n"] | None]:
    """o = softmax(s) v and ℓ = log Σ exp s over attendable keys; the sink is one more, of value 0.

    If `alibi_distances` is "signed", i − j replaces |i − j|. If `head_groups` is "interleaved", h = r mod heads_k.
    """
    scores, attendable = scores_and_mask(
        query, key, mask, causal, scale=scale, window=window, softcap=softcap, bias=bias, slopes=slopes,
        key_lengths=key_lengths,
    )  # fmt: skip
    values = add_groups(value)
    has_keys = np.any(np.ones(key.shape[-2], bool) if attendable is None else attendable, axis=-1)
    if sinks is not None:
        scores, attendable = with_sink(scores, attendable, per_head(sinks, key.shape[-3]))
        row = np.zeros((*values.shape[:-2], 1, values.shape[-1]), values.dtype)
        values = np.concatenate([values, row], axis=-2)
    output = pooled(softmax(scores, mask=attendable), values, attendable)
    logarithms = in_chosen_base(log_sum_exp(scores, mask=attendable))
    if choice("sink_alone") == "minus-infinity":
        logarithms = np.where(has_keys, logarithms, -np.inf)
    logarithms = np.broadcast_to(logarithms, output.shape[:-1])
    return merge_groups(output), merge_groups(logarithms[..., None])[..., 0]


def scores_and_mask(
    query: np.ndarray,
    key: np.ndarray,
    mask: np.ndarray | None,
    causal: bool,
    *,
    scale: float | None,
    window: Window,
    softcap: float | None,
    bias: np.ndarray | None,
    slopes: np.ndarray | None,
    key_lengths: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Scores s (*batch, heads_k, group, n, m) with all biases, and the mask."""
    heads_k, n, m = key.shape[-3], query.shape[-2], key.shape[-2]
    beyond = beyond_diagonal(n, m, key_lengths)
    scores = capped(
        scaled(split_groups(query, heads_k) @ np.swapaxes(add_groups(key), -1, -2), query.shape[-1], scale), softcap
    )
    if bias is not None:
        scores = scores + split_groups(bias, heads_k)
    if slopes is not None:
        scores = scores - per_head(slopes, heads_k) * distances(beyond, scores)[..., None, None, :, :]
    unpadded = None if key_lengths is None else padding_mask(key_lengths, m)[..., None, :]
    masks = (mask, beyond <= 0 if causal else None, window_mask(beyond, window), unpadded)
    attendable = None
    for x in masks:
        if x is not None:
            attendable = x if attendable is None else attendable & x
    return scores, None if attendable is None else attendable[..., None, None, :, :]


@defines(AttentionWeights[np.ndarray])
def attention_weights(
    query: Float[np.ndarray, "*#batch heads n d"],
    key: Float[np.ndarray, "*#batch heads_k m d"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Float[np.ndarray, "*#batch #heads #n #m"] | None = None,
    slopes: Float[np.ndarray, " heads"] | None = None,
    sinks: Float[np.ndarray, " heads"] | None = None,
    key_lengths: Int[np.ndarray, "*#batch"] | None = None,
) -> Float[np.ndarray, "*batch heads n m"]:
    """α = softmax(s) over attendable keys and the sink, whose own weight is left out."""
    scores, attendable = scores_and_mask(
        query, key, mask, causal, scale=scale, window=window, softcap=softcap, bias=bias, slopes=slopes,
        key_lengths=key_lengths,
    )  # fmt: skip
    if sinks is not None:
        scores, attendable = with_sink(scores, attendable, per_head(sinks, key.shape[-3]))
    return merge_groups(softmax(scores, mask=attendable)[..., : key.shape[-2]])


def distances(beyond: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Distances |i − j| of the positions j − i; i − j if ``alibi_distances`` is "signed"."""
    behind = -beyond if choice("alibi_distances") == "signed" else np.abs(beyond)
    # With ``like``, budgets know that these integers are exact.
    distance: np.ndarray = np.asarray(behind, dtype=like.dtype, like=like)
    return distance


def in_chosen_base(logarithms: np.ndarray) -> np.ndarray:
    """Log-sum-exps from natural logarithms: divided by log 2 if the base is 2 (semantics `logarithms`)."""
    to_base_2 = choice("logarithms") == "base-2"
    converted: np.ndarray = logarithms / np.log(logarithms.dtype.type(2)) if to_base_2 else logarithms
    return converted


def natural(logarithms: np.ndarray) -> np.ndarray:
    """Natural logarithms from log-sum-exps: the inverse of :func:`in_chosen_base`."""
    to_base_2 = choice("logarithms") == "base-2"
    converted: np.ndarray = logarithms * np.log(logarithms.dtype.type(2)) if to_base_2 else logarithms
    return converted


def split_groups(x: np.ndarray, heads_k: int) -> np.ndarray:
    """Split heads into groups, (*batch, heads, n, d) → (*batch, heads_k, group, n, d); one head becomes (1, 1)."""
    *batch, heads, n, d = x.shape
    if heads == 1:
        return np.reshape(x, (*batch, 1, 1, n, d))
    if choice("head_groups") == "interleaved":
        return np.swapaxes(np.reshape(x, (*batch, heads // heads_k, heads_k, n, d)), -4, -3)
    return np.reshape(x, (*batch, heads_k, heads // heads_k, n, d))


def per_head(x: np.ndarray, heads_k: int) -> np.ndarray:
    """Reshape one number per head, (heads,), to (heads_k, group, 1, 1)."""
    per_group = split_groups(x[:, None, None], heads_k)
    return np.reshape(per_group, (heads_k, x.shape[0] // heads_k, 1, 1))


def add_groups(x: np.ndarray) -> np.ndarray:
    """Add a group axis to keys or values: (*batch, heads_k, m, d) → (*batch, heads_k, 1, m, d)."""
    return np.expand_dims(x, -3)


def merge_groups(x: np.ndarray) -> np.ndarray:
    """Merge groups into heads: (*batch, heads_k, group, n, d) → (*batch, heads, n, d)."""
    *batch, heads_k, group, n, d = x.shape
    if choice("head_groups") == "interleaved":
        x = np.swapaxes(x, -4, -3)
    return np.reshape(x, (*batch, heads_k * group, n, d))


def scaled(scores: np.ndarray, d: int, scale: float | None) -> np.ndarray:
    """Multiply scores by the scale, or by 1/√d without one."""
    scaled_scores: np.ndarray = scores / np.sqrt(scores.dtype.type(d)) if scale is None else scores * scale
    return scaled_scores


def capped(scores: np.ndarray, softcap: float | None) -> np.ndarray:
    """c tanh(s/c) with the cap c: about s for small scores, and never beyond ±c."""
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def with_sink(
    scores: np.ndarray, attendable: np.ndarray | None, sinks: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Append the sink to scores (…, n, m) and mask. All queries attend to it."""
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    if attendable is not None:
        full_mask = np.broadcast_to(attendable, (*attendable.shape[:-1], scores.shape[-1]))
        attendable = np.concatenate([full_mask, np.ones((*full_mask.shape[:-1], 1), bool)], axis=-1)
    return np.concatenate([scores, column], axis=-1), attendable


@defines(VariableLengthAttention[np.ndarray])
def variable_length_attention(
    query: Float[np.ndarray, "*#batch heads n d"],
    key: Float[np.ndarray, "*#batch heads_k m d"],
    value: Float[np.ndarray, "*#batch heads_k m d_v"],
    query_ends: Int[np.ndarray, " ends"],
    key_ends: Int[np.ndarray, " ends"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    slopes: Float[np.ndarray, " heads"] | None = None,
    sinks: Float[np.ndarray, " heads"] | None = None,
    key_lengths: Int[np.ndarray, " sequences"] | None = None,
) -> tuple[Float[np.ndarray, "*batch heads n d_v"], Float[np.ndarray, "*batch heads n"] | None]:
    """O = [O₁; O₂; …] and ℓ = [ℓ₁; ℓ₂; …]: `grouped_query_attention` of each sequence and the keys that it uses."""
    stops = key_ends[1:] if key_lengths is None else np.minimum(key_ends[1:], key_ends[:-1] + key_lengths)
    parts = [
        grouped_query_attention(
            query[..., i:i_end, :], key[..., j:j_end, :], value[..., j:j_end, :],
            causal=causal, scale=scale, window=window, softcap=softcap, slopes=slopes, sinks=sinks,
        )
        for (i, i_end), j, j_end in zip(pairwise(query_ends), key_ends[:-1], stops, strict=True)
    ]  # fmt: skip
    outputs, logarithms = zip(*parts, strict=True)
    return np.concatenate(outputs, axis=-2), np.concatenate(logarithms, axis=-1)


@defines(PagedAttention[np.ndarray])
def paged_attention(
    query: Float[np.ndarray, "*#batch heads n d"],
    key_pages: Float[np.ndarray, "pages heads_k page d"],
    value_pages: Float[np.ndarray, "pages heads_k page d_v"],
    block_table: Int[np.ndarray, "*#batch blocks"],
    key_lengths: Int[np.ndarray, "*#batch"],
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    slopes: Float[np.ndarray, " heads"] | None = None,
    sinks: Float[np.ndarray, " heads"] | None = None,
) -> tuple[Float[np.ndarray, "*batch heads n d_v"], Float[np.ndarray, "*batch heads n"] | None]:
    """`grouped_query_attention` to the first ℓ rows of the pages that the table lists."""
    n, m = query.shape[-2], block_table.shape[-1] * key_pages.shape[-2]
    lengths = key_lengths[..., None, None]
    # Key j minus the position of query i, (*batch, n, m): positive for later keys.
    beyond = np.arange(m) - (lengths - n + np.arange(n)[:, None])
    in_window = window_mask(beyond, window)
    mask = np.arange(m) < lengths if in_window is None else in_window & (np.arange(m) < lengths)
    bias = None if slopes is None else -slopes[:, None, None] * distances(beyond, slopes)[..., None, :, :]
    return grouped_query_attention(
        query, gather_pages(key_pages, block_table), gather_pages(value_pages, block_table),
        mask=mask & (beyond <= 0) if causal else mask, scale=scale, softcap=softcap, bias=bias, sinks=sinks,
    )  # fmt: skip


def gather_pages(pages: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Put pages (pages, heads_k, page, d) in the order of a table (*batch, blocks): (*batch, heads_k, rows, d)."""
    rows = np.moveaxis(pages[table], -4, -3)
    *batch, blocks, page, d = rows.shape
    return np.reshape(rows, (*batch, blocks * page, d))


@defines(LatentAttention[np.ndarray])
def latent_attention(
    query: Float[np.ndarray, "*#batch heads n d"],
    query_rope: Float[np.ndarray, "*#batch heads n d_r"],
    latent: Float[np.ndarray, "*#batch m d_c"],
    key_rope: Float[np.ndarray, "*#batch m d_r"],
    w_k: Float[np.ndarray, "heads d d_c"],
    w_v: Float[np.ndarray, "heads d_v d_c"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[np.ndarray, "*batch heads n d_v"]:
    """O = softmax(λ(Q(CW_Kᵀ)ᵀ + Q̂K̂ᵀ)) CW_Vᵀ in every head: C yields keys and values."""
    shared_latent = latent[..., None, :, :]
    keys, values = (shared_latent @ np.swapaxes(w, -1, -2) for w in (w_k, w_v))
    scores = query @ np.swapaxes(keys, -1, -2) + query_rope @ np.swapaxes(key_rope[..., None, :, :], -1, -2)
    head_mask = None if mask is None else mask[..., None, :, :]
    return attend(scaled(scores, query.shape[-1] + query_rope.shape[-1], scale), values, head_mask, causal)


@defines(SigmoidAttention[np.ndarray])
def sigmoid_attention(
    query: Float[np.ndarray, "*#batch n d"],
    key: Float[np.ndarray, "*#batch m d"],
    value: Float[np.ndarray, "*#batch m d_v"],
    *,
    mask: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    causal: bool = False,
    bias: float = 0.0,
) -> Float[np.ndarray, "*batch n d_v"]:
    """oᵢ = Σ_{j∈Aᵢ} σ(qᵢᵀkⱼ/√d + b) vⱼ: each key has a weight of its own, between 0 and 1."""
    weights = sigmoid(scaled_dot_scores(query, key) + bias)
    attendable = joint_mask(mask, causal, query.shape[-2], key.shape[-2])
    return pooled(weights if attendable is None else np.where(attendable, weights, 0), value, attendable)


@defines(MergeAttention[np.ndarray])
def merge_attention(
    outputs: Float[np.ndarray, "*#batch parts d_v"], log_sum_exps: Float[np.ndarray, "*#batch parts"]
) -> tuple[Float[np.ndarray, "*batch d_v"], Float[np.ndarray, "*batch"]]:
    """o = Σ exp(ℓ_p − ℓ) o_p and ℓ = log Σ exp ℓ_p: the parts are weighted by the softmax of ℓ_p."""
    scores = natural(log_sum_exps)[..., None, :]
    with_keys = np.not_equal(scores, -np.inf)
    merged = pooled(softmax(scores, mask=with_keys), outputs, with_keys)[..., 0, :]
    logarithms = in_chosen_base(log_sum_exp(scores, mask=with_keys)[..., 0])
    return merged, np.broadcast_to(logarithms, merged.shape[:-1])


@defines(RotaryEmbedding[np.ndarray])
def rotary_embedding(
    x: Float[np.ndarray, "*#batch n d"],
    positions: Int[np.ndarray, "*#batch n"] | None = None,
    *,
    theta: float = 10000.0,
) -> Float[np.ndarray, "*batch n d"]:
    """Rotate each pair (a, b) by the angle tθ with θ = Θ^(−2i/d): (a cos tθ − b sin tθ, a sin tθ + b cos tθ)."""
    *_, n, d = x.shape
    i = np.asarray(np.arange(d // 2), dtype=x.dtype, like=x)
    t = np.asarray(np.arange(n) if positions is None else positions, dtype=x.dtype, like=x)
    return rotated_pairs(x, t[..., None] * np.exp(-2 * i * np.log(x.dtype.type(theta)) / d))


def rotated_pairs(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Rotate each pair (a, b) of features by its angle φ: (a cos φ − b sin φ, a sin φ + b cos φ)."""
    d = x.shape[-1]
    cosine, sine = np.cos(angle), np.sin(angle)
    if choice("rotary_pairs") == "halves":
        first, second = x[..., : d // 2], x[..., d // 2 :]
        rotated: np.ndarray = np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
        return rotated
    first, second = x[..., 0::2], x[..., 1::2]
    pairs = np.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
    return np.reshape(pairs, (*pairs.shape[:-2], d))


@defines(AxialRotaryEmbedding[np.ndarray])
def axial_rotary_embedding(
    x: Float[np.ndarray, "*#batch n d"],
    positions: Int[np.ndarray, "*#batch n axes"],
    frequencies: Float[np.ndarray, "axes pairs"],
) -> Float[np.ndarray, "*batch n d"]:
    """Rotate the first pairs of features by the angles φ_i = Σ_a t_a ω_{ai}; the rest is unchanged."""
    width = 2 * frequencies.shape[-1]
    t = np.asarray(positions, dtype=x.dtype, like=x)
    rotated = rotated_pairs(x[..., :width], (t[..., None] * frequencies).sum(-2))
    unrotated = np.broadcast_to(x[..., width:], (*rotated.shape[:-1], x.shape[-1] - width))
    joined: np.ndarray = np.concatenate([rotated, unrotated], axis=-1)
    return joined


@defines(RotaryFrequencies[np.ndarray])
def rotary_frequencies(
    pairs: int,
    *,
    theta: float = 500_000.0,
    factor: float = 8.0,
    length: float = 8192.0,
    low: float = 1.0,
    high: float = 4.0,
) -> Float[np.ndarray, "{pairs}"]:
    """ω_i = γ_i θ_i + (1 − γ_i) θ_i/s with θ_i = Θ^(−i/p).

    The share γ_i is min(1, max(0, r)) with the ramp r = (Lθ_i/2π − α)/(β − α).
    """
    i = counted(pairs)
    unscaled = np.exp(-i * np.log(i.dtype.type(theta)) / pairs)
    if choice("rotary_ramp") == "rotations":
        ramp = (unscaled * (length / (2 * pi)) - low) / (high - low)
    else:
        start, end = (pairs * log(length / (2 * pi * rotations)) / log(theta) for rotations in (high, low))
        if choice("rotary_ramp") == "whole-indices":
            start, end = floor(start), ceil(end)
        ramp = (end - i) / (end - max(start, 0))
    share = 1 - np.maximum(0, 1 - np.maximum(0, ramp))
    frequencies: np.ndarray = share * unscaled + (1 - share) * (unscaled / factor)
    return frequencies


@defines(AlibiSlopes[np.ndarray])
def alibi_slopes(heads: int) -> Float[np.ndarray, "{heads}"]:
    """m_r = 2^(−8(r+1)/H) for the first H heads, then m_{H+r} = 2^(−4(2r+1)/H); H ≤ heads is a power of 2."""
    power = 1 << (heads.bit_length() - 1)
    first, others = counted(power), counted(heads - power)
    slopes: np.ndarray = np.concatenate(
        [two_to_minus(8 * (first + 1) / power, first), two_to_minus(4 * (2 * others + 1) / power, others)]
    )
    return slopes


def two_to_minus(exponent: np.ndarray, like: np.ndarray) -> np.ndarray:
    """2^(−exponent), computed in the dtype of ``like``."""
    powers: np.ndarray = np.exp(-exponent * np.log(like.dtype.type(2)))
    return powers


@defines(RelativePositionBias[np.ndarray])
def relative_position_bias(
    table: Float[np.ndarray, "buckets heads"],
    query_positions: Int[np.ndarray, "*#batch n"],
    key_positions: Int[np.ndarray, "*#batch m"],
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Float[np.ndarray, "*batch heads n m"]:
    """B_{rij} = T_{b, r}; b is the bucket of the distance from query i to key j."""
    ahead = key_positions[..., None, :] - query_positions[..., :, None]
    buckets = len(table) // 2 if bidirectional else len(table)
    distance = np.abs(ahead) if bidirectional else np.maximum(-ahead, 0)
    bucket = np.searchsorted(bucket_starts(buckets, max_distance), distance, side="right")
    bias: np.ndarray = table[bucket + buckets * (ahead > 0) if bidirectional else bucket]
    return np.moveaxis(bias, -1, -3)


def bucket_starts(buckets: int, max_distance: int) -> list[int]:
    """The least distance in each bucket but the first: for bucket e + k, the least x with (x/e)^(h−e) ≥ (D/e)^k."""
    exact = buckets // 2
    starts = list(range(1, exact + 1))
    for k in range(1, buckets - exact):
        least = Fraction(max_distance, exact) ** k
        about = int(exact * (max_distance / exact) ** (k / (buckets - exact)))
        starts.append(next(x for x in count(about - 1) if Fraction(x, exact) ** (buckets - exact) >= least))
    return starts


@defines(SlidingWindowMask[np.ndarray])
def sliding_window_mask(
    n: int, m: int, *, window: tuple[int | None, int | None] | None = None
) -> Bool[np.ndarray, "{n} {m}"]:
    """Mᵢⱼ = [i − l ≤ j ≤ i + r]: the keys from l before the query to r after it."""
    in_window = window_mask(np.arange(m) - np.arange(n)[:, None], window)
    return np.ones((n, m), bool) if in_window is None else in_window


def window_mask(beyond: np.ndarray, window: Window) -> np.ndarray | None:
    """Mask of the keys in a window; None without a window.

    ``beyond`` is the position of each key minus that of each query. An open side of the window (None) excludes no key.
    The left side reaches one key less where it includes the query's own position (semantics `window_left`).
    """
    if window is None:
        return None
    left, right = window
    farthest = np.abs(beyond).max(initial=0)
    own = 1 if choice("window_left") == "includes-own" else 0
    first, last = -farthest if left is None else own - left, farthest if right is None else right
    inside: np.ndarray = (beyond >= first) & (beyond <= last)
    return inside


@defines(DocumentMask[np.ndarray])
def document_mask(
    query_documents: Int[np.ndarray, "*#batch n"], key_documents: Int[np.ndarray, "*#batch m"]
) -> Bool[np.ndarray, "*batch n m"]:
    """Mᵢⱼ = [Dᵢ = Eⱼ]: query and key belong to the same document."""
    same: np.ndarray = query_documents[..., :, None] == key_documents[..., None, :]
    return same


@defines(RollingBufferPositions[np.ndarray])
def rolling_buffer_positions(lengths: Int[np.ndarray, "*batch"], slots: int) -> Int[np.ndarray, "*batch {slots}"]:
    """p = ℓ − 1 − ((ℓ − 1 − s) mod w): the last position that slot s was written at; −1 before the first."""
    last = lengths[..., None] - 1
    positions: np.ndarray = np.maximum(last - (last - np.arange(slots)) % slots, -1)
    return positions


@defines(PositionsFromMask[np.ndarray])
def positions_from_mask(mask: Bool[np.ndarray, "*batch t"]) -> Int[np.ndarray, "*batch t"]:
    """p = Σ_{j<i} M_j for tokens, and for padding what semantics `padding_positions` says."""
    last = np.cumsum(mask, axis=-1) - 1
    of_padding = {"zero": 0, "one": 1, "previous": np.maximum(last, 0), "minus-one": -1}
    positions: np.ndarray = np.where(mask, last, of_padding[choice("padding_positions")])
    return positions


@defines(TreeMask[np.ndarray])
def tree_mask(parents: Int[np.ndarray, "*batch n"]) -> Bool[np.ndarray, "*batch n n"]:
    """Mᵢⱼ = [j = i] ∨ M_{pᵢ j}: a row is that of its parent, and the token itself."""
    *batch, n = parents.shape
    mask = np.array(np.broadcast_to(np.eye(n, dtype=bool), (*batch, n, n)))
    for i in range(n):
        parent = parents[..., i]
        row = np.where((parent >= 0) & (parent < i), parent, i)
        mask[..., i, :] |= np.take_along_axis(mask, row[..., None, None], axis=-2)[..., 0, :]
    return mask


@defines(Dropout[np.ndarray])
def dropout(
    weights: Float[np.ndarray, "*#batch n m"],
    *,
    keep: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    rate: float = 0.0,
) -> Float[np.ndarray, "*batch n m"]:
    """yᵢⱼ = αᵢⱼ/(1 − p) for kept weights, and 0 for dropped ones."""
    scaled_weights: np.ndarray = weights / (1 - rate)
    return scaled_weights if keep is None else np.where(keep, scaled_weights, 0)


@defines(GatedOutput[np.ndarray])
def gated_output(
    x: Float[np.ndarray, "*#batch n d_v"], gate: Float[np.ndarray, "*#batch #n #d_v"]
) -> Float[np.ndarray, "*batch n d_v"]:
    """Y = σ(G) ∘ X, the product of corresponding elements."""
    gated: np.ndarray = sigmoid(gate) * x
    return gated
