"""Planned calls of the kernels of scaled dot-product attention, with first derivatives."""

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.arguments import KEYS, Operands, backward_scratch, forward_scratch, padded
from attnspec.backends.pytorch.kernels.dot.backward import Backward, backward_kernel
from attnspec.backends.pytorch.kernels.dot.call import Call, four_dimensional
from attnspec.backends.pytorch.kernels.dot.cpu import (
    CAUSAL,
    NOTHING,
    ONCE,
    gradients_by_pytorch,
    key_range,
    operands_of,
)
from attnspec.backends.pytorch.kernels.dot.forward import Forward, forward_kernel
from attnspec.backends.pytorch.kernels.dot.tiles import TILE_ROWS, width
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count, with_leading
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, finite
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted


@plan_class
class Plan:
    """What all calls with the same shapes, strides and flags have in common; ``sizes`` are b, h, n, m, d, d_v."""

    rank: int
    shape: tuple[int, ...]
    sizes: tuple[int, int, int, int, int, int]
    strides: tuple[tuple[int, ...], ...]
    half: bool
    excludes: bool
    causal: bool
    scale: float
    threads: int
    scratch: int
    kernel: "Compiled[Forward]"
    words: "array[int]"
    backward: "BackwardPlan | None"


@plan_class
class BackwardPlan:
    """The same of the gradients, whose sizes are padded; ``ranges`` are those of `Backward`."""

    threads: int
    scratch: int
    ranges: int
    m_padded: int
    d_padded: int
    v_padded: int
    zeros: bool
    kernel: "Compiled[Backward]"
    words: "array[int]"


