"""Calls of the pointwise kernels with few rows; PyTorch only allocates memory and rounds results.

Intermediate results share one allocation, in this order: a, b, value, w_v, weights, scratch memory.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.decode_arguments import STORED
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, buffer_slots
from attnspec.backends.pytorch.kernels.llvm.machine_code import HAS_512_BITS, Compiled
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.transforms import addressable, operations_intercepted

from .pointwise import REFUSE_SECOND_DERIVATIVE
from .pointwise_gradients import gradients as gradients_of_pointwise
from .pointwise_kernels import Backward, backward_kernel
from .pointwise_plan import MASK, NAN_ADDRESS, NAN_FLAG, OUTPUT, SCRATCH, TASKS, VALUE, WEIGHTS, A, B, Operands, W, wide
from .pointwise_plan import Plan as PointwisePlan
from .small_kernels import Gradients, Projection, Stored, Widths, gradient_kernel, projection_kernel

MOST_WORK = 2**19 if HAS_512_BITS else 2**17
"""Most multiply-adds of all projections; below it, a matrix product's call overhead exceeds these kernels' time."""


@plan_class
class Plan:
    """The pointwise kernels' plan, argument buffers of the projection kernels, and offsets of intermediate results.

    ``offsets`` are byte offsets of a, b, value, w_v, weights and scratch memory, then the end. ``gradient_offsets``
    are those of the gradients of a, b, value and w_v, and of scratch memory, then the end. ``size`` is the bytes of a
    number in them, in the dtype of sums.
    """

    pointwise: PointwisePlan
    projection: "Compiled[Projection]"
    projection_buffer: "array[int]"
    gradients: "Compiled[Gradients]"
    gradient_buffer: "array[int]"
    offsets: tuple[int, ...]
    gradient_offsets: tuple[int, ...]
    size: int


def plan(operands: Operands, whole: PointwisePlan) -> Plan | None:
    """Return the plan of a call; None for many rows, and for shared or non-contiguous operands."""
    query, key, _, w_q, w_k, _ = operands
    if w_q is None or w_k is None or any(whole.shared) or whole.reads != STORED[torch.float32]:
        return None
    e, n, m, h, d = whole.entries, whole.n, whole.m, whole.h, whole.d
    d_q, d_k = query.shape[-1], key.shape[-1]
    if (
        whole.parallel
        or e * h * (n * d_q + m * d_k) > MOST_WORK
        or not all(x.is_contiguous() for x in operands if x is not None)
    ):
        return None
    stored, size = STORED[query.dtype], whole.bits // 8
    widths = {"queries": e * n, "keys": e * m, "d_q": d_q, "d_k": d_k, "h": h, "values": e * m * d}
    projection_buffer = array("q", bytes(8 * (LEADING + Projection.slots)))
    gradient_buffer = array("q", bytes(8 * (LEADING + Gradients.slots)))
    for name, number in widths.items():
        projection_buffer[LEADING + Projection.widths + getattr(Widths, name)] = number
        gradient_buffer[LEADING + Gradients.widths + getattr(Widths, name)] = number
    gradient_buffer[LEADING + Gradients.entries] = e
    offsets = _offsets([e * n * h, e * m * h, e * m * d, h, e * n * m, whole.scratch], size)
    gradient_offsets = _offsets([e * n * h, e * m * h, e * m * d, e * h, whole.scratch], size)
    return Plan(
        whole, projection_kernel(whole.bits, stored), projection_buffer, gradient_kernel(whole.bits, stored),
        gradient_buffer, offsets, gradient_offsets, size,
    )  # fmt: skip


def _offsets(counts: Sequence[int], size: int) -> tuple[int, ...]:
    """Return byte offsets of consecutive parts of `counts` elements, and the end."""
    return tuple(accumulate((count * size for count in counts), initial=0))


def attend(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, tracked: bool) -> Tensor | None:
    """Return the output, or None under a mask if NaN was met. It may come from an excluded key."""
    if mask is not None:
        shape = plan.pointwise.mask_shape
        mask = (mask if mask.shape == shape else mask.expand(shape)).contiguous()
    if tracked:
        output, nan = SmallAttention.apply(*operands, mask, plan)  # type: ignore[no-untyped-call]
    else:
        output, nan, _ = _forward(plan, operands, mask, False)
    return None if nan and mask is not None else output


_QUERY, _KEY, _STORED_VALUE, _W_Q, _W_K, _W_V = (
    LEADING + Projection.operands + slot
    for slot in (Stored.query, Stored.key, Stored.value, Stored.w_q, Stored.w_k, Stored.w_v)
)
_A, _B, _VALUE, _W = buffer_slots(Projection.a, Projection.b, Projection.value, Projection.w)


def _forward(plan: Plan, operands: tuple[Any, ...], mask: Tensor | None, save: bool) -> tuple[Tensor, bool, Tensor]:
    """Return the output, whether NaN was met, and intermediate results for the backward."""
    query, key, value, w_q, w_k, w_v = operands
    whole, (of_a, of_b, of_value, of_w, of_weights, of_scratch, end) = plan.pointwise, plan.offsets
    memory = torch.empty(end // plan.size, dtype=whole.real)
    output = torch.empty((*whole.batch, whole.n, whole.d), dtype=whole.real)
    address = memory.data_ptr()
    buffer = plan.projection_buffer[:]
    buffer[_QUERY], buffer[_KEY], buffer[_STORED_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    buffer[_W_Q], buffer[_W_K], buffer[_W_V] = w_q.data_ptr(), w_k.data_ptr(), w_v.data_ptr()
    buffer[_A], buffer[_B] = address + of_a, address + of_b
    buffer[_VALUE], buffer[_W] = address + of_value, address + of_w
    plan.projection.call(buffer.buffer_info()[0])
    forward = whole.forward_buffer[:]
    forward[TASKS] = whole.entries * whole.n
    forward[A], forward[B], forward[VALUE], forward[W] = buffer[_A], buffer[_B], buffer[_VALUE], buffer[_W]
    forward[OUTPUT], forward[SCRATCH] = output.data_ptr(), address + of_scratch
    if mask is not None:
        forward[MASK] = mask.data_ptr()
    if save:
        forward[WEIGHTS] = address + of_weights
    start = forward.buffer_info()[0]
    forward[NAN_ADDRESS] = start + 8 * NAN_FLAG  # the buffer's own last slot
    whole.forward.call(start)
    return output if output.dtype is value.dtype else output.to(value.dtype), forward[NAN_FLAG] != 0, memory


class SmallAttention(torch.autograd.Function):
    """Attention of few rows: the output, and whether a NaN was met."""

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
        computed = first_order(REFUSE_SECOND_DERIVATIVE, gradients, gradient, *operands)
        return *(x if want else None for x, want in zip(computed, wanted, strict=False)), None, None


def _gradients(plan: Plan, operands: Sequence[Tensor], gradient: Tensor, memory: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the operands: the pointwise kernel from the output to the projections, then to the operands."""
    whole, gradient_offsets = plan.pointwise, plan.gradient_offsets
    # hooks on saved tensors may have changed their strides and classes
    if operations_intercepted() or not all(addressable(x) and x.is_contiguous() for x in (*operands, memory)):
        return _by_pytorch(plan, Operands(*operands), gradient, memory)
    if not addressable(gradient):
        gradient = gradient.resolve_neg().clone()
        if not addressable(gradient):
            return _by_pytorch(plan, Operands(*operands), gradient, memory)
    gradient = gradient.to(whole.real).contiguous()
    gradients = [torch.empty_like(x) for x in operands]
    sums = torch.empty(gradient_offsets[-1] // plan.size, dtype=whole.real)
    start, target = memory.data_ptr(), sums.data_ptr()
    buffer = whole.backward_buffer[:]
    for slot, offset in zip(_SAVED, plan.offsets, strict=False):
        buffer[slot] = start + offset
    for slot, offset in zip(_WRITTEN, gradient_offsets, strict=False):
        buffer[slot] = target + offset
    buffer[_OUTPUT_GRADIENT] = gradient.data_ptr()
    backward_kernel(whole.bits).call(buffer.buffer_info()[0])
    buffer = plan.gradient_buffer[:]
    for i, (operand, x) in enumerate(zip(operands, gradients, strict=True)):
        buffer[_OPERANDS + i], buffer[_RESULTS + i] = operand.data_ptr(), x.data_ptr()
    for slot, offset in zip(_PROJECTION_GRADIENTS, gradient_offsets, strict=False):
        buffer[slot] = target + offset
    plan.gradients.call(buffer.buffer_info()[0])
    return tuple(gradients)


# slots of `backward_kernel`, in the order of `Plan.offsets` and `Plan.gradient_offsets`, then of `gradient_kernel`
_SAVED = buffer_slots(Backward.a, Backward.b, Backward.value, Backward.w, Backward.weights)
_WRITTEN = buffer_slots(Backward.grad_a, Backward.grad_b, Backward.grad_value, Backward.grad_w, Backward.scratch)
_OUTPUT_GRADIENT = LEADING + Backward.grad_output
_OPERANDS, _RESULTS = LEADING + Gradients.operands, LEADING + Gradients.results
_PROJECTION_GRADIENTS = buffer_slots(Gradients.by_a, Gradients.by_b, Gradients.by_value, Gradients.by_w)


def _by_pytorch(plan: Plan, operands: Operands, gradient: Tensor, memory: Tensor) -> tuple[Tensor | None, ...]:
    """`_gradients` by PyTorch operations, for tensors that kernels cannot read."""
    whole = plan.pointwise
    e, n, m, h = whole.entries, whole.n, whole.m, whole.h
    of_a, of_b, of_value, _, of_weights, of_scratch, _ = (offset // plan.size for offset in plan.offsets)
    a, b = memory[of_a:of_b].view(e, n, h), memory[of_b:of_value].view(e, m, h)
    weights = memory[of_weights:of_scratch].view(e, n, m)
    inputs = wide(operands, whole.reads) if whole.half else operands
    gradients = gradients_of_pointwise(whole, inputs, gradient, a, b, weights, (True,) * 6)
    return tuple(None if x is None else x.to(operands.value.dtype) for x in gradients)
