"""Derivatives that stop at the first: whoever differentiates them again gets an error, not numbers without a part.

``once_differentiable`` of PyTorch does not say so where the gradients join others: its node has no way back to the
inputs, so that autograd leaves it out.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor


def no_second_derivative(operation: str, path: str, elsewhere: str) -> Callable[..., NoReturn]:
    """A backward of a backward, that raises and says where there is one."""

    def backward(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise NotImplementedError(
            f"{operation}: second derivatives are not implemented on the path {path}; {elsewhere} has them"
        )

    return backward


class _FirstOrder(torch.autograd.Function):
    """Gradients as a function of all that they depend on, which is the way back to the inputs."""

    @staticmethod
    def forward(ctx: Any, refuse: Callable[..., NoReturn], compute: Callable[..., Any], *tensors: Tensor) -> Any:
        """What ``compute`` gives for the tensors."""
        ctx.refuse = refuse
        return compute(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Raise."""
        return ctx.refuse(ctx, *gradients)


def first_order(
    refuse: Callable[..., NoReturn], compute: Callable[..., tuple[Tensor | None, ...]], *tensors: Tensor
) -> tuple[Tensor | None, ...]:
    """compute(*tensors), the gradients of a backward, where autograd does not record it; else the same, that raises."""
    if not torch.is_grad_enabled():
        return compute(*tensors)
    gradients: tuple[Tensor | None, ...] = _FirstOrder.apply(refuse, compute, *tensors)  # type: ignore[no-untyped-call]
    return gradients
