"""Attention of packed sequences on CUDA, by ``torch.nn.attention.varlen`` or flex_attention.

``varlen`` is the flash kernel of concatenated sequences. It has no cap, slopes or sinks and no gradient of log Σ exp,
it aligns the last query with the last key, and its output for queries without keys is unspecified. ``flex`` has no such
limits, and skips pairs of blocks that share no sequence. Calls of the path ``plain``, and all on the CPU, go to
`groups`.
"""

from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from itertools import pairwise

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import cuda_groups, groups
from attnspec.backends.pytorch.kernels.dot.batches import merge_batch, padded_features
from attnspec.backends.pytorch.kernels.dot.cuda_fused import MOST_BLOCKS
from attnspec.backends.pytorch.kernels.dot.cuda_groups import Call, takes_flash
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible, locate
from attnspec.backends.pytorch.runtime.accumulation import finite
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.forcing import forced
from attnspec.backends.pytorch.runtime.transforms import being_captured, fused_allowed

Ends = tuple[list[int], list[int]]
"""For queries and for keys: the start of each sequence, then the end of the last."""


def path_of(call: Call, ends: Ends, visible: Visible, scoring: Scoring, varlen: bool = True,
          forced_path: str | None = None) -> str:  # fmt: skip
    """Return ``varlen``, ``flex`` or ``plain``; the argument ``varlen``: its kernel runs on the device."""
    path = cuda_groups.path_of(call, visible, scoring, False, forced_path)  # False: not by ``enable_gqa``
    if path != "flex" or forced_path == "flex" or not (varlen and takes_flash(call, scoring)):
        return path
    counts = [[b - a for a, b in pairwise(x)] for x in ends]
    with_keys = all(keys or not queries for queries, keys in zip(*counts, strict=True))
    aligned = (visible.left is None and visible.right is None) or counts[0] == counts[1]
    fits = call.entries * len(counts[0]) <= MOST_BLOCKS
    return "varlen" if with_keys and aligned and fits else "flex"


def path_for(query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor,
             visible: Visible = groups.ALL_PAIRS, scoring: Scoring = groups.DEFAULT_SCORING) -> str:  # fmt: skip
    """Path of packed sequences; ``visible`` has at most a window.

    On CUDA, lengths are read where ``varlen`` may serve the call: that waits for the device, and never happens while a
    graph is captured.
    """
    path = groups.path_for(query, key, value, Visible(), scoring)
    if path not in ("enable_gqa", "flex"):
        return path
    if query.is_cpu and not (finite(key) and finite(value)):
        return "plain"
    call = cuda_groups.call_of(query, key, value, visible, scoring)
    varlen = query.is_cuda and takes_flash(call, scoring) and fused_allowed() and has_varlen()
    if not varlen or being_captured(query):
        return cuda_groups.path_of(call, visible, scoring, False, forced())
    return path_of(call, (query_ends.tolist(), key_ends.tolist()), visible, scoring, varlen, forced())


@lru_cache(maxsize=1)
def has_varlen() -> bool:
    """Return whether this PyTorch has the kernel with grouped heads, windows and log Σ exp."""
    if find_spec("torch.nn.attention.varlen") is None:
        return False
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa", "window_size", "return_aux", "scale"} <= set(signature(varlen_attn).parameters)


def attend(path: str, query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor,
           visible: Visible, scoring: Scoring) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (*batch, heads, n, d_v) and log Σ exp (*batch, heads, n); ``path`` is ``varlen`` or ``flex``."""
    batch = broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    query, key, value = merge_batch(query, batch), merge_batch(key, batch), merge_batch(value, batch)
    if path == "varlen":
        window = visible.left, visible.right
        output, logarithms = by_varlen(query, key, value, query_ends, key_ends, window, scoring.scale)
    else:
        from attnspec.backends.pytorch.kernels.dot import flex

        of_query, of_key = locate(query_ends, query.shape[-2]), locate(key_ends, key.shape[-2])
        condition = flex.in_sequences(of_query, of_key, visible.left, visible.right)
        ahead = flex.in_sequence(of_query[1], of_key[1])
        output, logarithms = flex.attend(query, key, value, condition, scoring, ahead, by_element=False)
    return output.reshape(*batch, *output.shape[1:]), logarithms.reshape(*batch, *logarithms.shape[1:])


def by_varlen(query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor,
              window: tuple[int | None, int | None], scale: float | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output and log Σ exp by ``varlen``; its layout (positions, heads, features) packs the batch too."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    (b, heads, n, d), d_v = query.shape, value.shape[-1]
    width = -(-max(d, d_v) // 8) * 8
    queries, keys, values = (padded_features(x, width).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    left, right = (-1 if x is None else min(x, n) for x in window)
    results = varlen_attn(
        queries, keys, values, _repeated_ends(query_ends, b), _repeated_ends(key_ends, b), _longest(query_ends),
        _longest(key_ends), return_aux=AuxRequest(lse=True), scale=d**-0.5 if scale is None else float(scale),
        window_size=(left, right), enable_gqa=True,
    )  # fmt: skip
    output, logarithms = results
    logarithms = logarithms.reshape(heads, b, n).transpose(0, 1)
    return output[..., :d_v].unflatten(0, (b, n)).transpose(1, 2), logarithms


def _repeated_ends(ends: Tensor, b: int) -> Tensor:
    """Ends of the sequences of all ``b`` batch elements, concatenated."""
    ends = ends.to(torch.int32)
    starts = torch.arange(b, dtype=torch.int32, device=ends.device)[:, None] * ends[-1]
    return torch.cat(((starts + ends[:-1]).flatten(), ends[-1:] * b))


def _longest(ends: Tensor) -> int:
    return int(ends.diff().max())
