"""Calls of the pointwise ("direct") kernels, forward and backward, with plans cached by shape.

Large batches are processed in pieces that stay in the processor's cache, projections included.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive.registration import TWICE
from attnspec.backends.pytorch.kernels.llvm.projection import Projection
from attnspec.backends.pytorch.kernels.llvm.threads import call
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.plans import Plans
from attnspec.backends.pytorch.runtime.recording import recorded
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .direct_gradients import gradients, in_pieces
from .direct_plan import (
    MASK,
    NAN,
    OUTPUT,
    PIECE,
    SCRATCH,
    STRANGE,
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

ONCE = no_second_derivative("additive attention", "direct or llvm", TWICE)

_plans: Plans[tuple[Plan | None]] = Plans()


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """`attend` for projected operands of matching shapes, whose batches broadcast; None also for empty operands."""
    if mask is not None and not addressable(mask):
        return None
    shapes = [a.shape[:-2], b.shape[:-2], value.shape[:-2]]
    batch = broadcast(*shapes, mask.shape[:-2] if mask is not None else ())
    if not batch.numel() * a.shape[-2] * b.shape[-2]:
        return None
    kind = a.shape, b.shape, w_v.shape, value.shape, None if mask is None else mask.shape, causal, a.dtype
    (made,) = _plans.get(kind) or _plans.remember(
        kind, (plan(Operands(a, b, value, None, None, w_v), mask, causal, batch),)
    )
    if made is None:
        a, b, value = (x.expand(*batch, *x.shape[-2:]) for x in (a, b, value))
        mask = None if mask is None else mask.expand(*batch, *mask.shape[-2:])
        return attention(a, b, w_v, value, mask, causal)
    tracked = recorded(a, b, w_v, value)
    return attend(made, Operands(a, b, value, None, None, w_v), mask, tracked)


def attend(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, tracked: bool) -> Tensor | None:
    """Return the output, or None under a mask if NaN was met, perhaps from an excluded key."""
    operands = Operands(*operands)
    value = operands.value
    if mask is not None:
        mask = (mask if mask.shape == plan.mask_shape else mask.expand(plan.mask_shape)).contiguous()
    if tracked:
        output, nan = DirectAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
    elif len(plan.pieces) == 1:
        output, nan, *_ = _forward(plan, operands, _projections(operands), mask, (0, plan.entries))
        output = output.to(value.dtype) if plan.half else output
    else:
        output, nan = _in_pieces(plan, operands, mask)
    return None if nan and mask is not None else output


def _in_pieces(
    plan: Plan, operands: Operands, mask: Tensor | None, kept: Sequence[Tensor] | None = None
) -> tuple[Tensor, bool]:
    """Return the output of a batch in pieces, in the operands' dtype, and whether a NaN was met.

    Projected query and key, and weights, are written to the tensors ``kept``.
    """
    query, key, value, w_q, w_k, w_v = operands
    rows = [x.reshape(plan.entries, *x.shape[-2:]) for x in (query, key, value)]
    first = plan.pieces[0][1]
    project = _projections(Operands(rows[0][:first], rows[1][:first], value, w_q, w_k, w_v))
    masks = mask if mask is None or len(mask.shape) < 3 else mask.flatten(0, -3)
    output = value.new_empty(plan.entries, plan.n, plan.d)
    nan = False
    for start, stop in plan.pieces:
        part = Operands(rows[0][start:stop], rows[1][start:stop], rows[2][start:stop], w_q, w_k, w_v)
        own = masks if masks is None or masks.dim() < 3 or len(masks) == 1 else masks[start:stop]
        into = _NOWHERE if kept is None else [x[start:stop] for x in kept]
        output[start:stop], strange, *_ = _forward(plan, part, project, own, (start, stop), into)
        nan = nan or strange
    return output.view(*plan.batch, plan.n, plan.d), nan


def _kept(plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for a, b and weights of all pieces, which the backward reads, in the dtype of sums."""
    sizes = (plan.n, plan.h), (plan.m, plan.h), (plan.n, plan.m)
    a, b, weights = (torch.empty(plan.entries, *size, dtype=plan.real) for size in sizes)
    return a, b, weights


_NOWHERE = None, None, None
"""No memory to write projections to, and weights are not saved."""

Found: TypeAlias = tuple[Tensor, bool, Tensor, Tensor, Tensor | None]
"""Output, whether a NaN was met, projected query and key, and weights or None."""


