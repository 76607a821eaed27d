"""Calls of the pointwise kernels (path ``pointwise``), forward and backward, with plans cached by shape.

Large batches are processed in pieces that stay in the processor's cache, projections included.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive.registration import TWICE_DIFFERENTIABLE
from attnspec.backends.pytorch.kernels.llvm.projection import Projection
from attnspec.backends.pytorch.kernels.llvm.threads import call
from attnspec.backends.pytorch.runtime.accumulation import upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.plans import Plans
from attnspec.backends.pytorch.runtime.recording import needs_gradients
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

from .pointwise_gradients import gradients, in_pieces
from .pointwise_plan import (
    MASK,
    NAN_ADDRESS,
    NAN_FLAG,
    OUTPUT,
    PIECE,
    SCRATCH,
    TASKS,
    VALUE,
    WEIGHTS,
    A,
    B,
    Operands,
    Plan,
    W,
    plan,
    wide,
)

REFUSE_SECOND_DERIVATIVE = no_second_derivative("additive attention", "pointwise or llvm", TWICE_DIFFERENTIABLE)

_plans: Plans[tuple[Plan | None]] = Plans()
"""Plans in tuples: a remembered None differs from a missing entry."""


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """`attend` for projected operands of matching shapes, whose batches broadcast; None also for empty operands."""
    if mask is not None and not addressable(mask):
        return None
    shapes = [a.shape[:-2], b.shape[:-2], value.shape[:-2]]
    batch = broadcast(*shapes, mask.shape[:-2] if mask is not None else ())
    if not batch.numel() * a.shape[-2] * b.shape[-2]:
        return None
    kind = a.shape, b.shape, w_v.shape, value.shape, None if mask is None else mask.shape, causal, a.dtype
    (cached_plan,) = _plans.get(kind) or _plans.remember(
        kind, (plan(Operands(a, b, value, None, None, w_v), mask, causal, batch),)
    )
    if cached_plan is None:  # an operand broadcasts over part of the batch: there are plans for expanded ones
        a, b, value = (x.expand(*batch, *x.shape[-2:]) for x in (a, b, value))
        mask = None if mask is None else mask.expand(*batch, *mask.shape[-2:])
        return attention(a, b, w_v, value, mask, causal)
    tracked = needs_gradients(a, b, w_v, value)
    return attend(cached_plan, Operands(a, b, value, None, None, w_v), mask, tracked)


def attend(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, tracked: bool) -> Tensor | None:
    """Return the output, or None under a mask if NaN was met. It may come from an excluded key."""
    operands = Operands(*operands)
    value = operands.value
    if mask is not None:
        mask = (mask if mask.shape == plan.mask_shape else mask.expand(plan.mask_shape)).contiguous()
    if tracked:
        output, nan = PointwiseAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
    elif len(plan.pieces) == 1:
        output, nan, *_ = _forward(plan, operands, _projections(operands), mask, (0, plan.entries))
        output = output.to(value.dtype) if plan.half else output
    else:
        output, nan = _in_pieces(plan, operands, mask)
    return None if nan and mask is not None else output


def _in_pieces(
    plan: Plan, operands: Operands, mask: Tensor | None, saved: Sequence[Tensor] | None = None
) -> tuple[Tensor, bool]:
    """Return the output in the operands' dtype, computed in pieces, and whether NaN was met.

    Projected query and key, and weights, are written to the tensors ``saved``.
    """
    query, key, value, w_q, w_k, w_v = operands
    queries, keys, values = (x.reshape(plan.entries, *x.shape[-2:]) for x in (query, key, value))
    _, size = plan.pieces[0]  # the first piece begins at 0, and none is larger
    project = _projections(Operands(queries[:size], keys[:size], value, w_q, w_k, w_v))
    masks = mask if mask is None or len(mask.shape) < 3 else mask.flatten(0, -3)
    output = value.new_empty(plan.entries, plan.n, plan.d)
    nan = False
    for start, stop in plan.pieces:
        part = Operands(queries[start:stop], keys[start:stop], values[start:stop], w_q, w_k, w_v)
        own_mask = masks if masks is None or masks.dim() < 3 or len(masks) == 1 else masks[start:stop]
        into = _NO_MEMORY if saved is None else [x[start:stop] for x in saved]
        output[start:stop], piece_has_nan, *_ = _forward(plan, part, project, own_mask, (start, stop), into)
        nan = nan or piece_has_nan
    return output.view(*plan.batch, plan.n, plan.d), nan


_NO_MEMORY = None, None, None
"""`_forward` allocates projections, and does not save weights."""

Projections: TypeAlias = tuple[Callable[[Tensor, Tensor | None], Tensor], Callable[[Tensor, Tensor | None], Tensor]]
"""Projections of queries and keys, in the dtype of sums; called with a tensor and memory for the result or None."""


def _projections(operands: Operands) -> Projections:
    """Return the projections of the operands, or identities if they are projected already."""
    query, key, _, w_q, w_k, _ = operands
    if w_q is None or w_k is None:
        return _already_projected, _already_projected
    query_rows, key_rows = (x.shape[:-1].numel() for x in (query, key))
    return Projection(w_q, query_rows), Projection(w_k, key_rows)


def _already_projected(x: Tensor, _: Tensor | None) -> Tensor:
    return upcast(x.resolve_neg())


def _forward(
    plan: Plan, operands: Operands, project: Projections, mask: Tensor | None, part: tuple[int, int],
    into: Sequence[Tensor | None] = _NO_MEMORY,
) -> tuple[Tensor, bool, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the output of entries ``part`` = (start, stop), in the dtype of sums.

    Then follow whether a NaN was met, projected query and key, and weights or None. ``into`` is memory for projected
    query and key and for weights; weights are saved only if it has room for them.
    """
    query, key, value, _, _, w_v = operands
    (start, stop), (project_query, project_key), (a_memory, b_memory, weights) = part, project, into
    entries = stop - start
    a, b = project_query(query, a_memory).contiguous(), project_key(key, b_memory).contiguous()
    value, w_v = (upcast(value) if plan.reads == "real" else value).contiguous(), upcast(w_v).contiguous()
    shape = (*plan.batch, plan.n, plan.d) if entries == plan.entries else (entries, plan.n, plan.d)
    output = torch.empty(shape, dtype=a.dtype)
    threads = torch.get_num_threads() if plan.parallel else 1
    scratch = torch.empty(threads * plan.scratch, dtype=a.dtype)
    buffer = plan.forward_buffer[:]
    buffer[TASKS], buffer[SCRATCH] = entries * plan.n, scratch.data_ptr()
    buffer[A], buffer[B], buffer[W] = a.data_ptr(), b.data_ptr(), w_v.data_ptr()
    buffer[VALUE], buffer[OUTPUT] = value.data_ptr(), output.data_ptr()
    if mask is not None:
        buffer[MASK] = mask.data_ptr()
    if weights is not None:
        buffer[WEIGHTS] = weights.data_ptr()
    buffer[NAN_ADDRESS] = buffer.buffer_info()[0] + 8 * NAN_FLAG  # the buffer's own last slot
    call(plan.forward, threads, buffer)
    return output, buffer[NAN_FLAG] != 0, a, b, weights


