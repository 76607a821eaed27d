"""RMS normalization on a CPU, in fewer passes over memory than PyTorch's composed operations."""

from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.autocast import off
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


def normalized(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the normalized rows of x (…, d), times w (d)."""
    if not x.is_cpu or not x.numel() or operations_intercepted():
        return torch.rms_norm(x, x.shape[-1:], weight, epsilon)
    if not needs_gradients(x, weight):
        return (x * _reciprocal(x, epsilon)).mul_(weight)
    product: Tensor = _Normalized.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
    return product


def _reciprocal(x: Tensor, epsilon: float) -> Tensor:
    """Return 1/√(mean x² + ε) of every row."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.rsqrt(norm * norm / x.shape[-1] + epsilon)


class _Normalized(torch.autograd.Function):
    """Normalization whose gradients compute 1/√(mean x² + ε) again."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Return the normalized rows."""
        return (x * _reciprocal(x, epsilon)).mul_(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        x, weight, ctx.epsilon = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """With r = 1/√(mean x² + ε): ∂x = r(∂y ∘ w) − x r³ Σ(∂y ∘ w ∘ x)/d, and ∂w = Σ ∂y ∘ x r."""
        x, weight = ctx.saved_tensors
        reciprocal, products = _reciprocal(x, ctx.epsilon), gradient * x
        of_x = of_weight = None
        with off(x):  # a caller's autocast would round the products
            if ctx.needs_input_grad[0]:
                projected = (products @ weight).unsqueeze(-1) * (reciprocal**3 / -x.shape[-1])
                of_x = (gradient * weight).mul_(reciprocal).addcmul_(x, projected)
            if ctx.needs_input_grad[1]:
                of_weight = reciprocal.flatten() @ products.reshape(-1, x.shape[-1])
        return of_x, of_weight, None
