"""Attention as it runs in practice: grouped heads and their options, packed, paged, latent, merged."""

import numpy as np
from jaxtyping import Bool, Float, Int

from attnspec.reference.attention import attend
from attnspec.reference.defining.arithmetic import counted
from attnspec.reference.defining.choices import choice
from attnspec.reference.defining.definition import defines
from attnspec.reference.masking import beyond_diagonal, joint_mask, padding_mask
from attnspec.reference.normalization import log_sum_exp, softmax
from attnspec.reference.pooling import pooled
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

__all__ = [
    "alibi_slopes",
    "document_mask",
    "dropout",
    "grouped_query_attention",
    "latent_attention",
    "merge_attention",
    "paged_attention",
    "rotary_embedding",
    "sliding_window_mask",
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
    """o = softmax(s) v and ℓ = log Σ exp s, over the attendable keys and the sink, a key with value 0."""
    heads_k, n, m = key.shape[-3], query.shape[-2], key.shape[-2]
    scores = capped(
        scaled(in_groups(query, heads_k) @ np.swapaxes(shared(key), -1, -2), query.shape[-1], scale), softcap
    )
    if bias is not None:
        scores = scores + in_groups(bias, heads_k)
    if slopes is not None:
        distance = np.asarray(np.abs(beyond_diagonal(n, m)), dtype=scores.dtype, like=scores)
        scores = scores - of_heads(slopes, heads_k) * distance
    attendable = joint_mask(mask, causal, n, m)
    for more in (
        within(beyond_diagonal(n, m), window),
        None if key_lengths is None else padding_mask(key_lengths, m)[..., None, :],
    ):
        attendable = more if attendable is None else attendable if more is None else attendable & more
    attendable = None if attendable is None else attendable[..., None, None, :, :]
    values = shared(value)
    if sinks is not None:
        scores, values, attendable = with_sink(scores, values, attendable, of_heads(sinks, heads_k))
    output = pooled(softmax(scores, mask=attendable), values, attendable)
    logarithms = np.broadcast_to(log_sum_exp(scores, mask=attendable), output.shape[:-1])
    return joined(output), joined(logarithms[..., None])[..., 0]


def in_groups(x: np.ndarray, heads_k: int) -> np.ndarray:
    """Split query heads into groups: (*batch, heads, n, d) → (*batch, heads_k, group, n, d), a size of 1 → 1, 1."""
    *batch, heads, n, d = x.shape
    shape = (1, 1) if heads == 1 else (heads_k, heads // heads_k)
    return np.reshape(x, (*batch, *shape, n, d))


def of_heads(x: np.ndarray, heads_k: int) -> np.ndarray:
    """Reshape one number per head, (heads,), to (heads_k, group, 1, 1)."""
    return np.reshape(x, (heads_k, x.shape[0] // heads_k, 1, 1))


def shared(x: np.ndarray) -> np.ndarray:
    """Add a group axis to keys or values: (*batch, heads_k, m, d) → (*batch, heads_k, 1, m, d)."""
    return np.expand_dims(x, -3)


def joined(x: np.ndarray) -> np.ndarray:
    """Join the groups again: (*batch, heads_k, group, n, d) → (*batch, heads, n, d)."""
    *batch, heads_k, group, n, d = x.shape
    return np.reshape(x, (*batch, heads_k * group, n, d))


def scaled(scores: np.ndarray, d: int, scale: float | None) -> np.ndarray:
    """Scale scores by λ, or by 1/√d if there is no scale."""
    found: np.ndarray = scores / np.sqrt(scores.dtype.type(d)) if scale is None else scores * scale
    return found


def capped(scores: np.ndarray, softcap: float | None) -> np.ndarray:
    """c tanh(s/c): near s for small scores, never beyond ±c."""
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def with_sink(
    scores: np.ndarray, values: np.ndarray, attendable: np.ndarray | None, sinks: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Append the sink to scores (…, n, m), values (…, m, d_v) and mask: a key that all queries may attend to."""
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    row = np.zeros((*values.shape[:-2], 1, values.shape[-1]), values.dtype)
    if attendable is not None:
        everywhere = np.broadcast_to(attendable, (*attendable.shape[:-1], scores.shape[-1]))
        attendable = np.concatenate([everywhere, np.ones((*everywhere.shape[:-1], 1), bool)], axis=-1)
    return np.concatenate([scores, column], axis=-1), np.concatenate([values, row], axis=-2), attendable


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
) -> tuple[Float[np.ndarray, "*batch heads n d_v"], Float[np.ndarray, "*batch heads n"] | None]:
    """O = [O₁; O₂; …] and ℓ = [ℓ₁; ℓ₂; …], with `grouped_query_attention` for each sequence."""
    parts = [
        grouped_query_attention(
            query[..., a:b, :], key[..., c:d, :], value[..., c:d, :],
            causal=causal, scale=scale, window=window, softcap=softcap,
        )
        for a, b, c, d in zip(query_ends, query_ends[1:], key_ends, key_ends[1:], strict=False)
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
) -> tuple[Float[np.ndarray, "*batch heads n d_v"], Float[np.ndarray, "*batch heads n"] | None]:
    """`grouped_query_attention` to the first ℓ rows of the pages, in the order of the table."""
    n, m = query.shape[-2], block_table.shape[-1] * key_pages.shape[-2]
    lengths = key_lengths[..., None, None]
    # j − position of query i, (*batch, n, m): positive for keys after the query.
    beyond = np.arange(m) - (lengths - n + np.arange(n)[:, None])
    near = within(beyond, window)
    mask = np.arange(m) < lengths if near is None else near & (np.arange(m) < lengths)
    return grouped_query_attention(
        query, in_order(key_pages, block_table), in_order(value_pages, block_table),
        mask=mask & (beyond <= 0) if causal else mask, scale=scale, softcap=softcap,
    )  # fmt: skip


def in_order(pages: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Gather pages (pages, heads_k, page, d) by a table (*batch, blocks): (*batch, heads_k, blocks·page, d)."""
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
    """O = softmax(λ(Q(CW_Kᵀ)ᵀ + Q̂K̂ᵀ)) CW_Vᵀ in every head."""
    rows = latent[..., None, :, :]
    keys, values = (rows @ np.swapaxes(w, -1, -2) for w in (w_k, w_v))
    scores = query @ np.swapaxes(keys, -1, -2) + query_rope @ np.swapaxes(key_rope[..., None, :, :], -1, -2)
    everyone = None if mask is None else mask[..., None, :, :]
    return attend(scaled(scores, query.shape[-1] + query_rope.shape[-1], scale), values, everyone, causal)


@defines(MergeAttention[np.ndarray])
def merge_attention(
    outputs: Float[np.ndarray, "*#batch parts d_v"], log_sum_exps: Float[np.ndarray, "*#batch parts"]
) -> tuple[Float[np.ndarray, "*batch d_v"], Float[np.ndarray, "*batch"]]:
    """o = Σ exp(ℓ_p − ℓ) o_p and ℓ = log Σ exp ℓ_p: the weights are the softmax of the logarithms."""
    scores = log_sum_exps[..., None, :]
    with_keys = np.not_equal(scores, -np.inf)
    merged = pooled(softmax(scores, mask=with_keys), outputs, with_keys)[..., 0, :]
    return merged, np.broadcast_to(log_sum_exp(scores, mask=with_keys)[..., 0], merged.shape[:-1])


@defines(RotaryEmbedding[np.ndarray])
def rotary_embedding(
    x: Float[np.ndarray, "*#batch n d"],
    positions: Int[np.ndarray, "*#batch n"] | None = None,
    *,
    theta: float = 10000.0,
) -> Float[np.ndarray, "*batch n d"]:
    """Each pair (a, b) becomes (a cos tθ − b sin tθ, a sin tθ + b cos tθ) with θ = Θ^(−2i/d)."""
    *_, n, d = x.shape
    i = np.asarray(np.arange(d // 2), dtype=x.dtype, like=x)
    t = np.asarray(np.arange(n) if positions is None else positions, dtype=x.dtype, like=x)
    angle = t[..., None] * np.exp(-2 * i * np.log(x.dtype.type(theta)) / d)
    cosine, sine = np.cos(angle), np.sin(angle)
    if choice("rotary_pairs") == "halves":
        first, second = x[..., : d // 2], x[..., d // 2 :]
        turned: np.ndarray = np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
        return turned
    first, second = x[..., 0::2], x[..., 1::2]
    pairs = np.stack([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
    return np.reshape(pairs, (*pairs.shape[:-2], d))


@defines(AlibiSlopes[np.ndarray])
def alibi_slopes(heads: int) -> Float[np.ndarray, "{heads}"]:
    """m = 2^(−8(r + 1)/H) for the first H heads and 2^(−4(2r + 1)/H) for the others, H a power of two."""
    below = 1 << (heads.bit_length() - 1)
    first, others = counted(below), counted(heads - below)
    slopes: np.ndarray = np.concatenate(
        [halved(8 * (first + 1) / below, first), halved(4 * (2 * others + 1) / below, others)]
    )
    return slopes


def halved(exponent: np.ndarray, like: np.ndarray) -> np.ndarray:
    """2^(−exponent), in the dtype of another array."""
    powers: np.ndarray = np.exp(-exponent * np.log(like.dtype.type(2)))
    return powers


@defines(SlidingWindowMask[np.ndarray])
def sliding_window_mask(
    n: int, m: int, *, window: tuple[int | None, int | None] | None = None
) -> Bool[np.ndarray, "{n} {m}"]:
    """Mᵢⱼ = [i − l ≤ j ≤ i + r]."""
    near = within(np.arange(m) - np.arange(n)[:, None], window)
    return np.ones((n, m), bool) if near is None else near


def within(beyond: np.ndarray, window: Window) -> np.ndarray | None:
    """Mask of the keys in a window (l, r), from their distance beyond the diagonal; None without a window."""
    if window is None:
        return None
    left, right = window
    far = np.abs(beyond).max(initial=0)
    near: np.ndarray = (beyond >= (-far if left is None else -left)) & (beyond <= (far if right is None else right))
    return near


@defines(DocumentMask[np.ndarray])
def document_mask(
    query_documents: Int[np.ndarray, "*#batch n"], key_documents: Int[np.ndarray, "*#batch m"]
) -> Bool[np.ndarray, "*batch n m"]:
    """Mᵢⱼ = [Dᵢ = Eⱼ]."""
    same: np.ndarray = query_documents[..., :, None] == key_documents[..., None, :]
    return same


@defines(Dropout[np.ndarray])
def dropout(
    weights: Float[np.ndarray, "*#batch n m"],
    *,
    keep: Bool[np.ndarray, "*#batch #n #m"] | None = None,
    rate: float = 0.0,
) -> Float[np.ndarray, "*batch n m"]:
    """yᵢⱼ = αᵢⱼ/(1 − p) where kept, and 0 elsewhere."""
    kept: np.ndarray = weights / (1 - rate)
    return kept if keep is None else np.where(keep, kept, 0)