def plan(call: Call, given: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, batch: torch.Size) -> Plan | None:
    """The plan of a call; None where operands must be copied to be read, or gradients summed over a batch."""
    half = call.query.dtype in HALF_DTYPES
    wide = (given[0].float(), given[1].float(), given[2].float()) if half else given
    whole, _ = four_dimensional(wide[0], wide[1], wide[2], mask, call.causal, call.scale)
    query, key, value, own_mask, causal, scale, *_ = whole
    views = [(query, wide[0]), (key, wide[1]), (value, wide[2])]
    if mask is not None and own_mask is not None:
        views.append((own_mask, mask))
    if any(x.data_ptr() != own.data_ptr() or (x.stride(-1) != 1 and x.shape[-1] > 1) for x, own in views):
        return None
    if call.differentiates() and (len(batch) > 2 or any(x.shape[:-2] != batch for x in given)):
        return None
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    output, numbers = query.new_empty(b, h, n, d_v), query.new_empty(b, h, n)
    options = CAUSAL if causal else NOTHING
    operands = operands_of(query, key, value, own_mask, options, scale, output, numbers, numbers)
    tasks = b * h * -(-n // width(bits))
    threads = thread_count(tasks, b * h * n * m * (d + d_v) / 2)
    scratch = sum(forward_scratch(bits, padded(d, bits), padded(d_v, bits)))
    nan = array("q", [0])
    arguments = Forward(tasks=tasks, operands=operands, scratch=query.new_empty(1, scratch), nan=nan)
    backward = None
    if call.differentiates():
        backward = backward_plan(operands, (b, h, n, m, d, d_v), causal, scale, bits, output)
    return Plan(
        len(batch), (*batch, n, d_v), (b, h, n, m, d, d_v), tuple(x.stride() for x in wide), half,
        mask is not None or causal, causal, scale, threads, scratch, forward_kernel(bits), template(arguments),
        backward,
    )  # fmt: skip


def backward_plan(
    operands: Operands, sizes: tuple[int, ...], causal: bool, scale: float, bits: int, gradient: Tensor
) -> BackwardPlan:
    """The plan of the gradients of a call of these sizes, b, h, n, m, d and d_v."""
    b, h, n, m, d, d_v = sizes
    threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
    keys = key_range(b * h, m, threads)
    ranges, m_padded = -(-m // keys), -(-m // TILE_ROWS) * TILE_ROWS
    d_padded, v_padded = padded(d, bits), padded(d_v, bits)
    scratch = sum(backward_scratch(bits, d_padded, v_padded))
    arguments = Backward(
        tasks=b * h * ranges, operands=operands, scratch=gradient.new_empty(1, scratch), range=keys, ranges=ranges,
        m_padded=m_padded, scale=scale, gradient=gradient, row_gradient=None,
        query_gradient=None, key_gradient=None, value_gradient=None,
    )  # fmt: skip
    words = template(arguments)
    # a task writes no rows of queries that attend to none of its keys
    zeros = causal and ranges > 1
    return BackwardPlan(threads, scratch, ranges, m_padded, d_padded, v_padded, zeros, backward_kernel(bits), words)


def template(arguments: Arguments) -> "array[int]":
    """Leading words, the words of some arguments, and one for what the kernel says about NaN."""
    words = with_leading(arguments.to_words())
    words.append(0)
    return words


_OPERANDS = LEADING + Forward.operands
_QUERY, _KEY, _VALUE, _MASK, _OUTPUT, _MAXIMUM, _RECIPROCAL, _LOGARITHMS = (
    _OPERANDS + word
    for word in (
        Operands.query, Operands.key, Operands.value, Operands.mask, Operands.output, Operands.maximum,
        Operands.reciprocal, Operands.logarithms,
    )
)  # fmt: skip
_SCRATCH, _NAN, _STRANGE = LEADING + Forward.scratch, LEADING + Forward.nan, LEADING + Forward.words


def attend(plan: Plan, tracked: bool, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor | None:
    """The output; None where it, or a gradient, may be wrong because what is excluded is not finite."""
    if tracked:
        output: Tensor
        output, nan = PlannedAttention.apply(query, key, value, mask, plan)  # type: ignore[no-untyped-call]
        if plan.excludes and (nan or not (finite(key) and finite(value))):
            return None
        return output
    pooled, _, nan = forward(plan, query, key, value, mask, False)
    if nan and plan.excludes:
        return None
    return pooled.to(query.dtype) if plan.half else pooled


def forward(
    plan: Plan, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, save: bool,
    logarithms: Tensor | None = None,
) -> tuple[Tensor, Tensor, bool]:  # fmt: skip
    """The output before its rounding, two numbers for each row (and scratch, unless saved), whether a NaN is in it.

    ``logarithms`` (b, h, n), in the dtype of the sums, become log Σ exp.
    """
    if plan.half:
        query, key, value = query.float(), key.float(), value.float()
    output = torch.empty(plan.shape, dtype=query.dtype)
    b, h, n, *_ = plan.sizes
    rows, size = b * h * n, plan.threads * plan.scratch
    numbers = torch.empty(2 * rows if save else 2 * rows + size, dtype=query.dtype)
    words = plan.words[:]
    words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    if mask is not None:
        words[_MASK] = mask.data_ptr()
    words[_OUTPUT] = output.data_ptr()
    words[_MAXIMUM] = address = numbers.data_ptr()
    words[_RECIPROCAL] = address + rows * numbers.element_size()
    if logarithms is not None:
        words[_LOGARITHMS] = logarithms.data_ptr()
    if save:
        scratch = torch.empty(size, dtype=query.dtype)
        words[_SCRATCH] = scratch.data_ptr()
    else:
        words[_SCRATCH] = address + 2 * rows * numbers.element_size()
    words[_NAN] = words.buffer_info()[0] + 8 * _STRANGE
    call_kernel(plan.kernel, plan.threads, words)
    return output, numbers, words[_STRANGE] != 0


class PlannedAttention(torch.autograd.Function):
    """The output, and whether a NaN is in it."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, plan: Plan
    ) -> tuple[Tensor, bool]:
        """The backward reads the output before its rounding."""
        pooled, numbers, nan = forward(plan, query, key, value, mask, True)
        output = pooled.to(query.dtype) if plan.half else pooled
        ctx.save_for_backward(query, key, value, mask, pooled if plan.half else output, numbers)
        ctx.plan = plan
        return output, nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        *operands, mask, pooled, numbers = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]

        if not torch.is_grad_enabled():
            return *_gradients(ctx.plan, gradient, operands, mask, pooled, numbers, wanted), None, None

        def gradients(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.plan, gradient, tensors[:3], mask, tensors[3], numbers, wanted)

        return *first_order(ONCE, gradients, gradient, *operands, pooled), None, None


def _gradients(
    plan: Plan, gradient: Tensor, operands: Sequence[Tensor], mask: Tensor | None, pooled: Tensor, numbers: Tensor,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that need them, in their shapes and dtypes."""
    query, key, value = operands
    gradient = gradient.resolve_neg()
    wide = [x.float() for x in operands] if plan.half else operands
    # hooks on saved tensors may have changed their strides and classes
    strides = (wide[0].stride(), wide[1].stride(), wide[2].stride())
    alike = strides == plan.strides and pooled.is_contiguous() and type(pooled) is Tensor is type(numbers)
    if intercepted() or not alike or not addressable(gradient):
        call = four_dimensional(query, key, value, mask, plan.causal, plan.scale)[0]
        found = gradients_by_pytorch(call, as_four(gradient, plan.rank), as_four(pooled, plan.rank), wanted)
        return tuple(None if x is None else x.view(own.shape) for x, own in zip(found, operands, strict=True))
    if plan.half:
        gradient = gradient.float()
    if gradient.stride(-1) != 1 and gradient.shape[-1] > 1:
        gradient = gradient.contiguous()
    found = backward(plan, wide, mask, as_four(gradient, plan.rank), pooled, numbers, wanted)
    if plan.half:
        return tuple(None if x is None else x.to(query.dtype) for x in found)
    return found


def as_four(x: Tensor, rank: int) -> Tensor:
    """A tensor whose batch has so many dimensions, two at most, in four."""
    return x if rank == 2 else x.unsqueeze(1) if rank == 1 else x[None, None]


def backward(
    plan: Plan, operands: Sequence[Tensor], mask: Tensor | None, gradient: Tensor, pooled: Tensor, numbers: Tensor,
    wanted: Sequence[bool], of_rows: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that are wanted, in the dtype of the sums; ``of_rows`` (b, h, n) are of log Σ exp."""
    query, key, value = operands
    (b, h, n, m, d, d_v), p = plan.sizes, plan.backward
    assert p is not None
    by_query = by_key = by_value = None
    words = p.words[:]
    if wanted[0]:
        by_query = (query.new_zeros if p.zeros else query.new_empty)((p.ranges, b, h, n, d))
        words[_BY_QUERY] = by_query.data_ptr()
    if wanted[1]:
        by_key = query.new_zeros((b, h, p.m_padded, p.d_padded))
        words[_BY_KEY] = by_key.data_ptr()
    if wanted[2]:
        by_value = query.new_zeros((b, h, p.m_padded, p.v_padded))
        words[_BY_VALUE] = by_value.data_ptr()
    scratch = query.new_empty(p.threads * p.scratch)
    words[_B_SCRATCH] = scratch.data_ptr()
    of_batch, of_head, of_row, _ = gradient.stride()
    words[_GRADIENT] = gradient.data_ptr()
    words[_GRADIENT + 1] = of_batch if b > 1 else 0
    words[_GRADIENT + 2] = of_head if h > 1 else 0
    words[_GRADIENT + 3] = of_row if n > 1 else 0
    words[_B_QUERY], words[_B_KEY], words[_B_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
    if mask is not None:
        words[_B_MASK] = mask.data_ptr()
    if of_rows is not None:
        words[_OF_ROWS] = of_rows.data_ptr()
    words[_B_OUTPUT] = pooled.data_ptr()
    words[_B_MAXIMUM] = address = numbers.data_ptr()
    words[_B_RECIPROCAL] = address + b * h * n * numbers.element_size()
    call_kernel(p.kernel, p.threads, words)
    return (
        None if by_query is None else (by_query[0] if p.ranges == 1 else by_query.sum(0)).view(query.shape),
        None if by_key is None else _unpadded(by_key, key, m, d),
        None if by_value is None else _unpadded(by_value, value, m, d_v),
    )


_B_OPERANDS = LEADING + Backward.operands
_B_QUERY, _B_KEY, _B_VALUE, _B_MASK, _B_OUTPUT, _B_MAXIMUM, _B_RECIPROCAL = (
    word - _OPERANDS + _B_OPERANDS for word in (_QUERY, _KEY, _VALUE, _MASK, _OUTPUT, _MAXIMUM, _RECIPROCAL)
)
_B_SCRATCH, _GRADIENT, _OF_ROWS, _BY_QUERY, _BY_KEY, _BY_VALUE = (
    LEADING + word
    for word in (
        Backward.scratch, Backward.gradient, Backward.row_gradient, Backward.query_gradient, Backward.key_gradient,
        Backward.value_gradient,
    )
)  # fmt: skip


def _unpadded(x: Tensor, like: Tensor, rows: int, columns: int) -> Tensor:
    """Gradients (b, h, rows rounded up, columns rounded up) as those of an operand, which groups of heads may share."""
    if like.dim() == 4 and like.shape[1] != x.shape[1]:
        x = x.view(x.shape[0], like.shape[1], -1, *x.shape[2:]).sum(2)
    if x.shape[-2] == rows and x.shape[-1] == columns:
        return x.view(like.shape)
    rank = like.dim() - 2
    return (x if rank == 2 else x[:, 0] if rank == 1 else x[0, 0])[..., :rows, :columns]
