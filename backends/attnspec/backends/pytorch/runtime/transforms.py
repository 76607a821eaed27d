"""What PyTorch may do with operations beside running them: compile, transform, trace, intercept, carry tangents."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

fused_allowed: Callable[[], bool] = torch.backends.cuda.flash_sdp_enabled
"""Whether fused kernels may run, which ``torch.nn.attention.sdpa_kernel`` switches off, on the CPU too."""


def functional() -> bool:
    """Whether ``torch.func`` is active, which supports neither gradients of custom operators nor checkpoints."""
    return torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether values cannot be read: ``torch.compile`` has none yet, and ``torch.func`` may have many."""
    return torch.compiler.is_compiling() or functional()


def has_tangents() -> bool:
    """Whether forward-mode differentiation is active, by ``torch.func`` or by dual tensors."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def intercepted() -> bool:
    """Whether only PyTorch's own operations will do: under transforms, tracing, modes and forward mode.

    A default device is a mode, too.
    """
    return (
        transformed()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._get_tracing_state() is not None
        or has_tangents()
    )


def lazy(*tensors: Tensor) -> bool:
    """Whether numbers of some are not in memory as they are: they wait for a change of sign, or are all zeros."""
    return any([x.is_neg() or x._is_zerotensor() for x in tensors])  # noqa: C419 (a generator takes twice the time)


def addressable(x: Tensor) -> bool:
    """Whether a kernel can read x at its address, by its strides: no subclass, lazy sign, nested or other layout."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and type(x).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
        and not x.is_neg()
        and not x.is_nested
        and not x._is_zerotensor()
        and torch._C._has_storage(x)
    )
