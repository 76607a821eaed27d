"""Rotation of neighbouring features as pairs: on a CPU, products of complex numbers, which read memory once."""

from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


def rotate_pairs(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the pairs of x (…, n, d) by angles (…, n, d/2); half dtypes in float32."""
    wide = upcast(x)
    cosine, sine = (part.to(x.device, wide.dtype) for part in (angle.cos(), angle.sin()))
    if not wide.is_cpu or needs_gradients(angle) or operations_intercepted():  # compilers know no complex numbers
        first, second = wide[..., 0::2], wide[..., 1::2]
        return torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1).flatten(-2).to(x.dtype)
    turns = torch.complex(cosine, sine)
    if not needs_gradients(x):
        return _product(wide, turns).to(x.dtype)
    rows = broadcast(wide.shape[:-1], turns.shape[:-1])
    product: Tensor = _Product.apply(wide.expand(*rows, -1), turns)  # type: ignore[no-untyped-call]
    return product.to(x.dtype)


def _product(x: Tensor, turns: Tensor) -> Tensor:
    """Product of the pairs of x, as complex numbers, with others."""
    if x.is_contiguous() and not x.is_neg() and x.storage_offset() % 2 == 0:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2))
    else:
        pairs = torch.complex(x[..., 0::2], x[..., 1::2])
    return torch.view_as_real(pairs * turns).flatten(-2)


class _Product(torch.autograd.Function):
    """Product with gradients of every layout; PyTorch's own refuse expanded ones."""

    @staticmethod
    def forward(x: Tensor, turns: Tensor) -> Tensor:
        """Return the product."""
        return _product(x, turns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Rotate the gradient back."""
        (turns,) = ctx.saved_tensors
        turned_back: Tensor = _Product.apply(gradient, turns.conj())  # type: ignore[no-untyped-call]
        return turned_back, None
