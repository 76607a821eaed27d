"""Base of backends that compute with PyTorch tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from attnspec.backends.bases.contract import Operations
from attnspec.backends.bases.numpy import NDArray, strided_copy
from attnspec.spec.contract.tree import flatten, mapped


def devices() -> tuple[str, ...]:
    """The kinds of device that PyTorch finds on this machine, the CPU first."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if found is None else ("cpu", found.type)


def from_numpy(array: NDArray, *, device: str) -> Tensor:
    """A copy with the same dtype on the device, on the CPU with the same strides; bfloat16 from ``ml_dtypes``.

    ``ValueError`` names the devices that exist if this one does not.
    """
    if device != "cpu":
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, NotImplementedError):
            raise ValueError(f"device: expected one of {', '.join(devices())}; got {device!r}") from None
    copy = strided_copy(array)
    if copy.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(copy).to(device)


def to_numpy(array: Tensor) -> NDArray:
    """A copy with the same dtype; bfloat16 as ``ml_dtypes.bfloat16``; ``TypeError`` for what is no tensor."""
    if not isinstance(array, Tensor):
        raise TypeError(f"result: expected a torch.Tensor; got {type(array).__name__}")
    copy = array.detach().to("cpu", copy=True)
    if copy.dtype is torch.bfloat16:
        return copy.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return copy.numpy()


def gradients(function: Callable[..., Any], arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
    """Gradients of ⟨cotangent, function(**arguments)⟩ for every float tensor, 0 where the result does not depend on it.

    Arguments and cotangent may be trees of tensors, the cotangent with None where the result has no part in it.
    Gradients come by path. An argument counts by its path: one tensor passed under two names gets two gradients.
    """
    leaves = {
        path: a.detach().requires_grad_()
        for path, a in flatten(dict(arguments)).items()
        if isinstance(a, Tensor) and a.is_floating_point()
    }
    with torch.enable_grad():
        result = function(**mapped(dict(arguments), lambda path, a: leaves.get(path, a)))
        pairs = zip(flatten(result).values(), flatten(cotangent).values(), strict=True)
        # Of the sum, and not with `grad_outputs`: PyTorch imports a symbolic algebra system to check their shape.
        totals = [(x * c).sum() for x, c in pairs if c is not None]
        total = sum(totals[1:], totals[0])
    if not total.requires_grad:
        return {path: torch.zeros_like(a) for path, a in leaves.items()}
    found = torch.autograd.grad(total, tuple(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


class TorchBackend(Operations[Tensor]):
    """Subclass, set ``name`` and define operations as methods.

    Conversion copies, so that an operation that writes to its inputs writes to tensors of its own.
    """

    name: str

    def from_numpy(self, array: NDArray, *, device: str) -> Tensor:
        """A copy with the same dtype on the device; ``ValueError`` for a device that does not exist."""
        return from_numpy(array, device=device)

    def to_numpy(self, array: Tensor) -> NDArray:
        """A copy with the same dtype; ``TypeError`` for what is no tensor."""
        return to_numpy(array)

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> dict[str, Tensor]:
        """Gradients of ⟨cotangent, operation(**arguments)⟩ for every float tensor, by path, by autograd."""
        return gradients(getattr(self, operation), arguments, cotangent)
