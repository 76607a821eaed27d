"""softmax(scale·QKᵀ)V of bfloat16, some scores at a time, where the processor multiplies pairs of bfloat16.

Scores are float32, as they are summed; weights and their gradients are rounded to bfloat16 before they are multiplied.
As many are computed at a time as stay in the cache. Few are kept for the backward, which computes more of them again.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE
from attnspec.backends.pytorch.kernels.dot.call import four_dimensional
from attnspec.backends.pytorch.runtime.accumulation import finite
from attnspec.backends.pytorch.runtime.direct_apply import direct
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.kept_memory import kept
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

CHUNK = 2**19
"""Scores that are computed at a time: 2 MiB of float32."""

KEPT = 2**21
"""Weights that are kept for the backward."""

MOST = 2**25
"""Scores of an entry whose weights and gradients, in bfloat16, the backward holds at a time."""


def serves(n: int, m: int, d: int, d_v: int, dtype: torch.dtype) -> bool:
    """Whether products of these sizes are multiplied in pairs, and NaN in a query stays there."""
    if not HAS_LLVMLITE or dtype is not torch.bfloat16 or d % 2 or d_v % 2:
        return False
    from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16
    from attnspec.backends.pytorch.kernels.llvm.pairs import stay_in_rows

    return multiplies_bfloat16() and all(rows == 1 or stay_in_rows(rows) for rows in (n, m))


def attend(scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output for query (entries, n, d), key (entries, m, d) and value (entries, m, d_v) in memory."""
    if recorded(query, key, value):
        output: Tensor = _apply(query, key, value, scale)
        return output
    return forward(scale, query, key, value)[0]


