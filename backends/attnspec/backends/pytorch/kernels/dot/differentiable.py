"""Autograd function of attention: first derivatives by kernels, higher ones by the formula."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.dot.call import Options, Tensors, allowed, as_4d
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

Results: TypeAlias = tuple[Tensor, Tensor | None]
"""Output, and log Σ exp or None."""

Attend: TypeAlias = Callable[..., Results | None]
"""Function of query, key, value and option tensors; it returns None if only the formula is right."""

Gradients: TypeAlias = tuple[Tensor | None, ...]

grad = torch.is_grad_enabled


class Plan(Protocol):
    """Kernels for all calls with the same shapes, strides and options.

    Operands have ``rank`` batch dimensions, see `as_4d`.
    """

    rank: int
    options: Options

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether only the formula is right, and tensors for the backward."""

    def reads(self, operands: Sequence[Tensor], saved: Sequence[Tensor]) -> bool:
        """Return whether saved tensors have the planned layout, which hooks may have changed."""

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], saved: Sequence[Tensor],
        gradient: Tensor | None, logarithms_gradient: Tensor | None, wanted: Sequence[bool],
    ) -> Gradients:  # fmt: skip
        """Gradients of query, key and value, at least those ``wanted``, in their dtypes and shapes."""


def runner(plan: Plan, tracked: bool) -> Attend:
    """Return the function that runs a plan, recorded by autograd if ``tracked``."""
    run: Callable[..., Any] = partial(Attention.apply, plan) if tracked else plan.forward

    def attend(*operands: Tensor | None) -> Results | None:
        output, logarithms, needs_formula, *_ = run(*operands)
        return None if needs_formula else (output, logarithms)

    return attend


class Attention(torch.autograd.Function):
    """Output, log Σ exp or None, and whether only the formula is right."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool]:
        """Run the plan's kernels."""
        output, logarithms, needs_formula, extra = plan.forward(query, key, value, *tensors)
        ctx.save_for_backward(query, key, value, *extra, *tensors)
        ctx.plan, ctx.count = plan, 3 + len(extra)
        ctx.set_materialize_grads(False)
        return output, logarithms, needs_formula

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, logarithms_gradient: Tensor | None, _: None) -> Gradients:
        """Run the plan's kernels for first derivatives in the planned layout, otherwise the formula."""
        plan, saved, count = ctx.plan, ctx.saved_tensors, ctx.count
        operands, extra, tensors, wanted = saved[:3], saved[3:count], saved[count:], ctx.needs_input_grad[1:4]
        if gradient is not None and gradient.is_neg():
            gradient = gradient.resolve_neg()
        if logarithms_gradient is not None:
            logarithms_gradient = logarithms_gradient.resolve_neg()
        incoming = [x for x in (gradient, logarithms_gradient) if x is not None]
        as_planned = all(map(addressable, (*incoming, *operands, *extra))) and plan.reads(operands, extra)
        if grad() or operations_intercepted() or not as_planned:
            gradients = by_formula(plan, operands, Tensors(*tensors), (gradient, logarithms_gradient), wanted)
        else:
            gradients = plan.backward(operands, tensors, extra, gradient, logarithms_gradient, wanted)
        return None, *gradients, *(None for _ in tensors)


def by_formula(
    plan: Plan, operands: Sequence[Tensor], tensors: Tensors, gradients: tuple[Tensor | None, Tensor | None],
    wanted: Sequence[bool],
) -> Gradients:  # fmt: skip
    """Gradients of the ``wanted`` operands by the formula; they can be differentiated again."""
    options, twice = plan.options, torch.is_grad_enabled()
    with torch.enable_grad():
        if not twice:
            operands = [x.detach().requires_grad_(want) for x, want in zip(operands, wanted, strict=True)]
        query, key, value = (as_4d(x, plan.rank) for x in operands)
        attendable = allowed(options, tensors, query, key)
        slopes = None if tensors.slopes is None else tensors.slopes * options.scale
        scoring = Scoring(options.scale, options.softcap, tensors.bias, slopes)
        results = formula.attention(query, key, value, attendable, scoring, tensors.offsets)
        inputs = [x for x, want in zip(operands, wanted, strict=True) if want]
        # logarithms do not depend on values
        pairs = [(x, y) for x, y in zip(results, gradients, strict=True) if y is not None and x.requires_grad]
        outputs = [x for x, _ in pairs]
        weights = [upcast(y).reshape(x.shape) for x, y in pairs]
        if not pairs:
            return tuple(torch.zeros_like(x) if want else None for x, want in zip(operands, wanted, strict=True))
        computed = iter(torch.autograd.grad(outputs, inputs, weights, create_graph=twice, allow_unused=True))
    return tuple(next(computed) if want else None for want in wanted)
