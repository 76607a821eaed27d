"""Gradients that cannot be differentiated again: a second derivative raises.

PyTorch's ``once_differentiable`` is not enough where such gradients are added to others: its node has no edge back to
the inputs, so that autograd silently leaves its part out of the second derivative.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor


def no_second_derivative(operation: str, path: str, elsewhere: str) -> Callable[..., NoReturn]:
    """Return a ``backward`` for computed gradients: it raises and names the path ``elsewhere``, which has them."""

    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        reason = f"second derivatives are not implemented on the path {path}; {elsewhere} has them"
        raise NotImplementedError(f"{operation}: {reason}")

    return backward


class _FirstOrder(torch.autograd.Function):
    """Gradients as a function of their inputs, so that autograd has edges to these."""

    @staticmethod
    def forward(ctx: Any, refuse: Callable[..., NoReturn], compute: Callable[..., Any], *tensors: Tensor) -> Any:
        ctx.refuse = refuse
        return compute(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.refuse(ctx, *gradients)


def first_order(
    refuse: Callable[..., NoReturn], compute: Callable[..., tuple[Tensor | None, ...]], *tensors: Tensor
) -> tuple[Tensor | None, ...]:
    """Return compute(*tensors), the gradients of a backward pass; differentiating them calls ``refuse``."""
    if not torch.is_grad_enabled():  # within a backward pass: without ``create_graph=True``
        return compute(*tensors)
    gradients: tuple[Tensor | None, ...] = _FirstOrder.apply(refuse, compute, *tensors)  # type: ignore[no-untyped-call]
    return gradients