class PointwiseAttention(torch.autograd.Function):
    """Attention by the pointwise kernels: the output, and whether a NaN was met."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor | None, w_k: Tensor | None, w_v: Tensor,
        mask: Tensor | None, plan: Plan,
    ) -> tuple[Tensor, bool]:  # fmt: skip
        """Save projected operands and weights, and if small, the operands widened to float32.

        Operands that were passed projected are saved once.
        """
        operands = Operands(query, key, value, w_q, w_k, w_v)
        wide_operands: Sequence[Tensor | None] = ()
        if len(plan.pieces) > 1:
            sizes = (plan.n, plan.h), (plan.m, plan.h), (plan.n, plan.m)  # of a, b and weights, for the backward
            memory = [torch.empty(plan.entries, *size, dtype=plan.real) for size in sizes]
            output, nan = _in_pieces(plan, operands, mask, memory)
            saved: Sequence[Tensor | None] = memory
        else:
            inputs = wide(operands, plan.reads) if plan.half and not plan.rounds else operands
            into = None, None, torch.empty(plan.entries, plan.n, plan.m, dtype=plan.real)
            output, nan, *saved = _forward(plan, inputs, _projections(inputs), mask, (0, plan.entries), into)
            if inputs is not operands and plan.entries * plan.m * plan.h <= PIECE:
                wide_operands = inputs
        projected = (None, None) if w_q is None else saved[:2]
        ctx.save_for_backward(*operands, *projected, saved[2], *wide_operands)
        ctx.plan = plan
        return output.to(value.dtype) if plan.half else output, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Return gradients of the operands that need them."""
        query, key, value, w_q, w_k, w_v, a, b, weights, *wide_operands = ctx.saved_tensors
        operands, wanted = Operands(query, key, value, w_q, w_k, w_v), ctx.needs_input_grad
        saved_wide = Operands(*wide_operands) if wide_operands else None

        def of_operands(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            in_parts = len(ctx.plan.pieces) > 1 or ctx.plan.rounds
            if in_parts and not operations_intercepted() and all(map(addressable, (gradient, *tensors, weights))):
                return in_pieces(ctx.plan, operands, gradient, a, b, weights, wanted)
            inputs = saved_wide or (wide(operands, ctx.plan.reads) if ctx.plan.half else operands)
            parts = gradients(ctx.plan, inputs, gradient, a, b, weights, wanted)
            return tuple(None if x is None else x.to(operands.value.dtype) for x in parts) if ctx.plan.half else parts

        results = first_order(REFUSE_SECOND_DERIVATIVE, of_operands, gradient, *(x for x in operands if x is not None))
        return *results, None, None
