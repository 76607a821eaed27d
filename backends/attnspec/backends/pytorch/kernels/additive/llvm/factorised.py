"""Additive attention with projections by factorised exponentials, and its gradients, from one plan."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.range_check import range_check
from attnspec.backends.pytorch.kernels.llvm.matmul import Multiply
from attnspec.backends.pytorch.kernels.llvm.projection import ProjectionGradients, projection_plan
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

from . import huge_pages
from .forward_plan import ScoringPlan, Sizes, attention_plan
from .gradient_plan import gradient_plan
from .huge_pages import converted
from .layout import Weight, lanes, weights_memory, whole_registers, zero_empty_rows
from .operators import attention_backward_op
from .pointwise import REFUSE_SECOND_DERIVATIVE
from .pointwise_plan import Operands


@plan_class
class Plan:
    """Sizes and kernels for all calls with the same shapes and dtypes.

    ``d`` is the caller's number of value features, unpadded; ``project_query`` and ``project_key`` project, or
    ``torch.mm`` if None; ``query_gradients`` and ``key_gradients`` compute the projections' gradients.
    ``in_range`` is a fast test that values are finite; it may fail for finite ones.
    """

    sizes: Sizes
    d: int
    forward: ScoringPlan
    project_query: Multiply | None
    project_key: Multiply | None
    query_gradients: ProjectionGradients
    key_gradients: ProjectionGradients
    in_range: Callable[[Tensor], bool] | None


def serves(operands: Operands, batch: torch.Size) -> bool:
    """Return whether all operands are present, non-empty, contiguous, and have the whole batch."""
    query, key, value, w_q, w_k, w_v = operands
    whole = all(x.shape[:-2] == batch for x in (query, key, value))
    tensors = [x for x in (query, key, value, w_q, w_k, w_v) if x is not None]
    readable = len(tensors) == len(operands) and all(x.is_contiguous() and x.numel() for x in tensors)
    return whole and readable


def plan(operands: Operands, mask: Tensor | None, causal: bool, batch: torch.Size) -> Plan:
    """Return the plan of a call for which `serves` is True."""
    query, key, value, _, _, w_v = operands
    n, m, h = query.shape[-2], key.shape[-2], w_v.shape[0]
    like, d = upcast(value[..., :0]), value.shape[-1]
    products = [(x.shape[:-1].numel(), h, x.shape[-1]) for x in (query, key)]
    project_query, project_key = (projection_plan(*product, value.dtype) for product in products)
    query_gradients, key_gradients = (ProjectionGradients(*product, like.dtype) for product in products)
    sizes = Sizes(batch, batch, batch, batch, n, m, h, d + -d % lanes(like), causal, like.dtype)
    forward = attention_plan(sizes, None if mask is None else mask.shape)
    return Plan(sizes, d, forward, project_query, project_key, query_gradients, key_gradients, range_check((value,)))


def attend(plan: Plan, operands: Operands, mask: Tensor | None, tracked: bool) -> Tensor | None:
    """Return the output (*batch, n, d_v) in the operands' dtype; None if a value is not finite."""
    value = operands.value.detach()
    if not ((plan.in_range is not None and plan.in_range(value)) or bool(value.isfinite().all())):
        return None
    if tracked:
        output: Tensor = FactorisedAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
        return output
    s, entries = plan.sizes, plan.sizes.entries
    like = value.new_empty(0, dtype=s.real)
    # `memory` is the first part, so that it begins on a cache line; `_held` keeps it from other calls until the return
    _held, (memory, a, b) = huge_pages.leased_parts(
        "additive", like, (plan.forward.size // like.element_size(), entries * s.n * s.h, entries * s.m * s.h)
    )
    return _forward(plan, operands, mask, a, b, memory, None)[0]


def _forward(
    plan: Plan, operands: Operands, mask: Tensor | None, a: Tensor, b: Tensor, memory: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the output, and unrounded as (entries, n, d); write a, b, and weights unless None."""
    query, key, value, w_q, w_k, w_v = operands
    assert w_q is not None
    assert w_k is not None
    s, entries = plan.sizes, plan.sizes.entries
    for multiply, x, w, projected in ((plan.project_query, query, w_q, a), (plan.project_key, key, w_k, b)):
        if multiply is None:
            torch.mm(upcast(x).view(-1, x.shape[-1]), upcast(w).mT, out=projected.view(-1, s.h))
        else:
            multiply(x, w, projected)
    values, w_v = whole_registers(upcast(value).view(entries, s.m, plan.d)), upcast(w_v)
    # not a view, because autograd would forbid callers to change it in place
    output = value.new_empty(*s.batch, s.n, plan.d)
    rows, in_place = output.view(entries, s.n, plan.d), s.d == plan.d and value.dtype is s.real
    padded_output = rows if in_place else values.new_empty(entries, s.n, s.d)
    a, b, forward = a.view(entries, s.n, s.h), b.view(entries, s.m, s.h), plan.forward
    forward.run(a, b, Weight.of(w_v), memory, forward.mask_rows(mask), values, padded_output, weights)
    if in_place:
        return output, rows
    rows.copy_(padded_output[..., : plan.d])
    return output, padded_output[..., : plan.d]


class FactorisedAttention(torch.autograd.Function):
    """Attention by factorised exponentials, with gradients by the kernels."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
        mask: Tensor | None, plan: Plan,
    ) -> Tensor:  # fmt: skip
        """Save the operands, projected queries and keys, weights, and the unrounded output."""
        operands, s, entries = Operands(query, key, value, w_q, w_k, w_v), plan.sizes, plan.sizes.entries
        like = value.new_empty(0, dtype=s.real)
        a, b = like.new_empty(entries, s.n, s.h), like.new_empty(entries, s.m, s.h)
        weights = weights_memory(like, entries, s.n, s.m, s.causal)
        _held, memory = huge_pages.leased_bytes("additive", like, plan.forward.size)
        output, wide = _forward(plan, operands, mask, a, b, memory, weights)
        ctx.save_for_backward(*operands, a, b, weights, output if value.dtype is s.real else wide)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of the operands that need them."""
        plan, wanted, count = ctx.plan, ctx.needs_input_grad, len(Operands._fields)
        operands, saved = ctx.saved_tensors[:count], ctx.saved_tensors[count:]

        def of_operands(gradient: Tensor, *operands: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(plan, Operands(*operands), gradient, saved, wanted)

        return *first_order(REFUSE_SECOND_DERIVATIVE, of_operands, gradient, *operands), None, None


def _gradients(
    plan: Plan, operands: Operands, gradient: Tensor, saved: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return gradients of the ``wanted`` operands, in their shapes and dtypes.

    ``saved`` are projected queries and keys, weights, and the unrounded output.
    """
    # hooks on saved tensors may have changed their dtypes and strides, here and below
    query, key, value, w_q, w_k, w_v = (converted(x, gradient.dtype) for x in operands if x is not None)
    operands = Operands(query, key, value, w_q, w_k, w_v)
    saved = [converted(x, plan.sizes.real).contiguous() for x in saved]
    by_pytorch = operations_intercepted() or not addressable(gradient)
    of_a, of_b, of_w, of_value = (_by_operator if by_pytorch else _by_kernels)(plan, operands, gradient, *saved)
    gradients: list[Tensor | None] = [None, None, of_value, None, None, of_w]
    through = (of_a, query, w_q, plan.query_gradients), (of_b, key, w_k, plan.key_gradients)
    for i, (by, x, w, products) in enumerate(through):  # slot i is query or key, slot 3 + i its weight
        rows, wide_x, wide_w = by.reshape(-1, plan.sizes.h), upcast(x).reshape(-1, x.shape[-1]), upcast(w)
        if wanted[i]:
            gradients[i] = (rows @ wide_w if by_pytorch else products.input(rows, wide_w.contiguous())).reshape(x.shape)
        if wanted[3 + i]:
            gradients[3 + i] = rows.mT @ wide_x if by_pytorch else products.weight(rows, wide_x.contiguous())
    rounded = (x if x is None or x.dtype is value.dtype else x.to(value.dtype) for x in gradients)
    return tuple(x if want else None for x, want in zip(rounded, wanted, strict=False))


def _by_kernels(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor, b: Tensor, weights: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w_v and value."""
    s = plan.sizes
    shape = s.entries, s.n, plan.d
    gradient = upcast(gradient).reshape(shape)
    if plan.forward.mask is not None:
        gradient = zero_empty_rows(gradient, weights, s.m)
    output, gradient = whole_registers(output.reshape(shape)), whole_registers(gradient)
    value = whole_registers(upcast(operands.value).reshape(s.entries, s.m, plan.d))
    of_a, of_b, of_w, of_value = gradient_plan(s).run(
        gradient, a, b, upcast(operands.w_v).contiguous(), value, output, weights
    )
    of_value = of_value if of_value.shape[2] == plan.d else of_value[..., : plan.d]
    return of_a, of_b, of_w, of_value.reshape(operands.value.shape)


def _by_operator(
    plan: Plan, operands: Operands, gradient: Tensor, a: Tensor, b: Tensor, weights: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_by_kernels` through the custom operator, for batched gradients, dispatch modes and subclasses."""
    s = plan.sizes
    a, b, output = (x.view(*s.batch, *x.shape[-2:]) for x in (a, b, output.reshape(s.entries, s.n, plan.d)))
    w_v, value = upcast(operands.w_v), upcast(operands.value)
    return attention_backward_op(upcast(gradient), a, b, w_v, value, output, weights, s.causal)
