"""Attention in groups of heads of bfloat16 by the formula, where the processor multiplies pairs of bfloat16.

The queries of all heads that share keys are the rows of one matrix.
"""

from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import paired_formula
from attnspec.backends.pytorch.kernels.dot.group_gradients import gradients_by_formula
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted


def serves(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> bool:
    """Whether every query attends to all keys, with nothing but a scale, and products can be taken in pairs."""
    given = query, key, value
    if not all(x is None for x in (*visible, *scoring[1:])) or any(x.dim() != 4 for x in given):
        return False
    if any(x.dtype is not query.dtype or x.shape[0] != query.shape[0] or not x.numel() for x in given):
        return False
    m, d_v = value.shape[-2:]
    n = query.shape[1] // key.shape[1] * query.shape[2]
    return paired_formula.serves(n, m, query.shape[-1], d_v, query.dtype) and n * m <= paired_formula.MOST


def cost(query: Tensor, key: Tensor, value: Tensor) -> float | None:
    """Microseconds; None where nothing was measured."""
    from attnspec.backends.pytorch.kernels.dot.routes import microseconds

    (b, heads, n, d), (heads_k, m, d_v) = query.shape, value.shape[1:]
    sizes = b * heads_k, heads // heads_k * n, m, d, d_v, query.dtype
    return microseconds("plain", *sizes, recorded(query, key, value), torch.get_num_threads())


def attend(scale: float, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log Σ exp in bfloat16."""
    if recorded(query, key, value):
        found: tuple[Tensor, Tensor] = PairedGroups.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
        return found
    return _forward(scale, query, key, value, saves=False)[:2]


def _joined(x: Tensor, entries: int) -> Tensor:
    """x (b, heads, n, columns) as (b heads_k, group n, columns)."""
    return x.reshape(entries, -1, x.shape[-1])


def _forward(
    scale: float, query: Tensor, key: Tensor, value: Tensor, *, saves: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Output and log Σ exp, and what the backward reads of the weights."""
    entries = key.shape[0] * key.shape[1]
    joined = [_joined(x, entries) for x in (query, key, value)]
    output, logarithms, weights = paired_formula.forward(scale, *joined, logarithms=True, saves=saves)
    assert logarithms is not None
    return output.view(*query.shape[:-1], value.shape[-1]), logarithms.view(query.shape[:-1]), weights


class PairedGroups(torch.autograd.Function):
    """Output and log Σ exp."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The backward reads the weights before and after their rounding, or computes them again."""
        output, logarithms, weights = _forward(scale, query, key, value, saves=True)
        ctx.save_for_backward(query, key, value, *(weights or ()))
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return output, logarithms

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_logarithms: Tensor | None) -> tuple[Tensor | None, ...]:
        """By products where it is first order, else by the formula, which can be differentiated again."""
        query, key, value, *weights = ctx.saved_tensors
        operands, wanted = (query, key, value), ctx.needs_input_grad[:3]
        given = [x.resolve_neg() for x in (gradient, of_logarithms) if x is not None]
        addressed = all(map(addressable, (*given, *operands, *weights)))
        if gradient is None or torch.is_grad_enabled() or intercepted() or not addressed:
            found = gradients_by_formula(ctx.scale, False)(operands, (gradient, of_logarithms), wanted)
            return *(None if x is None else x.to(query.dtype) for x in found), None
        entries = key.shape[0] * key.shape[1]
        rows = None if of_logarithms is None else given[1].reshape(entries, -1).float()
        first, second, third = (_joined(x, entries) for x in operands)
        found = paired_formula.products(
            ctx.scale, _joined(given[0], entries), (first, second, third), weights, wanted, rows
        )
        return *(None if x is None else x.view(own.shape) for x, own in zip(found, operands, strict=True)), None
