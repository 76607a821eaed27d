"""Attention in groups of heads by ``torch.nn.attention.flex_attention``, with log Σ exp, forward and backward.

On CUDA it is compiled, once for each set of options: scores are never in memory, and blocks of 128 queries and keys
that see nothing of each other are skipped. It never goes back to what is not compiled: where PyTorch cannot compile, it
raises. On the CPU, where only who asks for this path takes it, the same conditions and scores run as they are written.
Numbers of a call are tensors, so that others need no new kernel.
"""

from collections.abc import Callable
from functools import lru_cache
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attnspec.backends.pytorch.kernels.dot.batches import features
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.private import FLEX_WITHOUT_COMPILER

Condition = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether query i of head h sees key j in an element b of the batch: of b, h, i and j."""

Scores = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""The score, from the scaled product and b, h, i and j."""

NARROWEST = 16
"""Features that the compiled kernels want at least; zeros are added, which change nothing."""

FARTHEST = 2**40
"""A window that is wider than any sequence, and whose borders can be added to positions."""

_switching = RLock()
"""PyTorch's switch is one for all threads."""

KINDS = 1_000
"""Kernels that may be built: for sets of options, layouts and numbers of heads."""


def attend(query: Tensor, key: Tensor, value: Tensor, condition: Condition | None, scoring: Scoring,
           by_element: bool = True) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (b, heads, n, d_v) and log Σ exp (b, heads, n), that in the dtype of sums.

    query (b, heads, n, d), key (b, heads_k, m, d), value (b, heads_k, m, d_v); bias and slopes as in `scores`. The
    condition depends on the element of the batch unless ``by_element`` is false.
    """
    if not _is_for_a_compiler(query):
        return _as_written(query, key, value, condition, scoring)
    attention, blocks_of = _compiled()
    (b, _, n, d), (m, d_v) = query.shape, value.shape[-2:]
    blocks = None
    with _kinds():
        if condition is not None:
            blocks = blocks_of(condition, b if by_element else None, None, n, m, query.device)
        output, aux = attention(
            *(features(x, NARROWEST) for x in (query, key, value)), scores(scoring, query.device), blocks,
            d**-0.5 if scoring.scale is None else float(scoring.scale), True, return_aux=AuxRequest(lse=True),
        )  # fmt: skip
    return output[..., :d_v], aux.lse


def _as_written(
    query: Tensor, key: Tensor, value: Tensor, condition: Condition | None, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Without a compiler, by PyTorch's own switch, in the dtype of sums: else products would be rounded as they are.

    The condition is one of the scores: a table of blocks would have 128 queries and 128 keys for each element.
    """
    score = scores(scoring, query.device)

    def of_pair(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = s if score is None else score(s, b, h, i, j)
        return s if condition is None else torch.where(condition(b, h, i, j), s, -torch.inf)

    wide = [widened(x if torch.is_grad_enabled() else x.detach()) for x in (query, key, value)]
    with _switching, patch(FLEX_WITHOUT_COMPILER, True):
        output, aux = flex_attention(
            wide[0], wide[1], wide[2], of_pair, scale=scoring.scale, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
    assert aux.lse is not None
    return output.to(query.dtype), aux.lse


def conditions(visible: Visible, device: torch.device) -> Condition | None:
    """All of them as one; its mask is (b, n, m), its lengths and offsets are (b,). None where every pair is visible."""
    mask, left, right, lengths, offsets = visible
    if all(x is None for x in (mask, left, right, lengths)):
        return None
    behind_most, ahead_most = _border(left, device), _border(right, device)

    def holds(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = j >= 0
        ahead = j - i if offsets is None else j - i - offsets[b]
        if mask is not None:
            found = found & mask[b, i, j]
        if behind_most is not None:
            found = found & (ahead >= -behind_most)
        if ahead_most is not None:
            found = found & (ahead <= ahead_most)
        return found if lengths is None else found & (j < lengths[b])

    return holds


def in_sequences(of_query: tuple[Tensor, Tensor], of_key: tuple[Tensor, Tensor], left: int | None,
                 right: int | None) -> Condition:  # fmt: skip
    """Whether both are in one packed sequence and in its window, from the sequence of each and the position in it."""
    (sequence, at), (of, where) = of_query, of_key
    behind_most, ahead_most = _border(left, at.device), _border(right, at.device)

    def holds(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = sequence[i] == of[j]
        ahead = where[j] - at[i]
        if behind_most is not None:
            found = found & (ahead >= -behind_most)
        return found if ahead_most is None else found & (ahead <= ahead_most)

    return holds


def scores(scoring: Scoring, device: torch.device) -> Scores | None:
    """Cap, slopes (heads,) and bias (b, heads, n, m) as one function; None where there is none of them."""
    softcap, bias, slopes = scoring.softcap, scoring.bias, scoring.slopes
    if all(x is None for x in (softcap, bias, slopes)):
        return None
    cap = None if softcap is None else torch.full((), softcap, dtype=torch.float32, device=device)
    steep = None if slopes is None else widened(slopes)

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if cap is not None:
            s = cap * torch.tanh(s / cap)
        if bias is not None:
            s = s + bias[b, h, i, j]
        return s if steep is None else s - steep[h] * (i - j).abs()

    return score


def _border(number: int | None, device: torch.device) -> Tensor | None:
    return None if number is None else torch.full((), min(number, FARTHEST), device=device)


def _is_for_a_compiler(x: Tensor) -> bool:
    return x.is_cuda


@lru_cache(maxsize=1)
def _compiled() -> tuple[Callable[..., Any], Callable[..., BlockMask]]:
    return (
        torch.compile(flex_attention, dynamic=True, fullgraph=True),
        torch.compile(create_block_mask, dynamic=True, fullgraph=True),
    )


def _kinds() -> Any:
    """PyTorch would refuse to compile more than 8 kinds of calls."""
    # `patch` is put into the module while that is imported
    return torch.compiler.config.patch(recompile_limit=KINDS)  # type: ignore[attr-defined]
