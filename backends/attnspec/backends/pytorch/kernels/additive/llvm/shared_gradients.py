"""Gradients of a whole call of the kernels that share exponentials, through its projections."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, get_num_threads

from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.plans import Plans
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .attention import whole_registers
from .attention_gradients import attention_gradients, of_attendable
from .direct_plan import Operands
from .operators import attention_backward_op
from .pages import converted
from .shared_gradient_steps import GradientSteps, gradient_steps

if TYPE_CHECKING:
    from .shared import Plan

_steps: Plans[GradientSteps] = Plans()


def gradients(
    plan: "Plan", operands: Operands, gradient: Tensor, kept: Sequence[Tensor], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of the operands that are wanted, in their shapes and dtypes, from that of the output.

    What is ``kept`` are projected queries and keys, weights, and the output before it was rounded.
    """
    # hooks on saved tensors may have changed their dtypes and strides, here and below
    query, key, value, w_q, w_k, w_v = (converted(x, gradient.dtype) for x in operands if x is not None)
    operands = Operands(query, key, value, w_q, w_k, w_v)
    kept = [converted(x, plan.sizes.real).contiguous() for x in kept]
    plainly = intercepted() or not addressable(gradient)
    of_a, of_b, of_w, of_value = (_by_operator if plainly else _by_kernels)(plan, operands, gradient, *kept)
    found: list[Tensor | None] = [None, None, of_value, None, None, of_w]
    through = (of_a, query, w_q, plan.through_query), (of_b, key, w_k, plan.through_key)
    for i, (by, x, w, products) in enumerate(through):
        rows, wide_x, wide_w = by.reshape(-1, plan.sizes.h), widened(x).reshape(-1, x.shape[-1]), widened(w)
        if wanted[i]:
            found[i] = (rows @ wide_w if plainly else products.input(rows, wide_w.contiguous())).reshape(x.shape)
        if wanted[3 + i]:
            found[3 + i] = rows.mT @ wide_x if plainly else products.weight(rows, wide_x.contiguous())
    rounded = (x if x is None or x.dtype is value.dtype else x.to(value.dtype) for x in found)
    return tuple(x if want else None for x, want in zip(rounded, wanted, strict=False))


def _by_kernels(
    plan: "Plan", operands: Operands, gradient: Tensor, a: Tensor, b: Tensor, weights: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, b, w_v and value."""
    s = plan.sizes
    shape = s.entries, s.n, plan.d
    gradient = widened(gradient).reshape(shape)
    if plan.forward.mask is not None:
        gradient = of_attendable(gradient, weights, s.m)
    output, gradient = whole_registers(output.reshape(shape)), whole_registers(gradient)
    value = whole_registers(widened(operands.value).reshape(s.entries, s.m, plan.d))
    given = gradient, a, b, widened(operands.w_v).contiguous(), value, output, weights
    kind = s.entries, s.n, s.m, s.h, s.d, s.causal, s.real, get_num_threads()
    steps = _steps.get(kind)
    if steps is None:
        steps = _steps.remember(kind, gradient_steps(s))
    found = steps.run(*given)
    of_a, of_b, of_w, of_value = found or attention_gradients(*given, s.index, s.index, s.index, s.causal)
    of_value = of_value if of_value.shape[2] == plan.d else of_value[..., : plan.d]
    return of_a, of_b, of_w, of_value.reshape(operands.value.shape)


def _by_operator(
    plan: "Plan", operands: Operands, gradient: Tensor, a: Tensor, b: Tensor, weights: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for what kernels cannot read: batched gradients, dispatch modes, subclasses."""
    shape = plan.sizes.entries, plan.sizes.n, plan.d
    a, b, output = (x.view(*plan.batch, *x.shape[-2:]) for x in (a, b, output.reshape(shape)))
    found: tuple[Tensor, Tensor, Tensor, Tensor] = attention_backward_op(
        widened(gradient), a, b, widened(operands.w_v), widened(operands.value), output, weights, plan.sizes.causal
    )
    return found
