"""Planned calls of the kernels of scaled dot-product attention for groups of heads, with log Σ exp."""

from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot import planned_kernel
from attnspec.backends.pytorch.kernels.dot.arguments import forward_scratch, padded
from attnspec.backends.pytorch.kernels.dot.cpu import CAUSAL, NOTHING, operands_of
from attnspec.backends.pytorch.kernels.dot.forward import Forward, forward_kernel
from attnspec.backends.pytorch.kernels.dot.group_gradients import gradients_by_formula
from attnspec.backends.pytorch.kernels.dot.planned_kernel import Plan
from attnspec.backends.pytorch.kernels.dot.regular import inspector
from attnspec.backends.pytorch.kernels.dot.tiles import width
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted


def attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor] | None] | None:
    """What computes calls like this one; None where operands would have to be copied to be read."""
    tracked = recorded(query, key, value)
    half, dtype = query.dtype in HALF_DTYPES, query.dtype
    sums = torch.float32 if half else dtype
    are_finite = (inspector((key, value)) or _finite) if tracked and causal else None
    if half:
        query, key, value = query.detach().float(), key.detach().float(), value.detach().float()
    # Of rows that overlap in memory, a copy in float32 may have its features apart.
    if any(x.stride(-1) != 1 for x in (query, key, value)):
        return None
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    output, numbers = query.new_empty(b, h, n, d_v), query.new_empty(b, h, n)
    options = CAUSAL if causal else NOTHING
    operands = operands_of(query, key, value, None, options, scale, output, numbers, numbers)
    tasks, sizes = b * h * -(-n // width(bits)), (b, h, n, m, d, d_v)
    scratch = sum(forward_scratch(bits, padded(d, bits), padded(d_v, bits)))
    arguments = Forward(tasks=tasks, operands=operands, scratch=query.new_empty(1, scratch), nan=array("q", [0]))
    backward = planned_kernel.backward_plan(operands, sizes, causal, scale, bits, output) if tracked else None
    plan = Plan(
        2, (b, h, n, d_v), sizes, tuple(x.stride() for x in (query, key, value)), half, causal, causal, scale,
        thread_count(tasks, b * h * n * m * (d + d_v) / 2), scratch, forward_kernel(bits),
        planned_kernel.template(arguments), backward,
    )  # fmt: skip

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
        if tracked:
            found: tuple[Tensor, Tensor, bool] = PlannedGroups.apply(query, key, value, plan)  # type: ignore[no-untyped-call]
            pooled, logarithms, nan = found
            nan = nan or (are_finite is not None and not are_finite(key, value))
        else:
            logarithms = torch.empty((b, h, n), dtype=sums)
            pooled, _, nan = planned_kernel.forward(plan, query, key, value, None, False, logarithms)
            if half:
                pooled, logarithms = pooled.to(dtype), logarithms.to(dtype)
        return None if nan else (pooled, logarithms)

    return attend


def _finite(key: Tensor, value: Tensor) -> bool:
    return finite(key) and finite(value)


class PlannedGroups(torch.autograd.Function):
    """Output and log Σ exp in the dtype of the operands, and whether a NaN is in the output."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan) -> tuple[Tensor, Tensor, bool]:
        """The backward reads the output before its rounding."""
        logarithms = torch.empty(plan.sizes[:3], dtype=torch.float32 if plan.half else query.dtype)
        pooled, numbers, nan = planned_kernel.forward(plan, query, key, value, None, True, logarithms)
        output = pooled
        if plan.half:
            output, logarithms = pooled.to(query.dtype), logarithms.to(query.dtype)
        ctx.save_for_backward(query, key, value, pooled if plan.half else output, numbers)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return output, logarithms, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_logarithms: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        """By the kernel where it is first order, else by the formula."""
        plan, wanted = ctx.plan, ctx.needs_input_grad[:3]
        *operands, pooled, numbers = ctx.saved_tensors
        wide = [x.float() for x in operands] if plan.half else operands
        # hooks on saved tensors may have changed their strides and classes
        alike = tuple(x.stride() for x in wide) == plan.strides and pooled.is_contiguous()
        given = [x.resolve_neg() for x in (gradient, of_logarithms) if x is not None]
        plain = torch.is_grad_enabled() or intercepted() or not alike
        if plain or not all(map(addressable, (*given, *wide, pooled, numbers))):
            by_formula = gradients_by_formula(plan.scale, plan.causal)
            found = by_formula((operands[0], operands[1], operands[2]), (gradient, of_logarithms), wanted)
        else:
            b, h, n, _, _, d_v = plan.sizes
            whole = pooled.new_zeros(b, h, n, d_v) if gradient is None else given[0].to(pooled.dtype)
            if whole.stride(-1) != 1:
                whole = whole.contiguous()
            of_rows = None if of_logarithms is None else given[-1].to(pooled.dtype).contiguous()
            found = planned_kernel.backward(plan, wide, None, whole, pooled, numbers, wanted, of_rows)
        dtype = operands[0].dtype
        return *(x.to(dtype) if x is not None and want else None for x, want in zip(found, wanted, strict=True)), None
