"""Attention of sharded queries to sharded keys. Every rank of a group calls a function with its shards.

``query``, ``key`` and ``value`` have the rows of this rank; all other arguments are whole, and the same on all ranks.
Results are those of the operation of the same name, for this rank's queries. Gradients of whole arguments are this
rank's part; their sum over the ranks is the gradient. If one rank's call raises, or differs, all ranks raise.
"""

from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.bases.shapes import Check
from attnspec.backends.pytorch.distributed.blocks import Part, Tensors
from attnspec.backends.pytorch.distributed.collectives import Group
from attnspec.backends.pytorch.distributed.methods import Call, Results, in_groups, on_meta
from attnspec.backends.pytorch.distributed.shards import Shards, rows
from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels import grouped_query_attention as attention
from attnspec.backends.pytorch.kernels.additive import plain
from attnspec.backends.pytorch.kernels.visible import Window, conjunction, locate, within_window
from attnspec.backends.pytorch.runtime import ranges
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.autocast import follows_autocast
from attnspec.backends.pytorch.scoring import projections

__all__ = [
    "additive_attention",
    "grouped_query_attention",
    "scaled_dot_product_attention",
    "variable_length_attention",
]

_grouped = Check("grouped_query_attention")
_packed = Check("variable_length_attention")
_additive = Check("additive_attention")

EVERYTHING = (None, None)
"""Window without sides."""

MOST_PAIRS = 2**26
"""Size up to which a mask of documents is held at once."""


