"""Planned calls of scaled dot-product attention for one query in each head, with first derivatives: keys and values are
read as they are stored, and so are their gradients written."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call, four_dimensional
from attnspec.backends.pytorch.kernels.dot.cpu import ONCE, gradients_by_pytorch
from attnspec.backends.pytorch.kernels.dot.planned_kernel import as_four, template
from attnspec.backends.pytorch.kernels.dot.step import reads, step_kernel, step_scratch
from attnspec.backends.pytorch.kernels.dot.step_arguments import STORED, Step
from attnspec.backends.pytorch.kernels.dot.step_backward import StepBackward, backward_kernel
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled, register_bytes
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES, widened
from attnspec.backends.pytorch.runtime.first_order import first_order
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted


@plan_class
class Plan:
    """What all calls with the same shapes and strides have in common; ``sizes`` are b, h, m, d, d_v.

    ``ends`` are where keys begin and end, whose addresses the words hold.
    """

    rank: int
    shape: tuple[int, ...]
    sizes: tuple[int, int, int, int, int]
    strides: tuple[tuple[int, ...], ...]
    half: bool
    scale: float
    ends: tuple[Tensor, Tensor]
    threads: int
    scratch: int
    kernel: "Compiled[Step]"
    words: "array[int]"
    backward: "Compiled[StepBackward]"
    backward_words: "array[int]"


def serves(call: Call) -> bool:
    """Whether the kernels take a call that is not empty: one query, nothing excluded, rows of whole registers."""
    alone = call.query.shape[-2] == 1 and call.mask is None and not call.causal
    return alone and call.key.dtype in STORED and reads(call.key, call.value)


def attend(call: Call) -> Tensor:
    """The output of a call that `serves` admits, planned for it alone."""
    compute = attention(call, call[:3], call.query.shape[:2])
    assert compute is not None
    return compute(*call[:3], None)


def attention(
    call: Call, given: tuple[Tensor, Tensor, Tensor], batch: torch.Size
) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None:
    """What computes calls of these sizes; None where operands must be copied, or gradients summed over a batch."""
    query, key, value = call[:3]
    if any(x.data_ptr() != own.data_ptr() for x, own in ((key, given[1]), (value, given[2]))):
        return None
    if any(x.shape[:-2] != batch for x in given) or len(batch) > 2:
        return None
    (b, h, _, d), (m, d_v), wide = query.shape, value.shape[-2:], widened(query[:0]).dtype
    bits, stored, lanes = wide.itemsize * 8, STORED[key.dtype], register_bytes() // wide.itemsize
    ends = torch.zeros(b, dtype=torch.int64), torch.full((b,), m)
    threads = thread_count(b * h, b * h * m * (d + d_v) / 2)
    scratch = sum(step_scratch(lanes, 1, d_v, 1))
    numbers, rows, columns = (torch.empty(*size, dtype=wide) for size in ((b * h,), (b * h, d), (b * h, d_v)))
    words = template(
        Step(
            tasks=b * h, heads_k=h, group=1, d=d, d_v=d_v, page=m, pages=1, log2_scale=call.scale * log2(e),
            table=None, start=ends[0], stop=ends[1], query=rows, key=key, value=value, output=columns,
            maximum=numbers, reciprocal=numbers, scratch=numbers.new_empty(1, scratch),
        )
    )  # fmt: skip
    backward_words = template(
        StepBackward(
            tasks=b * h, heads=h, m=m, d=d, d_v=d_v, scale=call.scale, log2_scale=call.scale * log2(e), query=rows,
            key=key, value=value, output=columns, maximum=numbers, reciprocal=numbers, gradient=columns,
            of_query=rows, of_key=key.new_empty(key.shape), of_value=value.new_empty(value.shape),
            scratch=numbers.new_empty(1, d),
        )
    )  # fmt: skip
    plan = Plan(
        len(batch), (*batch, 1, d_v), (b, h, m, d, d_v), (given[1].stride(), given[2].stride()),
        query.dtype in HALF_DTYPES, call.scale, ends, threads, scratch, step_kernel(bits, stored, 1), words,
        backward_kernel(bits, stored), backward_words,
    )  # fmt: skip
    return partial(_tracked if call.differentiates() else _untracked, plan)


def _untracked(plan: Plan, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None) -> Tensor:
    output, _numbers, _wide = _forward(plan, query, key, value)
    return output.to(query.dtype) if plan.half else output


def _tracked(plan: Plan, query: Tensor, key: Tensor, value: Tensor, _: Tensor | None) -> Tensor:
    output: Tensor = OneQuery.apply(query, key, value, plan)  # type: ignore[no-untyped-call]
    return output


_QUERY, _KEY, _VALUE, _OUTPUT, _MAXIMUM, _RECIPROCAL, _SCRATCH = (
    LEADING + word
    for word in (Step.query, Step.key, Step.value, Step.output, Step.maximum, Step.reciprocal, Step.scratch)
)


def _forward(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output before its rounding, two numbers for each row, and the query as the kernel reads it."""
    wide = (query.float() if plan.half else query).contiguous()
    b, h, *_ = plan.sizes
    output, numbers = torch.empty(plan.shape, dtype=wide.dtype), torch.empty(2 * b * h, dtype=wide.dtype)
    scratch = torch.empty(plan.threads * plan.scratch, dtype=wide.dtype)
    words = plan.words[:]
    words[_QUERY], words[_KEY], words[_VALUE] = wide.data_ptr(), key.data_ptr(), value.data_ptr()
    words[_OUTPUT], words[_MAXIMUM] = output.data_ptr(), numbers.data_ptr()
    words[_RECIPROCAL] = words[_MAXIMUM] + b * h * numbers.element_size()
    words[_SCRATCH] = scratch.data_ptr()
    call_kernel(plan.kernel, plan.threads, words)
    return output, numbers, wide


