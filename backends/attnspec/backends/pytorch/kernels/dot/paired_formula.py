"""softmax(scale·QKᵀ)V of bfloat16 with the scores in memory, where the processor multiplies pairs of bfloat16.

Scores are float32, as they are summed; weights and their gradients are rounded to bfloat16 before they are multiplied.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive import HAS_LLVMLITE
from attnspec.backends.pytorch.kernels.dot.call import four_dimensional
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.kept_memory import kept
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

LANES = 16
"""Scores of a row that a register holds."""


def serves(m: int, d: int, d_v: int, dtype: torch.dtype) -> bool:
    """Whether products of these sizes are multiplied in pairs."""
    if not HAS_LLVMLITE or dtype is not torch.bfloat16 or m % LANES or d % 2 or d_v % 2:
        return False
    from attnspec.backends.pytorch.kernels.llvm.machine_code import multiplies_bfloat16

    return multiplies_bfloat16()


def attend(scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output for query (entries, n, d), key (entries, m, d) and value (entries, m, d_v) in memory."""
    if recorded(query, key, value):
        output: Tensor = PairedAttention.apply(query, key, value, scale)  # type: ignore[no-untyped-call]
        return output
    from attnspec.backends.pytorch.kernels.dot import weight_rows

    memory = scratch(*query.shape[:-1], key.shape[-2])
    rounded, _ = weight_rows.weights(scores(scale, query, key, memory), kept=False)
    return torch.bmm(rounded, value)


def scratch(*shape: int) -> Tensor | None:
    """Memory of this thread for so many scores, with what is left of others; None for many."""
    found = kept("paired_formula", prod(shape), torch.float32)
    return None if found is None else found.view(shape)


def scores(scale: float, query: Tensor, key: Tensor, output: Tensor | None = None) -> Tensor:
    """scale·QKᵀ in float32, as they are summed."""
    from attnspec.backends.pytorch.kernels.llvm.matmul import of_pairs

    return of_pairs(query, key, scale, output)


class PairedAttention(torch.autograd.Function):
    """The output, with first derivatives."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """The backward reads the weights before and after their rounding."""
        from attnspec.backends.pytorch.kernels.dot import weight_rows

        weights = scores(scale, query, key)
        rounded, _ = weight_rows.weights(weights, kept=True)
        output = torch.bmm(rounded, value)
        ctx.save_for_backward(query, key, value, output, weights, rounded)
        ctx.scale = scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        from attnspec.backends.pytorch.kernels.dot.cpu import ONCE

        query, key, value, output, weights, rounded = ctx.saved_tensors

        def gradients(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.scale, gradient, tensors, weights, rounded, ctx.needs_input_grad[:3])

        return *first_order(ONCE, gradients, gradient, query, key, value, output), None


def _gradients(
    scale: float, gradient: Tensor, tensors: tuple[Tensor, ...], weights: Tensor, rounded: Tensor,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    query, key, value, output = tensors
    gradient = gradient.resolve_neg()
    if intercepted() or not all(map(addressable, (gradient, *tensors, weights, rounded))):
        from attnspec.backends.pytorch.kernels.dot.cpu import gradients_by_pytorch

        four = four_dimensional(query, key, value, None, False, scale)[0]
        found = gradients_by_pytorch(four, gradient.unsqueeze(1), output.unsqueeze(1), wanted)
        return tuple(None if x is None else x.squeeze(1) for x in found)
    return products(scale, gradient, (query, key, value), weights, rounded, wanted)


def products(
    scale: float, gradient: Tensor, operands: tuple[Tensor, Tensor, Tensor], weights: Tensor, rounded: Tensor,
    wanted: tuple[bool, bool, bool], of_logarithms: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands from those of the output and of log Σ exp (entries, n)."""
    from attnspec.backends.pytorch.kernels.dot import weight_rows
    from attnspec.backends.pytorch.kernels.llvm.matmul import of_pairs

    query, key, value = operands
    # scaled already, for the gradient of a softmax is linear
    by_weights = of_pairs(gradient, value, scale, scratch(*weights.shape))
    of_rows = None if of_logarithms is None else (of_logarithms * scale).contiguous()
    by_scores = weight_rows.gradients(weights, by_weights, of_rows)
    return (
        torch.bmm(by_scores, key) if wanted[0] else None,
        torch.bmm(by_scores.mT, query) if wanted[1] else None,
        torch.bmm(rounded.mT, gradient) if wanted[2] else None,
    )