Projections: TypeAlias = tuple[Callable[[Tensor, Tensor | None], Tensor], Callable[[Tensor, Tensor | None], Tensor]]
"""Projections of queries and keys, in the dtype of sums; called with a tensor and memory for the result or None."""


def _projections(operands: Operands) -> Projections:
    """Return the projections of the operands, or identities if they are projected already."""
    query, key, _, w_q, w_k, _ = operands
    if w_q is None or w_k is None:
        return _as_given, _as_given
    of_query, of_key = (x.shape[:-1].numel() for x in (query, key))
    return Projection(w_q, of_query), Projection(w_k, of_key)


def _as_given(x: Tensor, _: Tensor | None) -> Tensor:
    return widened(x.resolve_neg())


def _forward(
    plan: Plan, operands: Operands, project: Projections, mask: Tensor | None, part: tuple[int, int],
    into: Sequence[Tensor | None] = _NOWHERE,
) -> Found:  # fmt: skip
    """Run the forward kernel for the entries ``part`` = (start, stop), in the dtype of sums.

    ``into`` is memory for projected query and key and for weights; weights are saved only if it has room for them.
    """
    query, key, value, _, _, w_v = operands
    entries = part[1] - part[0]
    of_a, of_b, weights = into
    a, b = project[0](query, of_a).contiguous(), project[1](key, of_b).contiguous()
    value, w_v = (widened(value) if plan.reads == "real" else value).contiguous(), widened(w_v).contiguous()
    shape = (*plan.batch, plan.n, plan.d) if entries == plan.entries else (entries, plan.n, plan.d)
    output = torch.empty(shape, dtype=a.dtype)
    threads = torch.get_num_threads() if plan.parallel else 1
    scratch = torch.empty(threads * plan.scratch, dtype=a.dtype)
    words = plan.forward_words[:]
    words[TASKS] = entries * plan.n
    words[SCRATCH] = scratch.data_ptr()
    words[A] = a.data_ptr()
    words[B] = b.data_ptr()
    words[W] = w_v.data_ptr()
    words[VALUE] = value.data_ptr()
    words[OUTPUT] = output.data_ptr()
    if mask is not None:
        words[MASK] = mask.data_ptr()
    if weights is not None:
        words[WEIGHTS] = weights.data_ptr()
    words[NAN] = words.buffer_info()[0] + 8 * STRANGE
    call(plan.forward, threads, words)
    return output, words[STRANGE] != 0, a, b, weights


class DirectAttention(torch.autograd.Function):
    """Attention by the direct kernels: returns the output, and whether a NaN was met."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor | None, w_k: Tensor | None, w_v: Tensor,
        mask: Tensor | None, plan: Plan,
    ) -> tuple[Tensor, bool]:  # fmt: skip
        """Save projected operands and weights, and if small, the operands widened to float32."""
        operands = Operands(query, key, value, w_q, w_k, w_v)
        kept: Sequence[Tensor | None] = ()
        if len(plan.pieces) > 1:
            whole = _kept(plan)
            output, nan = _in_pieces(plan, operands, mask, whole)
            found: Sequence[Tensor | None] = whole
        else:
            given = wide(operands, plan.reads) if plan.half and not plan.rounds else operands
            into = None, None, torch.empty(plan.entries, plan.n, plan.m, dtype=plan.real)
            output, nan, *found = _forward(plan, given, _projections(given), mask, (0, plan.entries), into)
            if given is not operands and plan.entries * plan.m * plan.h <= PIECE:
                kept = given
        projected = (None, None) if w_q is None else found[:2]
        ctx.save_for_backward(*operands, *projected, found[2], *kept)
        ctx.plan = plan
        return output.to(value.dtype) if plan.half else output, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Return gradients of the operands that need them."""
        saved = ctx.saved_tensors
        operands, (a, b, weights), wanted = Operands(*saved[:6]), saved[6:9], ctx.needs_input_grad
        kept = Operands(*saved[9:]) if len(saved) > 9 else None

        def of_operands(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            parted = len(ctx.plan.pieces) > 1 or ctx.plan.rounds
            if parted and not intercepted() and all(map(addressable, (gradient, *tensors, weights))):
                return in_pieces(ctx.plan, operands, gradient, a, b, weights, wanted)
            given = kept if kept is not None else wide(operands, ctx.plan.reads) if ctx.plan.half else operands
            made = gradients(ctx.plan, given, gradient, a, b, weights, wanted)
            return tuple(None if x is None else x.to(operands.value.dtype) for x in made) if ctx.plan.half else made

        found = first_order(ONCE, of_operands, gradient, *(x for x in operands if x is not None))
        return *found, None, None
