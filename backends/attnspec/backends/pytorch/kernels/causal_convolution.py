"""Convolution of every feature with a filter of its own, by one product per tap."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


def convolved(rows: Tensor, filters: Tensor) -> Tensor:
    """Return Σ_j w_j r_{i+j} (…, t, d).

    Rows r are (…, t + taps − 1, d), filters w (taps, d).
    """
    if operations_intercepted():
        steps = rows.shape[-2] - len(filters) + 1
        return torch.stack([w * rows[..., j : j + steps, :] for j, w in enumerate(filters)]).sum(0)
    if not needs_gradients(rows, filters):
        return _sum_of_taps(rows, filters)
    differentiable: Tensor = _Convolution.apply(rows, filters)  # type: ignore[no-untyped-call]
    return differentiable


def _sum_of_taps(rows: Tensor, filters: Tensor) -> Tensor:
    steps = rows.shape[-2] - len(filters) + 1
    total = filters[0] * rows[..., :steps, :]
    for j in range(1, len(filters)):
        total.addcmul_(filters[j], rows[..., j : j + steps, :])
    return total


def _sum_of_shifted(gradient: Tensor, filters: Tensor) -> Tensor:
    """Sum of w_j times the gradient, moved by j rows."""
    total = functional.pad(filters[0] * gradient, (0, 0, 0, len(filters) - 1))
    for j in range(1, len(filters)):
        total[..., j : j + gradient.shape[-2], :].addcmul_(filters[j], gradient)
    return total


class _Convolution(torch.autograd.Function):
    """The sum, whose gradients are added in one array; PyTorch makes one for every slice."""

    @staticmethod
    def forward(rows: Tensor, filters: Tensor) -> Tensor:
        """Return the sum over taps."""
        return _sum_of_taps(rows, filters)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Add the gradient, times a filter, to the rows of each tap; sum its products with the rows."""
        rows, filters = ctx.saved_tensors
        slices = [slice(j, j + gradient.shape[-2]) for j in range(len(filters))]
        of_rows = of_filters = None
        if ctx.needs_input_grad[0]:
            of_rows = _sum_of_shifted(gradient, filters)
        if ctx.needs_input_grad[1]:
            products = [(gradient * rows[..., tap, :]).reshape(-1, rows.shape[-1]).sum(0) for tap in slices]
            of_filters = torch.stack(products)
        return of_rows, of_filters
