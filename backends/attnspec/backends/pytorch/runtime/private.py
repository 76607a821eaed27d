"""PyTorch's undocumented names that this backend uses, each with its public alternative."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")

transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""Return whether a transform of ``torch.func`` is active. There is no public way to ask."""

dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Return the number of active ``TorchDispatchMode``. There is no public way to ask."""


def forward_mode() -> bool:
    """Return whether a level of forward-mode differentiation is open.

    The public alternative is ``unpack_dual(x).tangent`` of every operand: many times slower, too slow for small calls.
    """
    return forward_ad._current_level >= 0


FLEX_WITHOUT_COMPILER = "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""Switch that runs ``flex_attention`` uncompiled, on the CPU, where only tests use it.

There is no public way to keep it from compiling.
"""

flash_on_cuda: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention
"""``F.scaled_dot_product_attention`` by flash attention. It also returns log Σ exp, which the public function does
not."""

_ON_CPU = "_scaled_dot_product_flash_attention_for_cpu"
flash_on_cpu: Callable[..., Any] | None = getattr(torch.ops.aten, _ON_CPU, None)
"""`flash_on_cuda` for the CPU; None where PyTorch has none. There is no public alternative here either."""
flash_on_cpu_backward: Callable[..., Any] | None = getattr(torch.ops.aten, f"{_ON_CPU}_backward", None)
"""Gradients of `flash_on_cpu`."""


def constant_while_compiling(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that ``torch.compile`` calls while it traces, in place of tracing it.

    The public alternative, ``torch.compiler.assume_constant_result``, sets the same attribute, but imports the compiler
    first, which would slow down every import of this backend.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
