"""Gradients that cannot be differentiated again: a second derivative raises.

It is never silently incomplete. PyTorch's ``once_differentiable`` is not enough where such gradients are added to
others: its node has no edge back to the inputs, so that autograd silently leaves its part out.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor


def no_second_derivative(operation: str, path: str, elsewhere: str) -> Callable[..., NoReturn]:
    """Return a backward of a backward that raises and names the path with second derivatives."""

    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise NotImplementedError(
            f"{operation}: second derivatives are not implemented on the path {path}; {elsewhere} has them"
        )

    return backward


class _FirstOrder(torch.autograd.Function):
    """Gradients as a function of all that they depend on, for autograd's edge to the inputs."""

    @staticmethod
    def forward(ctx: Any, refuse: Callable[..., NoReturn], compute: Callable[..., Any], *tensors: Tensor) -> Any:
        """Return compute(*tensors)."""
        ctx.refuse = refuse
        return compute(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Raise."""
        return ctx.refuse(ctx, *gradients)


def first_order(
    refuse: Callable[..., NoReturn], compute: Callable[..., tuple[Tensor | None, ...]], *tensors: Tensor
) -> tuple[Tensor | None, ...]:
    """Return compute(*tensors), a backward's gradients; if autograd records it, ``refuse`` is their backward."""
    if not torch.is_grad_enabled():
        return compute(*tensors)
    gradients: tuple[Tensor | None, ...] = _FirstOrder.apply(refuse, compute, *tensors)  # type: ignore[no-untyped-call]
    return gradients