@follows_autocast
def grouped_query_attention(
    query: Tensor, key: Tensor, value: Tensor, *, query_shards: Shards, key_shards: Shards | None = None,
    method: str = "ring", group: Group = None, mask: Tensor | None = None, causal: bool = False,
    scale: float | None = None, window: Window = None, softcap: float | None = None, bias: Tensor | None = None,
    slopes: Tensor | None = None, sinks: Tensor | None = None, key_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp of this rank's queries (*batch, heads, n, d)."""
    options = mask, scale, window, softcap, bias, slopes, sinks, key_lengths

    def check(n: int, m: int, *tensors: Any) -> tuple[int, ...]:
        shape = _grouped(*tensors, *map(on_meta, options), causal=causal)
        ranges.refuse_scale_and_cap("grouped_query_attention", scale, softcap)
        ranges.refuse_out_of_range("grouped_query_attention", "key_lengths", key_lengths, m)
        return shape

    call = Call("grouped_query_attention", query_shards, key_shards or query_shards, method, group)
    shape = call.agree(check, (query, key, value), *options, causal)
    share = query.shape[-3] // max(key.shape[-3], 1)
    on_scores = {name: x for name, x in (("bias", bias), ("slopes", slopes)) if x is not None}

    def others(heads: slice) -> list[Tensor]:
        some = in_groups(heads, share)
        axes = {"bias": -3, "slopes": -1}
        return [
            x if x.shape[axes[name]] == 1 else x.movedim(axes[name], 0)[some].movedim(0, axes[name])
            for name, x in on_scores.items()
        ]

    def attend(queries: Tensors, keys: Tensors, whole: Tensors, i: range, j: range) -> Results | None:
        sides = _sides(causal, window, i, j)
        present, bias = dict(zip(on_scores, whole, strict=True)), None
        if "bias" in present:
            bias = _block(present["bias"], i, j)
        if "slopes" in present:
            linear = _linear_bias(present["slopes"], _relative(i, j, query.device))
            bias = linear if bias is None else bias + linear
        aligned = i.start == j.start  # the operation counts the same distances
        pairs = None if aligned or sides == EVERYTHING else within_window(_relative(i, j, query.device), sides)
        lengths = None if key_lengths is None else (key_lengths.long() - j.start).clamp(0, len(j))
        output, logarithms = attention(
            *queries, *keys, mask=conjunction(_block(mask, i, j), pairs), scale=scale, softcap=softcap, bias=bias,
            window=sides if aligned and sides != EVERYTHING else None, key_lengths=lengths,
        )  # fmt: skip
        assert logarithms is not None
        return output, logarithms

    def finish(results: Results, heads: slice) -> Results:
        return _finished(results, sinks, in_groups(heads, share), query.dtype)

    part = Part(attend, partial(_cut, causal, window), keeps=True)
    return call.compute(part, shape, [query], [key, value], others, finish)


@follows_autocast
def variable_length_attention(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, *, query_shards: Shards,
    key_shards: Shards | None = None, method: str = "ring", group: Group = None, causal: bool = False,
    scale: float | None = None, window: Window = None, softcap: float | None = None, slopes: Tensor | None = None,
    sinks: Tensor | None = None, key_lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp of this rank's queries, each within its document. Shards may cut documents anywhere."""
    options = query_ends, key_ends, scale, window, softcap, slopes, sinks, key_lengths

    def check(n: int, m: int, *tensors: Any) -> tuple[tuple[int, ...], int, int]:
        shape = _packed(*tensors, *map(on_meta, options), causal=causal)
        ranges.refuse_scale_and_cap("variable_length_attention", scale, softcap)
        ranges.refuse_decreasing_ends("variable_length_attention", "query_ends", query_ends, n)
        ranges.refuse_decreasing_ends("variable_length_attention", "key_ends", key_ends, m)
        return shape, n, m

    call = Call("variable_length_attention", query_shards, key_shards or query_shards, method, group)
    shape, n, m = call.agree(check, (query, key, value), *options, causal)
    (query_document, query_at), (key_document, key_at) = locate(query_ends, n), locate(key_ends, m)
    left, right = window or EVERYTHING
    share = query.shape[-3] // max(key.shape[-3], 1)

    def others(heads: slice) -> list[Tensor]:
        return [] if slopes is None else [slopes[in_groups(heads, share)]]

    def attend(queries: Tensors, keys: Tensors, whole: Tensors, i: range, j: range) -> Results | None:
        of, to = slice(i.start, i.stop), slice(j.start, j.stop)
        distances = key_at[to] - query_at[of, None]
        near = within_window(distances, (left, 0 if causal else right))
        allowed = near & (key_document[to] == query_document[of, None])
        allowed = allowed if key_lengths is None else allowed & (key_at < key_lengths[key_document])[to]
        if not allowed.any():
            return None
        bias = _linear_bias(whole[0], distances) if whole else None
        output, logarithms = attention(*queries, *keys, mask=allowed, scale=scale, softcap=softcap, bias=bias)
        assert logarithms is not None
        return output, logarithms

    def finish(results: Results, heads: slice) -> Results:
        return _finished(results, sinks, in_groups(heads, share), query.dtype)

    part, most_rows = Part(attend, lambda i, j: [j], keeps=True), max(1, MOST_PAIRS // max(1, m))
    return call.compute(part, shape, [query], [key, value], others, finish, most_rows)


@follows_autocast
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *, query_shards: Shards, key_shards: Shards | None = None,
    method: str = "ring", group: Group = None, mask: Tensor | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """Output of this rank's queries (*batch, n, d), which are one head: several share by heads if grouped."""
    query, key, value = (x.unsqueeze(-3) if isinstance(x, Tensor) and x.dim() > 1 else x for x in (query, key, value))
    shards: dict[str, Any] = {"query_shards": query_shards, "key_shards": key_shards, "method": method, "group": group}
    return grouped_query_attention(query, key, value, mask=mask, causal=causal, **shards)[0].squeeze(-3)


@follows_autocast
def additive_attention(
    query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, *, query_shards: Shards,
    key_shards: Shards | None = None, method: str = "ring", group: Group = None, mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """Output of this rank's queries (*batch, n, d_q), which are one head; keys are projected before they are sent."""
    options = w_q, w_k, w_v, mask

    def check(n: int, m: int, *tensors: Any) -> tuple[int, ...]:
        return _additive(*tensors, *map(on_meta, options), causal=causal)

    call = Call("additive_attention", query_shards, key_shards or query_shards, method, group)
    shape = call.agree(check, (query, key, value), *options, causal)

    def attend(queries: Tensors, keys: Tensors, whole: Tensors, i: range, j: range) -> Results | None:
        sides = _sides(causal, None, i, j)
        pairs = None if sides == EVERYTHING else within_window(_relative(i, j, query.device), sides)
        allowed = conjunction(_block(mask, i, j), pairs)
        allowed = None if allowed is None else allowed.unsqueeze(-3).expand(*allowed.shape[:-2], 1, len(i), len(j))
        scores = plain.masked_scores(queries[0], keys[0], whole[0], allowed)
        weights, logarithms = formula.softmax_and_logarithms(scores, allowed)
        output = formula.pooled(weights, keys[1], allowed)
        if allowed is not None:  # stops a NaN in the incoming gradient of a row without an attendable key
            output = output.masked_fill(~allowed.any(-1, keepdim=True), 0)
        return output, logarithms

    a, b = projections(query, key, w_q, w_k)
    block = (max if method == "ring" else sum)(map(rows, call.key_shards))
    most_rows = max(1, plain.CHUNK // max(1, prod(shape[:-2]) * block * w_v.shape[0]))
    output, _ = call.compute(
        Part(attend, partial(_cut, causal, None), keeps=False), (*shape[:-2], 1, *shape[-2:]), [a.unsqueeze(-3)],
        [b.unsqueeze(-3), upcast(value).unsqueeze(-3)], lambda heads: [upcast(w_v)], lambda results, heads: results,
        most_rows,
    )  # fmt: skip
    return output.squeeze(-3).to(query.dtype)


def _cut(causal: bool, window: Window, i: range, j: range) -> list[range]:
    """Runs of the keys that some query sees. Those at the positions of all queries need no mask, only a flag."""
    left, right = window or EVERYTHING
    right = 0 if causal else right
    if left is None and right is None:
        return [j]
    first = j.start if left is None else max(j.start, i.start - left)
    last = j.stop if right is None else min(j.stop, i.stop + right)
    edges = [first, *(x for x in (i.start, i.stop) if first < x < last), last]
    return [range(*run) for run in pairwise(edges) if run[0] < run[1]]


def _sides(causal: bool, window: Window, i: range, j: range) -> tuple[int | None, int | None]:
    """Sides of the window that exclude a pair of these queries and keys."""
    left, right = window or EVERYTHING
    right = 0 if causal else right
    nearest, furthest = j.start - (i.stop - 1), j.stop - 1 - i.start  # of key position minus query position
    return None if left is None or nearest >= -left else left, None if right is None or furthest <= right else right


def _linear_bias(slopes: Tensor, distances: Tensor) -> Tensor:
    """Penalty of every head for these distances (heads, n, m)."""
    return -slopes[:, None, None] * distances.abs()


def _finished(results: Results, sinks: Tensor | None, heads: slice, dtype: torch.dtype) -> Results:
    """Results with the sinks of some heads, rounded."""
    output, logarithms = results if sinks is None else formula.with_sinks(*results, sinks[heads])
    return output.to(dtype), logarithms.to(dtype)


def _relative(i: range, j: range, device: torch.device) -> Tensor:
    """Key position minus query position (n, m)."""
    return torch.arange(j.start, j.stop, device=device) - torch.arange(i.start, i.stop, device=device)[:, None]


def _block(x: Tensor | None, i: range, j: range) -> Tensor | None:
    """Rows and columns of these positions of a whole tensor (…, #n, #m)."""
    if x is None:
        return None
    of = slice(None) if x.shape[-2] == 1 else slice(i.start, i.stop)
    return x[..., of, slice(None) if x.shape[-1] == 1 else slice(j.start, j.stop)]
