"""Whether a program runs as it is written, or PyTorch makes another of it."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def functional() -> bool:
    """Whether a transform of ``torch.func`` is active; it takes no custom operators' gradients, and no checkpoints."""
    return torch._C._are_functorch_transforms_active()


def transformed() -> bool:
    """Whether no number may be looked at, for there is none yet or many: ``torch.compile``, ``torch.func``."""
    return torch.compiler.is_compiling() or functional()


def has_tangents() -> bool:
    """Whether the program is in forward mode, of ``torch.func`` or of dual numbers."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def taken_over() -> bool:
    """Whether operations must be PyTorch's own: transformed, traced, watched by a mode, or with tangents to carry."""
    return (
        transformed()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or has_tangents()
    )


def ordinary(x: Tensor) -> bool:
    """Whether x is numbers in this machine's memory, as its strides say, and nothing that only behaves like them."""
    return (
        x.is_cpu
        and x.layout is torch.strided
        and type(x).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
        and not x.is_neg()
        and not x.is_nested
        and not x._is_zerotensor()
        and torch._C._has_storage(x)
    )
