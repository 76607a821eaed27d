"""Grouped-query attention by ``torch.nn.attention.flex_attention``, with log Σ exp and gradients.

On CUDA it is compiled once for each set of options: scores are never in memory, and blocks of 128 queries and keys
without a visible pair are skipped. There is no fallback: where PyTorch cannot compile, it raises. On the CPU, where
this path must be requested, the same conditions and scores run uncompiled. Numbers of a call are tensors, so that other
values need no new kernel.
"""

from collections.abc import Callable
from functools import lru_cache
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attnspec.backends.pytorch.kernels.dot.batches import padded_features
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.private import FLEX_WITHOUT_COMPILER

Condition = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of b, h, i and j: query i of head h in batch element b sees key j."""

Offset = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of b, i and j: position of key j minus that of query i, in batch element b."""

Scores = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of the scaled product, b, h, i and j that returns the score."""

NARROWEST = 16
"""Least number of features of the compiled kernels; added zeros change nothing."""

FARTHEST = 2**40
"""Limit of windows, beyond any sequence; a larger number could overflow when a position is added."""

_switching = RLock()
"""Lock, because PyTorch's switch `FLEX_WITHOUT_COMPILER` applies to all threads."""

MOST_KERNELS = 1_000
"""Most kernels to compile, over sets of options, layouts and numbers of heads."""


def attend(query: Tensor, key: Tensor, value: Tensor, condition: Condition | None, scoring: Scoring,
           ahead: Offset, by_element: bool = True) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (b, heads, n, d_v) and log Σ exp (b, heads, n); the latter in the accumulation dtype.

    query (b, heads, n, d), key (b, heads_k, m, d), value (b, heads_k, m, d_v); bias, slopes and ``ahead`` as in
    `scores`. The condition depends on the batch element unless ``by_element`` is false.
    """
    if not _is_for_a_compiler(query):
        return _uncompiled(query, key, value, condition, scoring, ahead)
    attention, make_blocks = _compiled()
    (b, _, n, d), (m, d_v) = query.shape, value.shape[-2:]
    blocks = None
    with _recompile_limit():
        if condition is not None:
            blocks = make_blocks(condition, b if by_element else None, None, n, m, query.device)
        output, aux = attention(
            *(padded_features(x, NARROWEST) for x in (query, key, value)), scores(scoring, ahead, query.device), blocks,
            d**-0.5 if scoring.scale is None else float(scoring.scale),
            True,  # enable_gqa
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
    return output[..., :d_v], aux.lse


def _uncompiled(
    query: Tensor, key: Tensor, value: Tensor, condition: Condition | None, scoring: Scoring, ahead: Offset
) -> tuple[Tensor, Tensor]:
    """Run uncompiled by PyTorch's own switch, widened, so that products are not rounded.

    The condition is part of the scores: a block mask would have 128 queries and 128 keys per batch element.
    """
    score = scores(scoring, ahead, query.device)

    def of_pair(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if score is None else score(s, b, h, i, j)
        return s if condition is None else torch.where(condition(b, h, i, j), s, -torch.inf)

    wide = [upcast(x if torch.is_grad_enabled() else x.detach()) for x in (query, key, value)]
    with _switching, patch(FLEX_WITHOUT_COMPILER, True):
        output, aux = flex_attention(
            wide[0], wide[1], wide[2], of_pair, scale=scoring.scale, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
    assert aux.lse is not None
    return output.to(query.dtype), aux.lse


def from_diagonal(offsets: Tensor | None) -> Offset:
    """Position of key j minus that of query i, which ``offsets`` (b,) move."""

    def ahead(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j - i if offsets is None else j - i - offsets[b]

    return ahead


def in_sequence(query_positions: Tensor, key_positions: Tensor) -> Offset:
    """Position of key j minus that of query i, each in its packed sequence."""

    def ahead(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return key_positions[j] - query_positions[i]

    return ahead


def conditions(visible: Visible, device: torch.device) -> Condition | None:
    """``visible`` as one condition, with mask (b, n, m), lengths and offsets (b,); None if always true."""
    mask, left, right, lengths, offsets = visible
    if all(x is None for x in (mask, left, right, lengths)):
        return None
    behind_most, ahead_most = _window_limit(left, device), _window_limit(right, device)
    offset = from_diagonal(offsets)

    def holds(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = j >= 0
        ahead = offset(b, i, j)
        if mask is not None:
            allowed = allowed & mask[b, i, j]
        if behind_most is not None:
            allowed = allowed & (ahead >= -behind_most)
        if ahead_most is not None:
            allowed = allowed & (ahead <= ahead_most)
        return allowed if lengths is None else allowed & (j < lengths[b])

    return holds


def in_sequences(queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor], left: int | None,
                 right: int | None) -> Condition:  # fmt: skip
    """Condition: same packed sequence and within its window; arguments are (sequence, position in it)."""
    (query_sequence, query_position), (key_sequence, key_position) = queries, keys
    behind_most, ahead_most = _window_limit(left, query_position.device), _window_limit(right, query_position.device)
    offset = in_sequence(query_position, key_position)

    def holds(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = query_sequence[i] == key_sequence[j]
        ahead = offset(b, i, j)
        if behind_most is not None:
            allowed = allowed & (ahead >= -behind_most)
        return allowed if ahead_most is None else allowed & (ahead <= ahead_most)

    return holds


def scores(scoring: Scoring, ahead: Offset, device: torch.device) -> Scores | None:
    """Cap, slopes (heads,) and bias (b, heads, n, m) as one function; None if all are None."""
    softcap, bias, slopes = scoring.softcap, scoring.bias, scoring.slopes
    if all(x is None for x in (softcap, bias, slopes)):
        return None
    cap = None if softcap is None else torch.full((), softcap, dtype=torch.float32, device=device)
    slope = None if slopes is None else upcast(slopes)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias[b, h, i, j]
        return s if slope is None else s - slope[h] * ahead(b, i, j).abs()

    return score


def _window_limit(number: int | None, device: torch.device) -> Tensor | None:
    return None if number is None else torch.full((), min(number, FARTHEST), device=device)


def _is_for_a_compiler(x: Tensor) -> bool:
    return x.is_cuda


@lru_cache(maxsize=1)
def _compiled() -> tuple[Callable[..., Any], Callable[..., BlockMask]]:
    return (
        torch.compile(flex_attention, dynamic=True, fullgraph=True),
        torch.compile(create_block_mask, dynamic=True, fullgraph=True),
    )


def _recompile_limit() -> Any:
    """Context in which PyTorch compiles up to `MOST_KERNELS` kinds of calls, not 8."""
    # PyTorch adds `patch` to the module at import, unseen by mypy
    return torch.compiler.config.patch(recompile_limit=MOST_KERNELS)  # type: ignore[attr-defined]
