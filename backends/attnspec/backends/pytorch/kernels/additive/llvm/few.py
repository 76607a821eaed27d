"""Calls of the direct kernels with few rows; PyTorch only allocates memory and rounds results.

Intermediate results share one allocation, in this order: a, b, value, w_v, weights, scratch memory.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.step_arguments import STORED
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, Compiled
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .direct import ONCE
from .direct_gradients import gradients as direct_gradients
from .direct_kernels import Backward, backward_kernel
from .direct_plan import MASK, NAN, OUTPUT, SCRATCH, STRANGE, TASKS, VALUE, WEIGHTS, A, B, Operands, W, wide
from .direct_plan import Plan as DirectPlan
from .few_kernels import Gradients, Projection, Stored, Widths, gradient_kernel, projection_kernel

FEW = 2**19 if HAS_512_BITS else 2**17
"""Most multiply-adds of all projections; below it, a matrix product's call overhead exceeds these kernels' time."""


@plan_class
class Plan:
    """The direct kernels' plan, argument slots of the projection kernels, and offsets of the intermediate results.

    ``places`` are byte offsets of a, b, value, w_v, weights and scratch memory, and the end; ``by`` those of gradients
    of a, b, value and w_v, of scratch memory, and the end.
    """

    direct: DirectPlan
    projection: "Compiled[Projection]"
    projection_words: "array[int]"
    gradients: "Compiled[Gradients]"
    gradient_words: "array[int]"
    places: tuple[int, ...]
    by: tuple[int, ...]
    real: torch.dtype
    size: int


def plan(operands: Operands, whole: DirectPlan) -> Plan | None:
    """Return the plan of a call; None for many rows, and for shared or non-contiguous operands."""
    query, key, _, w_q, w_k, _ = operands
    if w_q is None or w_k is None or any(whole.shared) or whole.reads != STORED[torch.float32]:
        return None
    e, n, m, h, d = whole.entries, whole.n, whole.m, whole.h, whole.d
    d_q, d_k = query.shape[-1], key.shape[-1]
    if (
        whole.parallel
        or e * h * (n * d_q + m * d_k) > FEW
        or not all(x.is_contiguous() for x in operands if x is not None)
    ):
        return None
    stored, size = STORED[query.dtype], whole.bits // 8
    widths = {"queries": e * n, "keys": e * m, "d_q": d_q, "d_k": d_k, "h": h, "values": e * m * d}
    projection_words = array("q", bytes(8 * (LEADING + Projection.words)))
    gradient_words = array("q", bytes(8 * (LEADING + Gradients.words)))
    for name, number in widths.items():
        projection_words[LEADING + Projection.widths + getattr(Widths, name)] = number
        gradient_words[LEADING + Gradients.widths + getattr(Widths, name)] = number
    gradient_words[LEADING + Gradients.entries] = e
    places = _ends([e * n * h, e * m * h, e * m * d, h, e * n * m, whole.scratch], size)
    by = _ends([e * n * h, e * m * h, e * m * d, e * h, whole.scratch], size)
    return Plan(
        whole, projection_kernel(whole.bits, stored), projection_words, gradient_kernel(whole.bits, stored),
        gradient_words, places, by, torch.float64 if whole.bits == 64 else torch.float32, size,
    )  # fmt: skip


def _ends(counts: Sequence[int], size: int) -> tuple[int, ...]:
    """Return byte offsets of consecutive parts of `counts` elements, and the end."""
    places = [0]
    for count in counts:
        places.append(places[-1] + count * size)
    return tuple(places)


def attend(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, tracked: bool) -> Tensor | None:
    """Return the output, or None under a mask if NaN was met, perhaps from an excluded key."""
    if mask is not None:
        shape = plan.direct.mask_shape
        mask = (mask if mask.shape == shape else mask.expand(shape)).contiguous()
    if tracked:
        output, nan = FewAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
    else:
        output, nan, _ = _forward(plan, operands, mask, False)
    return None if nan and mask is not None else output


_GIVEN = tuple(
    LEADING + Projection.given + word
    for word in (Stored.query, Stored.key, Stored.value, Stored.w_q, Stored.w_k, Stored.w_v)
)
_A, _B, _VALUE, _W = (LEADING + word for word in (Projection.a, Projection.b, Projection.value, Projection.w))


def _forward(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, save: bool) -> tuple[Tensor, bool, Tensor]:
    """Return the output, whether a NaN was met, and the memory of intermediate results for the backward."""
    query, key, value, w_q, w_k, w_v = operands
    whole, places = plan.direct, plan.places
    memory = torch.empty(places[-1] // plan.size, dtype=plan.real)
    output = torch.empty((*whole.batch, whole.n, whole.d), dtype=plan.real)
    address = memory.data_ptr()
    words = plan.projection_words[:]
    words[_GIVEN[0]], words[_GIVEN[1]], words[_GIVEN[2]] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    words[_GIVEN[3]], words[_GIVEN[4]], words[_GIVEN[5]] = w_q.data_ptr(), w_k.data_ptr(), w_v.data_ptr()
    words[_A], words[_B], words[_VALUE], words[_W] = (
        address, address + places[1], address + places[2], address + places[3],
    )  # fmt: skip
    plan.projection.call(words.buffer_info()[0])
    forward = whole.forward_words[:]
    forward[TASKS] = whole.entries * whole.n
    forward[A], forward[B], forward[VALUE], forward[W] = words[_A], words[_B], words[_VALUE], words[_W]
    forward[OUTPUT], forward[SCRATCH] = output.data_ptr(), address + places[5]
    if mask is not None:
        forward[MASK] = mask.data_ptr()
    if save:
        forward[WEIGHTS] = address + places[4]
    start = forward.buffer_info()[0]
    forward[NAN] = start + 8 * STRANGE
    whole.forward.call(start)
    return output if output.dtype is value.dtype else output.to(value.dtype), forward[STRANGE] != 0, memory


class FewAttention(torch.autograd.Function):
    """Attention of few rows: returns the output, and whether a NaN was met."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor,
        mask: Tensor | None, plan: Plan,
    ) -> tuple[Tensor, bool]:  # fmt: skip
        """Save the operands and the memory of intermediate results."""
        operands = query, key, value, w_q, w_k, w_v
        output, nan, memory = _forward(plan, operands, mask, True)
        ctx.save_for_backward(*operands, memory)
        ctx.plan = plan
        return output, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Return gradients of the operands that need them."""
        *operands, memory = ctx.saved_tensors

        def gradients(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.plan, tensors, gradient, memory)

        wanted = ctx.needs_input_grad
        found = first_order(ONCE, gradients, gradient, *operands)
        return *(x if want else None for x, want in zip(found, wanted, strict=False)), None, None


def _gradients(plan: Plan, operands: Sequence[Tensor], gradient: Tensor, memory: Tensor) -> tuple[Tensor | None, ...]:
    whole, places, by = plan.direct, plan.places, plan.by
    # hooks on saved tensors may have changed their strides and classes
    if intercepted() or not all(addressable(x) and x.is_contiguous() for x in (*operands, memory)):
        return _by_pytorch(plan, Operands(*operands), gradient, memory)
    if not addressable(gradient):
        gradient = gradient.resolve_neg().clone()
        if not addressable(gradient):
            return _by_pytorch(plan, Operands(*operands), gradient, memory)
    gradient = gradient.to(plan.real).contiguous()
    found = [torch.empty_like(x) for x in operands]
    sums = torch.empty(by[-1] // plan.size, dtype=plan.real)
    start, target = memory.data_ptr(), sums.data_ptr()
    words = whole.backward_words[:]
    for place, number in zip(_BACKWARD, places, strict=False):
        words[place] = start + number
    for place, number in zip(_BY, by, strict=False):
        words[place] = target + number
    words[_B_GRADIENT] = gradient.data_ptr()
    backward_kernel(whole.bits).call(words.buffer_info()[0])
    words = plan.gradient_words[:]
    for i, (own, x) in enumerate(zip(operands, found, strict=True)):
        words[_G_GIVEN + i], words[_G_FOUND + i] = own.data_ptr(), x.data_ptr()
    for place, number in zip(_G_BY, by, strict=False):
        words[place] = target + number
    plan.gradients.call(words.buffer_info()[0])
    return tuple(found)


_BACKWARD = tuple(LEADING + word for word in (Backward.a, Backward.b, Backward.value, Backward.w, Backward.weights))
_BY = tuple(
    LEADING + word
    for word in (Backward.grad_a, Backward.grad_b, Backward.grad_value, Backward.grad_w, Backward.scratch)
)
_B_GRADIENT = LEADING + Backward.grad_output
_G_GIVEN, _G_FOUND = LEADING + Gradients.given, LEADING + Gradients.found
_G_BY = tuple(LEADING + word for word in (Gradients.by_a, Gradients.by_b, Gradients.by_value, Gradients.by_w))


def _by_pytorch(plan: Plan, operands: Operands, gradient: Tensor, memory: Tensor) -> tuple[Tensor | None, ...]:
    """`_gradients` by PyTorch operations, for tensors that kernels cannot read."""
    whole = plan.direct
    e, n, m, h = whole.entries, whole.n, whole.m, whole.h
    ends = [place // plan.size for place in plan.places]
    a, b = memory[: ends[1]].view(e, n, h), memory[ends[1] : ends[2]].view(e, m, h)
    weights = memory[ends[4] : ends[5]].view(e, n, m)
    given = wide(operands, whole.reads) if whole.half else operands
    found = direct_gradients(whole, given, gradient, a, b, weights, (True,) * 6)
    return tuple(None if x is None else x.to(operands.value.dtype) for x in found)
