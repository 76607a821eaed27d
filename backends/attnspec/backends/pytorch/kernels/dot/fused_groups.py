"""Attention in groups of heads by the fused kernel that PyTorch has for CPUs, which gives log Σ exp too.

It begins sooner than any other. What is not finite it may hide, so that operands are looked at before.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import overlaps
from attnspec.backends.pytorch.kernels.dot.group_gradients import gradients_by_formula
from attnspec.backends.pytorch.kernels.dot.planned_pytorch import widens
from attnspec.backends.pytorch.kernels.dot.zero_rows import finder
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.transforms import functional

_NAME = "_scaled_dot_product_flash_attention_for_cpu"
# a function of C++, and an operator without its method in Python: they take a microsecond less than `torch.ops` has
FORWARD: Callable[..., tuple[Tensor, Tensor]] | None = getattr(torch, _NAME, None)
_operator = getattr(getattr(torch.ops.aten, f"{_NAME}_backward", None), "default", None)
BACKWARD: Callable[..., tuple[Tensor, ...]] | None = getattr(_operator, "_op", _operator)

grad = torch.is_grad_enabled

Found: TypeAlias = tuple[Tensor, Tensor]
"""Output and log Σ exp."""


class Fused(NamedTuple):
    """What of a call is no tensor.

    ``regular`` says of operands that all is moderate, ``hides`` of a result that a NaN may be hidden in it.
    """

    causal: bool
    scale: float | None
    widens: bool
    regular: Callable[..., bool]
    hides: Callable[[Tensor], bool] | None


def attending(call: Fused, tracked: bool) -> Callable[[Tensor, Tensor, Tensor], Found | None]:
    """What gives output and log Σ exp in the dtype of the operands; None where something is not finite."""
    causal, scale, wide, regular, hides = call
    compute = recording(causal, scale, wide) if tracked else partial(_widened, causal, scale) if wide else None

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Found | None:
        if not regular(query, key, value):
            return None
        if compute is not None:
            output, logarithms, *_ = compute(query, key, value)
        else:
            output, logarithms = FORWARD(query, key, value, 0.0, causal, scale=scale)  # type: ignore[misc]
            if logarithms.dtype is not query.dtype:
                logarithms = logarithms.type(query.dtype)
        return None if hides is not None and hides(output) else (output, logarithms)

    return attend


def _widened(causal: bool, scale: float | None, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Both results in the dtype of the operands, and what a backward reads."""
    assert FORWARD is not None
    dtype = query.dtype
    query, key, value = query.float(), key.float(), value.float()
    output, logarithms = FORWARD(query, key, value, 0.0, causal, scale=scale)
    return output.to(dtype), logarithms.to(dtype), query, key, value, output, logarithms


@lru_cache(maxsize=256)
def recording(causal: bool, scale: float | None, wide: bool) -> Callable[[Tensor, Tensor, Tensor], Found]:
    """The same as a function of autograd, where operands are moderate; a class for every scale.

    What is known of the call is no argument and no attribute of a context, each of which takes a part of a microsecond.
    """

    class FusedGroups(torch.autograd.Function):
        """Output and log Σ exp."""

        @staticmethod
        def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Found:
            """The backward reads operands as they were widened."""
            ctx.set_materialize_grads(False)
            if wide:
                output, logarithms, *kept = _widened(causal, scale, query, key, value)
                ctx.save_for_backward(query, key, value, *kept)
                return output, logarithms
            if scale is None:
                output, logarithms = FORWARD(query, key, value, 0.0, causal)  # type: ignore[misc]
            else:
                output, logarithms = FORWARD(query, key, value, 0.0, causal, scale=scale)  # type: ignore[misc]
            ctx.save_for_backward(query, key, value, output, logarithms)
            return output, logarithms if logarithms.dtype is query.dtype else logarithms.type(query.dtype)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor | None, of_logarithms: Tensor | None) -> tuple[Tensor | None, ...]:
            """By PyTorch's kernel where it is first order and of the output alone, else by the formula."""
            saved = ctx.saved_tensors
            if gradient is None or of_logarithms is not None or grad() or functional():
                own = saved[0].shape[-1] ** -0.5 if scale is None else scale
                found = gradients_by_formula(own, causal)(
                    saved[:3], (gradient, of_logarithms), ctx.needs_input_grad[:3]
                )
            elif wide:
                found = BACKWARD(gradient.float(), *saved[3:], 0.0, causal, scale=scale)  # type: ignore[misc]
            else:
                # autograd drops gradients that nobody wants in less time than they are looked through here
                query, key, value, output, logarithms = saved
                if scale is None:
                    return BACKWARD(gradient, query, key, value, output, logarithms, 0.0, causal)  # type: ignore[misc]
                return BACKWARD(gradient, *saved, 0.0, causal, scale=scale)  # type: ignore[misc]
            return tuple(x if x is None else x.to(saved[0].dtype) for x in found)

    return FusedGroups.apply


def is_fusible(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> bool:
    """Whether PyTorch's fused kernel serves the call: nothing but causality and scale, and one batch."""
    simple = is_simple(visible, scoring)
    return simple and fused(query, key, value, visible.right == 0, scoring.scale) is not None


def is_simple(visible: Visible, scoring: Scoring) -> bool:
    """Whether there is nothing but causality and scale."""
    causal = visible.left is None and visible.right in (None, 0)
    return causal and all(x is None for x in (visible.mask, visible.lengths, visible.offsets, *scoring[1:]))


def fused(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> Fused | None:
    """The call of PyTorch's fused kernel for query (b, heads, n, d), key and value (b, heads_k, m, d).

    None where it does not take the operands.
    """
    if FORWARD is None or BACKWARD is None or query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        return None
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1] or overlaps(query):
        return None
    from attnspec.backends.pytorch.kernels.dot.regular import SUMMED, inspector

    regular = inspector((query, key, value))
    if regular is None:
        return None
    wide = widens(query, key)
    overflows = query.shape[-1] * max(1.0, scale or 0.0) > SUMMED
    hides = finder(query.shape, query.element_size()) if overflows else None
    return Fused(causal, scale, wide, regular, hides)
