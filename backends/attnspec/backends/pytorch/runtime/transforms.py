"""Tests whether PyTorch compiles, transforms, traces or intercepts operations, or carries tangents."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from attnspec.backends.pytorch.runtime.private import dispatch_modes, forward_mode, transforms_active

fused_allowed: Callable[[], bool] = torch.backends.cuda.flash_sdp_enabled
"""Return whether fused kernels may run; ``torch.nn.attention.sdpa_kernel`` switches them off, on the CPU too."""


def functional() -> bool:
    """Return whether ``torch.func`` is active, which supports neither gradients of custom operators nor checkpoints."""
    return transforms_active()


def transformed() -> bool:
    """Return whether values cannot be read: ``torch.compile`` has none yet, and ``torch.func`` may have many."""
    return torch.compiler.is_compiling() or functional()


def has_tangents() -> bool:
    """Return whether forward-mode differentiation is active, by ``torch.func`` or by dual tensors."""
    return not torch.compiler.is_compiling() and forward_mode()


def intercepted() -> bool:
    """Return whether only PyTorch's operations may run: transforms, tracing, modes, forward mode.

    A default device is a mode, too.
    """
    return (
        transformed()
        or dispatch_modes() > 0
        or has_torch_function((None,))  # None is no tensor, so that only a mode can be found
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # PyTorch does not annotate it
        or has_tangents()
    )


def lazy(*tensors: Tensor) -> bool:
    """Return whether some tensor's memory lacks its numbers: pending negation, or zeros without memory."""
    # a generator takes twice the time
    return any([x.is_neg() or only_described(x) for x in tensors])  # noqa: C419


def only_described(x: Tensor) -> bool:
    """Return whether x stands for zeros that are not in memory."""
    return x.is_cpu and runs_plainly(x) and not in_memory(x)


def runs_plainly(x: Tensor) -> bool:
    """Return whether the class of x leaves operations to PyTorch."""
    return type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def in_memory(x: Tensor) -> bool:
    """Return whether x is empty or has an address: zeros without memory and ``vmap`` batches have none.

    For tensors that `runs_plainly`: some other classes warn when they are asked.
    """
    try:
        return x.data_ptr() != 0 or x.numel() == 0
    except RuntimeError:  # it has no storage
        return False


def addressable(x: Tensor) -> bool:
    """Return whether a kernel can read x by address and strides: no subclass, lazy sign, nested or other layout."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and runs_plainly(x)
        and not x.is_neg()
        and not x.is_nested
        and in_memory(x)
    )
