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
        return _rotated(wide, turns).to(x.dtype)
    rows = broadcast(wide.shape[:-1], turns.shape[:-1])
    rotated: Tensor = _Rotation.apply(wide.expand(*rows, -1), turns)  # type: ignore[no-untyped-call]
    return rotated.to(x.dtype)


def _pairs(x: Tensor) -> Tensor:
    """Pairs of features as complex numbers: x itself where its layout allows for it."""
    if x.is_contiguous() and not x.is_neg() and x.storage_offset() % 2 == 0:
        return torch.view_as_complex(x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2))
    return torch.complex(x[..., 0::2], x[..., 1::2])


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    rotated = torch.view_as_real(_pairs(x) * turns)
    return rotated.reshape(*rotated.shape[:-2], x.shape[-1])


class _Rotation(torch.autograd.Function):
    """Rotation with gradients of every layout; PyTorch's own refuse expanded ones."""

    @staticmethod
    def forward(x: Tensor, turns: Tensor) -> Tensor:
        """Return the rotated pairs.

        They are no view, since autograd lets nobody change a view of a function's own in place.
        """
        rotated = x.new_empty(x.shape)
        torch.mul(_pairs(x), turns, out=_pairs(rotated))
        return rotated

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Rotate the gradient back."""
        (turns,) = ctx.saved_tensors
        if needs_gradients(gradient):
            return _Rotation.apply(gradient, turns.conj()), None  # type: ignore[no-untyped-call]
        return _rotated(gradient, turns.conj()), None