def chunks(entries: int, n: int, m: int) -> Iterator[tuple[slice, list[slice]]]:
    """Entries that are computed together, and for them the rows that are."""
    together = max(1, CHUNK // (n * m))
    step = n if n * m <= CHUNK else max(1, CHUNK // m)
    rows = [slice(i, min(i + step, n)) for i in range(0, n, step)]
    for i in range(0, entries, together):
        yield slice(i, min(i + together, entries)), rows


def _memory(kind: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """Memory of this thread, with what is left of other calls."""
    found = kept(f"paired_formula {kind}", prod(shape), dtype)
    return torch.empty(shape, dtype=dtype) if found is None else found[1].view(shape)


def _pooled(weights: Tensor, value: Tensor, output: Tensor | None = None) -> Tensor:
    """Weights times values; those of one key are 1, or NaN."""
    if weights.shape[2] == 1 and finite(weights):
        whole = value.expand(*weights.shape[:2], value.shape[2])
        return whole.contiguous() if output is None else output.copy_(whole)
    return _times(weights, value, output)


def _times(left: Tensor, right: Tensor, output: Tensor | None = None) -> Tensor:
    """The products of a batch of matrices; of one column and one row no sums, but products of numbers."""
    return torch.mul(left, right, out=output) if right.shape[1] == 1 else torch.bmm(left, right, out=output)


def forward(
    scale: float, query: Tensor, key: Tensor, value: Tensor, *, logarithms: bool = False, saves: bool = False
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Output, log Σ exp (entries, n) if it is wanted, and, where it ``saves`` them and they are few, weights before
    their rounding, (entries, n, m), and after it, as the backward reads them."""
    from attnspec.backends.pytorch.kernels.dot import paired_rows, weight_rows
    from attnspec.backends.pytorch.kernels.llvm.pairs import columns_of_pairs, times_pairs

    (entries, n, _), m = query.shape, key.shape[1]
    if paired_rows.serves(m):
        return paired_rows.forward(scale, query, key, value, logarithms, saves and entries * n * m <= KEPT)
    found = query.new_empty(entries, n) if logarithms else None
    keys = columns_of_pairs(key)
    if saves and entries * n * m <= KEPT:
        scores = times_pairs(query, keys)
        rounded = torch.empty_like(scores, dtype=torch.bfloat16)
        weight_rows.weights(scale, scores, rounded, kept=True, logarithms=found)
        return _pooled(rounded, value), found, (scores, rounded)
    output = value.new_empty(entries, n, value.shape[-1])
    for some, parts in chunks(entries, n, m):
        for rows in parts:
            part = query[some, rows]
            shape = *part.shape[:2], m
            scores = times_pairs(part, keys.of(some), _memory("scores", torch.float32, *shape))
            rounded = _memory("weights", torch.bfloat16, *shape)
            own = None if found is None else found[some, rows]
            weight_rows.weights(scale, scores, rounded, kept=False, logarithms=own)
            _pooled(rounded, value[some], output[some, rows])
    return output, found, None


ONCE = no_second_derivative(
    "scaled dot-product attention", "plain of bfloat16", "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
)


class PairedAttention(torch.autograd.Function):
    """The output, with first derivatives."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The backward reads the weights before and after their rounding, or computes them again."""
        output, _, weights = forward(scale, query, key, value, saves=True)
        ctx.save_for_backward(query, key, value, output, *(weights or ()))
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        query, key, value, output, *weights = ctx.saved_tensors

        def gradients(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.scale, gradient, tensors, weights, ctx.needs_input_grad[:3])

        return *first_order(ONCE, gradients, gradient, query, key, value, output), None


_apply = direct(PairedAttention)


def _gradients(
    scale: float, gradient: Tensor, tensors: tuple[Tensor, ...], weights: Sequence[Tensor],
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    query, key, value, output = tensors
    gradient = gradient.resolve_neg()
    if intercepted() or not all(map(addressable, (gradient, *tensors, *weights))):
        from attnspec.backends.pytorch.kernels.dot.cpu import gradients_by_pytorch

        four = four_dimensional(query, key, value, None, False, scale)[0]
        found = gradients_by_pytorch(four, gradient.unsqueeze(1), output.unsqueeze(1), wanted)
        return tuple(None if x is None else x.squeeze(1) for x in found)
    return products(scale, gradient, (query, key, value), weights, wanted)


def products(
    scale: float, gradient: Tensor, operands: tuple[Tensor, Tensor, Tensor], weights: Sequence[Tensor],
    wanted: tuple[bool, bool, bool], of_logarithms: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands from those of the output and of log Σ exp (entries, n).

    ``weights`` are what `forward` has saved of them, or empty.
    """
    from attnspec.backends.pytorch.kernels.dot import paired_rows, weight_rows
    from attnspec.backends.pytorch.kernels.llvm.pairs import columns_of_pairs, times_pairs

    query, key, value = operands
    # hooks on saved tensors may have changed their strides
    gradient, weights = gradient.contiguous(), [x.contiguous() for x in weights]
    weights = weights if _as_saved(weights, query.shape[1], key.shape[1]) else []
    if paired_rows.serves(key.shape[1]):
        return paired_rows.gradients(scale, gradient, operands, weights, wanted, of_logarithms)
    (entries, n, _), m, bfloat16 = query.shape, key.shape[1], torch.bfloat16
    of_rows = None if of_logarithms is None else of_logarithms.contiguous()
    by_query, by_key, by_value = (x.new_empty(x.shape) if w else None for x, w in zip(operands, wanted, strict=True))
    values = columns_of_pairs(value)
    keys = None if weights else columns_of_pairs(key)
    whole = [(slice(0, entries), [slice(0, n)])]
    for some, parts in whole if weights else chunks(entries, n, m):
        shape = len(range(*some.indices(entries))), n, m
        by_scores = _memory("gradients", bfloat16, *shape)
        rounded = weights[1] if weights else _memory("weights", bfloat16, *shape)
        for rows in parts:
            part, own = query[some, rows], None if of_rows is None else of_rows[some, rows]
            sizes = *part.shape[:2], m
            if keys is None:
                before = weights[0]
            else:
                before = times_pairs(part, keys.of(some), _memory("scores", torch.float32, *sizes))
                weight_rows.weights(scale, before, rounded[:, rows], kept=True)
            by_weights = _memory("gradients of weights", torch.float32, *sizes)
            times_pairs(gradient[some, rows], values.of(some), by_weights)
            weight_rows.gradients(scale, before, by_weights, own, by_scores[:, rows])
            if by_query is not None:
                _times(by_scores[:, rows], key[some], by_query[some, rows])
        if by_key is not None:
            _times(by_scores.mT, query[some], by_key[some])
        if by_value is not None:
            _times(rounded.mT, gradient[some], by_value[some])
    return by_query, by_key, by_value


def _as_saved(weights: Sequence[Tensor], n: int, m: int) -> bool:
    """Whether these weights are those of n queries and m keys as they were saved, also where hooks have had them."""
    from attnspec.backends.pytorch.kernels.dot import paired_rows

    rounded = paired_rows.saved_pairs(n, m) if paired_rows.serves(m) else (n, m)
    return [(x.dtype, x.shape[1:]) for x in weights] == [(torch.float32, (n, m)), (torch.bfloat16, rounded)]
