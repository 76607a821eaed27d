"""What PyTorch may do with operations beside running them: compile, transform, trace, intercept, carry tangents."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from attnspec.backends.pytorch.runtime.private import dispatch_modes, forward_mode, transforms_active

fused_allowed: Callable[[], bool] = torch.backends.cuda.flash_sdp_enabled
"""Whether fused kernels may run, which ``torch.nn.attention.sdpa_kernel`` switches off, on the CPU too."""


def functional() -> bool:
    """Whether ``torch.func`` is active, which supports neither gradients of custom operators nor checkpoints."""
    return transforms_active()


def transformed() -> bool:
    """Whether values cannot be read: ``torch.compile`` has none yet, and ``torch.func`` may have many."""
    return torch.compiler.is_compiling() or functional()


def has_tangents() -> bool:
    """Whether forward-mode differentiation is active, by ``torch.func`` or by dual tensors."""
    return not torch.compiler.is_compiling() and forward_mode()


def intercepted() -> bool:
    """Whether only PyTorch's own operations will do: under transforms, tracing, modes and forward mode.

    A default device is a mode, too.
    """
    return (
        transformed()
        or dispatch_modes() > 0
        or has_torch_function((None,))  # of what is no tensor, only a mode can be one
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # PyTorch does not annotate it
        or has_tangents()
    )


def lazy(*tensors: Tensor) -> bool:
    """Whether numbers of some are not in memory as they are: they wait for a change of sign, or are all zeros."""
    # a generator takes twice the time
    return any([x.is_neg() or only_described(x) for x in tensors])  # noqa: C419


def only_described(x: Tensor) -> bool:
    """Whether x stands for zeros that are not in memory."""
    return x.is_cpu and runs_plainly(x) and not in_memory(x)


def runs_plainly(x: Tensor) -> bool:
    """Whether the class of x leaves operations to PyTorch."""
    return type(x).__torch_dispatch__ is Tensor.__torch_dispatch__


def in_memory(x: Tensor) -> bool:
    """Whether x has an address, if it is not empty: not the zeros that PyTorch only describes, no batch of a ``vmap``.

    For tensors that run plainly: some classes warn when they are asked.
    """
    try:
        return x.data_ptr() != 0 or x.numel() == 0
    except RuntimeError:  # it has no storage
        return False


def addressable(x: Tensor) -> bool:
    """Whether a kernel can read x at its address, by its strides: no subclass, lazy sign, nested or other layout."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and runs_plainly(x)
        and not x.is_neg()
        and not x.is_nested
        and in_memory(x)
    )
