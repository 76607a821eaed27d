"""Mutants that confuse batch dimensions if arrays share only some of them.

Each function is one method of ``Library``, the correct backend, with a defect; ``replaces`` names it, and
``Library.method(correct, …)`` calls the original. Each law in ``breaks`` must detect the defect alone. ``prepare``
converts the arguments.
"""

from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Library
from attnspec.conformance.mutants.registry import mutant
from attnspec.conformance.mutants.roles import Arguments, at, changed, key, mask_of, query
from attnspec.spec.attention import AdditiveAttention, DotProductAttention, ScaledDotProductAttention
from attnspec.spec.contract.operation import Operation
from attnspec.spec.scoring import DotScores


@mutant(
    "heads of keys shared by the batch reversed",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention, DotScores),
    breaks=("operation.broadcast-equals-repeat",),
    source="keys of a common prefix (1, heads, m, d) beside queries (batch, heads, n, d), read by the wrong stride",
)
def prefix_reversed(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """Keys (1, heads, m, d) shared by a batch are read with reversed heads."""
    prepared = Library.prepare(correct, operation, arguments)
    q, k = (at(prepared, path) for path in (query(operation), key(operation)))
    keys_are_shared = q.ndim == k.ndim == 4 and len(k) == 1 < len(q) and k.shape[1] == q.shape[1]
    return changed(prepared, {key(operation): k[:, ::-1]}) if keys_are_shared else prepared


@mutant(
    "keys of heads read as keys of batch elements",
    replaces="prepare",
    operations=(ScaledDotProductAttention, AdditiveAttention, DotScores),
    breaks=("operation.broadcast-equals-repeat",),
    source="keys (heads, m, d) beside queries (batch, heads, n, d), unsqueezed behind and not in front",
)
def heads_for_elements(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """If batch = heads, keys (heads, m, d) are read as (batch, 1, m, d)."""
    prepared = Library.prepare(correct, operation, arguments)
    q, k = (at(prepared, path) for path in (query(operation), key(operation)))
    fits = q.ndim == 4 and k.ndim == 3 and len(k) == len(q) > 1
    return changed(prepared, {key(operation): k[:, None]}) if fits else prepared


@mutant(
    "masks of heads read as masks of batch elements",
    replaces="prepare",
    operations=(ScaledDotProductAttention, DotProductAttention, AdditiveAttention),
    breaks=("operation.broadcast-equals-repeat",),
    source="huggingface/transformers: masks (batch, n, m) as mask[:, None], for those of (heads, n, m)",
)
def mask_unsqueezed(correct: Library, operation: Operation, arguments: Arguments) -> dict[str, Any]:
    """If batch = heads, masks (heads, n, m) are read as (batch, 1, n, m)."""
    prepared = Library.prepare(correct, operation, arguments)
    mask, q = mask_of(operation, prepared), at(prepared, query(operation))
    if operation.mask is None or mask is None or q.ndim != 4 or mask.ndim != 3 or not 1 < len(mask) == len(q):
        return prepared
    return changed(prepared, {operation.mask.path: np.expand_dims(mask, 1)})
