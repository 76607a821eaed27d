"""Causal attention on one CPU thread, row block by row block: keys right of the diagonal block are never touched.

PyTorch's fused kernel skips excluded keys in blocks of 512, so that up to 512 keys it skips none. Weights are computed
again in the backward; nothing of size n·m is kept.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 128


class CausalRows(torch.autograd.Function):
    """softmax(scale·QKᵀ)V over j ≤ i for (N, n, d), (N, m, d), (N, m, d_v), m ≤ n."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The pooled values."""
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        scores = query.new_empty(ROWS * key.shape[1])
        for head, rows, keys in _blocks(query, key):
            weights = _weights(scores, query[head, rows], key[head, keys], scale, rows.start)
            torch.bmm(weights, value[head, keys], out=output[head, rows])
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what the backward reads."""
        query, key, value, ctx.scale = inputs
        ctx.save_for_backward(query, key, value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        query, key, value = ctx.saved_tensors
        by_query = torch.empty_like(query)
        by_key, by_value = torch.zeros_like(key), torch.zeros_like(value)
        scores, memory = (query.new_empty(ROWS * key.shape[1]) for _ in range(2))
        for head, rows, keys in _blocks(query, key):
            q, k, outer = query[head, rows], key[head, keys], gradient[head, rows]
            weights = _weights(scores, q, k, ctx.scale, rows.start)
            _add(by_value[head, keys], weights.mT, outer, 1.0)
            by_weight = memory[: weights.numel()].view(weights.shape)
            torch.bmm(outer, value[head, keys].mT, out=by_weight)
            by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype, grad_input=by_weight)
            torch.baddbmm(by_query[head, rows], by_score, k, beta=0, alpha=ctx.scale, out=by_query[head, rows])
            _add(by_key[head, keys], by_score.mT, q, ctx.scale)
        return by_query, by_key, by_value, None


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice, slice]]:
    """One head, some rows, and the keys that the last of them attends."""
    n, m = query.shape[1], key.shape[1]
    for head in range(len(query)):
        for start in range(0, n, ROWS):
            stop = min(n, start + ROWS)
            yield slice(head, head + 1), slice(start, stop), slice(0, min(m, stop))


def _weights(memory: Tensor, query: Tensor, key: Tensor, scale: float, first: int) -> Tensor:
    """The weights of rows from ``first`` on, in ``memory``."""
    rows, keys = query.shape[1], key.shape[1]
    scores = memory[: rows * keys].view(1, rows, keys)
    torch.baddbmm(scores, query, key.mT, beta=0, alpha=scale, out=scores)
    if keys > first:
        scores[:, :, first:] += _right_of_diagonal(scores.dtype)[:rows, : keys - first]
    return torch.softmax(scores, -1, out=scores)


@lru_cache(maxsize=2)
def _right_of_diagonal(dtype: torch.dtype) -> Tensor:
    return torch.full((ROWS, ROWS), -torch.inf, dtype=dtype).triu(1)


def _add(total: Tensor, left: Tensor, right: Tensor, factor: float) -> None:
    torch.baddbmm(total, left, right, alpha=factor, out=total)
