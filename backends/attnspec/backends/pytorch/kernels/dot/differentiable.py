"""Autograd function of attention: first derivatives by kernels, higher ones by the formula."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels import formula
from attnspec.backends.pytorch.kernels.dot.call import Options, Tensors, allowed, as_four
from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

Results: TypeAlias = tuple[Tensor, Tensor | None]
"""Output, and log Σ exp if wanted."""

Attend: TypeAlias = Callable[..., Results | None]
"""Function of query, key, value and option tensors; it returns None if only the formula is right."""

Gradients: TypeAlias = tuple[Tensor | None, ...]

grad = torch.is_grad_enabled


class Plan(Protocol):
    """Kernels for all calls with the same shapes, strides and options.

    Operands have ``rank`` batch dimensions, see `as_four`.
    """

    rank: int
    options: Options

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether only the formula is right, and tensors for the backward."""

    def reads(self, operands: Sequence[Tensor], kept: Sequence[Tensor]) -> bool:
        """Return whether saved tensors have the planned layout, which hooks may have changed."""

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], kept: Sequence[Tensor],
        gradient: Tensor | None, of_logarithms: Tensor | None, wanted: Sequence[bool],
    ) -> Gradients:  # fmt: skip
        """Gradients of query, key and value, at least those ``wanted``, in their dtypes and shapes."""


def attending(plan: Plan, tracked: bool) -> Attend:
    """Return the function that runs a plan, recorded by autograd if ``tracked``."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Results | None:
        output, logarithms, strange, _ = plan.forward(query, key, value, *tensors)
        return None if strange else (output, logarithms)

    def attend_and_record(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None) -> Results | None:
        output, logarithms, strange = apply(plan, query, key, value, *tensors)
        return None if strange else (output, logarithms)

    apply: Callable[..., tuple[Tensor, Tensor | None, bool]] = Attention.apply
    return attend_and_record if tracked else attend


class Attention(torch.autograd.Function):
    """Autograd function of output, log Σ exp if wanted, and whether only the formula is right."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool]:
        """Run the plan's kernels."""
        output, logarithms, strange, kept = plan.forward(query, key, value, *tensors)
        ctx.save_for_backward(query, key, value, *kept, *tensors)
        ctx.plan, ctx.count = plan, 3 + len(kept)
        ctx.set_materialize_grads(False)
        return output, logarithms, strange

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_logarithms: Tensor | None, _: None) -> Gradients:
        """Run the plan's kernels for first derivatives of planned layouts, otherwise the formula."""
        plan, saved, count = ctx.plan, ctx.saved_tensors, ctx.count
        operands, kept, tensors, wanted = saved[:3], saved[3:count], saved[count:], ctx.needs_input_grad[1:4]
        if gradient is not None and gradient.is_neg():
            gradient = gradient.resolve_neg()
        if of_logarithms is not None:
            of_logarithms = of_logarithms.resolve_neg()
        given = [x for x in (gradient, of_logarithms) if x is not None]
        as_planned = all(map(addressable, (*given, *operands, *kept))) and plan.reads(operands, kept)
        if grad() or intercepted() or not as_planned:
            found = by_formula(plan, operands, Tensors(*tensors), (gradient, of_logarithms), wanted)
        else:
            found = plan.backward(operands, tensors, kept, gradient, of_logarithms, wanted)
        return None, *found, *(None for _ in tensors)


def by_formula(
    plan: Plan, operands: Sequence[Tensor], tensors: Tensors, gradients: tuple[Tensor | None, Tensor | None],
    wanted: Sequence[bool],
) -> Gradients:  # fmt: skip
    """Gradients of the ``wanted`` operands by the formula; they can be differentiated again."""
    options, again = plan.options, torch.is_grad_enabled()
    with torch.enable_grad():
        if not again:
            operands = [x.detach().requires_grad_(want) for x, want in zip(operands, wanted, strict=True)]
        query, key, value = (as_four(x, plan.rank) for x in operands)
        seen = allowed(options, tensors, query.shape[-2], key.shape[-2], query.device)
        slopes = None if tensors.slopes is None else tensors.slopes * options.scale
        scoring = Scoring(options.scale, options.softcap, tensors.bias, slopes)
        results = formula.attention(query, key, value, seen, scoring)
        asked = [x for x, want in zip(operands, wanted, strict=True) if want]
        # logarithms do not depend on values
        pairs = [(x, y) for x, y in zip(results, gradients, strict=True) if y is not None and x.requires_grad]
        outputs = [x for x, _ in pairs]
        weights = [widened(y).reshape(x.shape) for x, y in pairs]
        if not pairs:
            return tuple(torch.zeros_like(x) if want else None for x, want in zip(operands, wanted, strict=True))
        found = iter(torch.autograd.grad(outputs, asked, weights, create_graph=again, allow_unused=True))
    return tuple(next(found) if want else None for want in wanted)