class OneQuery(torch.autograd.Function):
    """The output for query (*batch, 1, d), key (*batch, m, d) and value (*batch, m, d_v)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan) -> Tensor:
        """The backward reads the output before its rounding."""
        pooled, numbers, _ = _forward(plan, query, key, value)
        output = pooled.to(query.dtype) if plan.half else pooled
        ctx.save_for_backward(query, key, value, pooled if plan.half else output, numbers)
        ctx.plan = plan
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        *operands, pooled, numbers = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        if not torch.is_grad_enabled():
            return *_gradients(ctx.plan, gradient, operands, pooled, numbers, wanted), None

        def gradients(gradient: Tensor, *tensors: Tensor) -> tuple[Tensor | None, ...]:
            return _gradients(ctx.plan, gradient, tensors[:3], tensors[3], numbers, wanted)

        return *first_order(ONCE, gradients, gradient, *operands, pooled), None


def _gradients(
    plan: Plan, gradient: Tensor, operands: Sequence[Tensor], pooled: Tensor, numbers: Tensor,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that need them, in their shapes and dtypes."""
    query, key, value = operands
    # hooks on saved tensors may have changed their strides and classes
    alike = (key.stride(), value.stride()) == plan.strides and type(numbers) is Tensor is type(pooled)
    if intercepted() or not alike or not all(map(addressable, (gradient.resolve_neg(), query, key, value))):
        call = four_dimensional(query, key, value, None, False, plan.scale)[0]
        found = gradients_by_pytorch(call, as_four(gradient, plan.rank), as_four(pooled, plan.rank), wanted)
        return tuple(None if x is None else x.view(own.shape) for x, own in zip(found, operands, strict=True))
    wide = query.float() if plan.half else query.contiguous()
    by_query, by_key, by_value = torch.empty_like(wide), key.new_empty(key.shape), value.new_empty(value.shape)
    gradient = (gradient.float() if plan.half else gradient).resolve_neg().contiguous()
    pooled = pooled.contiguous()
    scratch = wide.new_empty(plan.threads * plan.sizes[3])
    words = plan.backward_words[:]
    for place, x in zip(
        _BACKWARD, (wide, key, value, pooled, numbers, gradient, by_query, by_key, by_value, scratch), strict=True
    ):
        words[place] = x.data_ptr()
    words[_B_RECIPROCAL] = numbers.data_ptr() + plan.sizes[0] * plan.sizes[1] * numbers.element_size()
    call_kernel(plan.backward, plan.threads, words)
    found = by_query.to(query.dtype), by_key, by_value
    return tuple(x if want else None for x, want in zip(found, wanted, strict=True))


_BACKWARD = tuple(
    LEADING + word
    for word in (
        StepBackward.query, StepBackward.key, StepBackward.value, StepBackward.output, StepBackward.maximum,
        StepBackward.gradient, StepBackward.of_query, StepBackward.of_key, StepBackward.of_value,
        StepBackward.scratch,
    )
)  # fmt: skip
_B_RECIPROCAL = LEADING + StepBackward.reciprocal
