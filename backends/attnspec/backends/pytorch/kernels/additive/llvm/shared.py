"""A whole call by the kernels that share exponentials, projections included, from one plan."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.regular import inspector
from attnspec.backends.pytorch.kernels.llvm.matmul import Multiply
from attnspec.backends.pytorch.kernels.llvm.projection import ProjectionGradients, planned
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class

from . import pages, shared_gradients
from .attention import MaskPlaces, MaskRows, kept_weights, whole_registers
from .attention import attend as attend_rows
from .direct import ONCE
from .direct_plan import Operands
from .layout import Factors, Weight, entry_index, lanes
from .shared_steps import ForwardSteps, Sizes, forward_steps


@plan_class
class Plan:
    """What all calls with the same shapes and dtypes have in common.

    ``d`` counts features of values as they are given; ``by_query`` and ``by_key`` project, and gradients go
    ``through`` these projections.
    """

    batch: torch.Size
    sizes: Sizes
    d: int
    forward: ForwardSteps
    by_query: Multiply | None
    by_key: Multiply | None
    through_query: ProjectionGradients
    through_key: ProjectionGradients
    are_moderate: Callable[[Tensor], bool] | None


def serves(operands: Operands, batch: torch.Size) -> bool:
    """Whether all operands lie in memory as they are read, none of them empty, each with the whole batch."""
    query, key, value, w_q, w_k, w_v = operands
    whole = all(x.shape[:-2] == batch for x in (query, key, value))
    given = [x for x in (query, key, value, w_q, w_k, w_v) if x is not None]
    lies = len(given) == len(operands) and all(x.is_contiguous() and x.numel() for x in given)
    return whole and lies


def plan(operands: Operands, mask: Tensor | None, causal: bool, batch: torch.Size) -> Plan:
    """The plan of calls that are served."""
    query, key, value, _, _, w_v = operands
    entries, n, m, h = batch.numel(), query.shape[-2], key.shape[-2], w_v.shape[0]
    like, d = widened(value[..., :0]), value.shape[-1]
    products = [(x.shape[:-1].numel(), h, x.shape[-1]) for x in (query, key)]
    by_query, by_key = (planned(*own, value.dtype) for own in products)
    through_query, through_key = (ProjectionGradients(*own, like.dtype) for own in products)
    sizes = Sizes(entries, n, m, h, d + -d % lanes(like), causal, like.dtype, entry_index(batch, batch))
    places = None if mask is None else MaskPlaces.of(mask, batch, n, m)
    return Plan(
        batch, sizes, d, forward_steps(sizes, places), by_query, by_key, through_query, through_key, inspector((value,))
    )


def attend(plan: Plan, operands: Operands, mask: Tensor | None, tracked: bool) -> Tensor | None:
    """The output (*batch, n, d_v) in the dtype of the operands; None where a value is not finite."""
    value = operands.value.detach()
    if not ((plan.are_moderate is not None and plan.are_moderate(value)) or bool(value.isfinite().all())):
        return None
    places = plan.forward.mask
    rows = None if mask is None or places is None else places.rows(mask)
    if tracked:
        found: Tensor = SharedAttention.apply(*operands, rows, plan)  # type: ignore[no-untyped-call]
        return found
    s = plan.sizes
    like = value.new_empty(0, dtype=s.real)
    # in this order the memory of the steps begins on a cache line
    _held, (memory, a, b) = pages.kept_parts(
        "additive", like, (plan.forward.size // like.element_size(), s.entries * s.n * s.h, s.entries * s.m * s.h)
    )
    return _forward(plan, operands, rows, a, b, memory, None)[0]


def _forward(
    plan: Plan, operands: Operands, mask: MaskRows | None, a: Tensor, b: Tensor, memory: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The output, and the same (entries, n, d) before it is rounded; a and b are written, and weights if given."""
    query, key, value, w_q, w_k, w_v = operands
    assert w_q is not None
    assert w_k is not None
    s = plan.sizes
    a, b = a.view(s.entries, s.n, s.h), b.view(s.entries, s.m, s.h)
    for multiply, x, w, projected in ((plan.by_query, query, w_q, a), (plan.by_key, key, w_k, b)):
        if multiply is None:
            torch.mm(widened(x).view(-1, x.shape[-1]), widened(w).mT, out=projected.view(-1, s.h))
        else:
            multiply(x, w, projected)
    values, w_v = whole_registers(widened(value).view(s.entries, s.m, plan.d)), widened(w_v)
    # not a view, which could not be changed in place where gradients are recorded
    output = value.new_empty(*plan.batch, s.n, plan.d)
    rows, direct = output.view(s.entries, s.n, plan.d), s.d == plan.d and value.dtype is s.real
    found = rows if direct else values.new_empty(s.entries, s.n, s.d)
    if not plan.forward.run(a, b, w_v, values, mask, found, weights, memory):
        weight = Weight.of(w_v)
        keys = Factors.of_keys(b, weight.flip)
        attend_rows(a, keys, weight, values, s.index, s.index, s.index, mask, s.causal, weights, output=found)
    if direct:
        return output, rows
    rows.copy_(found[..., : plan.d])
    return output, found[..., : plan.d]


class SharedAttention(torch.autograd.Function):
    """The output, with gradients by the kernels."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
        mask: MaskRows | None, plan: Plan,
    ) -> Tensor:  # fmt: skip
        """Keep projected queries and keys, the weights, and what is not rounded of the output."""
        operands, s = Operands(query, key, value, w_q, w_k, w_v), plan.sizes
        like = value.new_empty(0, dtype=s.real)
        a, b = like.new_empty(s.entries, s.n, s.h), like.new_empty(s.entries, s.m, s.h)
        weights = kept_weights(like, s.entries, s.n, s.m, s.causal)
        _held, memory = pages.kept_bytes("additive", like, plan.forward.size)
        output, wide = _forward(plan, operands, mask, a, b, memory, weights)
        ctx.save_for_backward(*operands, a, b, weights, output if value.dtype is s.real else wide)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the operands that need them."""
        saved = ctx.saved_tensors
        plan, wanted = ctx.plan, ctx.needs_input_grad

        def of_operands(gradient: Tensor, *operands: Tensor) -> tuple[Tensor | None, ...]:
            return shared_gradients.gradients(plan, Operands(*operands), gradient, saved[6:], wanted)

        return *first_order(ONCE, of_operands, gradient, *saved[:6]), None, None
