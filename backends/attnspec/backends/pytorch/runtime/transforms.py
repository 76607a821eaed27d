"""Tests whether PyTorch compiles, transforms, traces or intercepts operations, or carries tangents."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from attnspec.backends.pytorch.runtime.private import dispatch_modes, forward_mode, transforms_active

fused_allowed: Callable[[], bool] = torch.backends.cuda.flash_sdp_enabled
"""Return whether fused kernels may run; ``torch.nn.attention.sdpa_kernel`` switches them off, on the CPU too."""


def under_torch_func() -> bool:
    """Return whether a transform of ``torch.func`` is active."""
    return transforms_active()  # torch.func supports neither gradients of custom operators nor checkpoints


def values_unreadable() -> bool:
    """Return whether values cannot be read: ``torch.compile`` has none, ``torch.func`` may have many."""
    return torch.compiler.is_compiling() or under_torch_func()


def has_tangents() -> bool:
    """Return whether forward-mode differentiation is active, by ``torch.func`` or by dual tensors."""
    return not torch.compiler.is_compiling() and forward_mode()


def operations_intercepted() -> bool:
    """Return whether something intercepts PyTorch's operations, so that kernels must not run.

    It is a transform, tracing, a mode, such as a default device, or forward-mode differentiation.
    """
    return (
        values_unreadable()
        or dispatch_modes() > 0
        or has_torch_function((None,))  # without a tensor among the arguments, only a mode has one
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # PyTorch does not annotate it
        or has_tangents()
    )


def being_captured(x: Tensor) -> bool:
    """Return whether a CUDA graph captures operations on x: its numbers cannot be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def readable(x: Tensor) -> bool:
    """Return whether the numbers of x can be read, even if by waiting."""
    return not operations_intercepted() and not being_captured(x)


def any_lazy(*tensors: Tensor) -> bool:
    """Return whether a tensor's memory does not hold its numbers: lazy negation, or unallocated zeros."""
    # `any` of a generator takes twice the time of a list
    return any([x.is_neg() or is_unallocated_zeros(x) for x in tensors])  # noqa: C419


def is_unallocated_zeros(x: Tensor) -> bool:
    """Return whether x stands for zeros that have no memory."""
    return x.is_cpu and has_default_dispatch(x) and not in_memory(x)


def has_default_dispatch(x: Tensor) -> bool:
    """Return whether the class of x leaves every operation to PyTorch."""
    return type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def in_memory(x: Tensor) -> bool:
    """Return whether x is empty or has an address, unlike unallocated zeros and ``vmap`` batches.

    Only for tensors with `has_default_dispatch`: some other classes warn when their address is read.
    """
    try:
        return x.data_ptr() != 0 or x.numel() == 0
    except RuntimeError:  # x has no storage
        return False


def addressable(x: Tensor) -> bool:
    """Return whether a kernel can read x by address and strides."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and has_default_dispatch(x)
        and not x.is_neg()
        and not x.is_nested
        and in_memory(x)
    )
