"""Plans of the tiled kernels, which support all options: the path ``llvm``.

Heads share keys without copies, and keys that masks, windows and lengths exclude are skipped. Half dtypes are
computed in float32 and rounded at the end. Nothing of size n*m is stored, forward or backward. A weight below the
smallest normal number is 0.
"""

from array import array
from collections.abc import Sequence
from math import e, log2

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING, buffer_slots
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.threads import argument_buffer, thread_count
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.runtime.accumulation import finite, upcast
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.recording import needs_gradients

from .call import Call, Options, Tensors, as_4d
from .differentiable import Attend, runner
from .tiled_arguments import KEYS, UNBOUNDED, Operands, backward_scratch, forward_scratch, padded
from .tiled_backward import Backward, backward_kernel
from .tiled_forward import Forward, forward_kernel
from .tiles import TILE_ROWS, width

empty_strided = torch.empty_strided


@plan_class
class BackwardPlan:
    """Kernel and padded sizes of the gradients; ``ranges`` of keys are tasks, as in `Backward`.

    ``zeros``: gradients of queries need memory filled with zeros.
    """

    threads: int
    scratch: int
    ranges: int
    m_padded: int
    d_padded: int
    v_padded: int
    zeros: bool
    kernel: "Compiled[Backward]"
    buffer: "array[int]"


@plan_class
class Plan:
    """Kernels for calls with the same shapes, strides and options; ``sizes``: b, h, n, m, d, d_v.

    ``in_place``: operands are read without copies. ``strides`` are those of query, key and value as read, and of the
    output. ``scratch`` is in reals per thread.
    """

    rank: int
    options: Options
    excludes: bool
    in_place: bool
    sizes: tuple[int, int, int, int, int, int]
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    threads: int
    scratch: int
    kernel: "Compiled[Forward]"
    buffer: "array[int]"
    backward_plan: BackwardPlan | None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether an excluded NaN may have spread, and tensors for backward."""
        dtype, excludable = query.dtype, (key, value)
        if not self.in_place:
            query, key, value = contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)
        b, h, n, *_ = self.sizes
        sums, count = query.dtype, b * h * n
        pooled, statistics = empty_strided(self.shape, self.strides[3], dtype=sums), torch.empty(2 * count, dtype=sums)
        scratch = torch.empty(self.threads * self.scratch, dtype=sums)
        logarithms = torch.empty((b, h, n), dtype=sums) if self.options.logarithms else None
        buffer = self.buffer[:]
        if tensors:
            _set_options(buffer, tensors)
        buffer[_QUERY], buffer[_KEY], buffer[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        buffer[_OUTPUT], buffer[_SCRATCH] = pooled.data_ptr(), scratch.data_ptr()
        buffer[_MAXIMUM] = address = statistics.data_ptr()
        buffer[_RECIPROCAL] = address + count * statistics.element_size()
        if logarithms is not None:
            buffer[_LOGARITHMS] = logarithms.data_ptr()
        buffer[_NAN_ADDRESS] = buffer.buffer_info()[0] + 8 * _NAN_FLAG
        call_kernel(self.kernel, self.threads, buffer)
        needs_formula = buffer[_NAN_FLAG] != 0
        if self.backward_plan is not None and self.excludes and not needs_formula:
            # a NaN that this pass excludes could enter gradients, as 0·NaN
            needs_formula = not all(map(finite, excludable))
        output = pooled
        if sums is not dtype and not self.options.wide:
            output = pooled.to(dtype)
            logarithms = None if logarithms is None else logarithms.to(dtype)
        return output, logarithms, needs_formula, (pooled, statistics)

    def reads(self, operands: Sequence[Tensor], saved: Sequence[Tensor]) -> bool:
        """Return whether strides are those of the forward pass, and row statistics contiguous."""
        wide = operands if self.in_place else [contiguous_rows(x) for x in operands]
        pooled, statistics = saved
        return tuple(x.stride() for x in (*wide, pooled)) == self.strides and statistics.is_contiguous()

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], saved: Sequence[Tensor],
        gradient: Tensor | None, logarithms_gradient: Tensor | None, wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients of the ``wanted`` operands."""
        dtype, (pooled, statistics) = operands[0].dtype, saved
        query, key, value = operands if self.in_place else [contiguous_rows(x) for x in operands]
        (b, h, n, _, d, _), p, sums = self.sizes, self.backward_plan, pooled.dtype
        assert p is not None
        gradient = pooled.new_zeros(self.shape) if gradient is None else contiguous_rows(gradient.to(sums))
        buffer = p.buffer[:]
        if tensors:
            _set_options(buffer, tensors, _SHIFT)
        query_gradient = key_gradient = value_gradient = None
        if wanted[0]:
            query_gradient = (query.new_zeros if p.zeros else query.new_empty)((p.ranges, b, h, n, d))
            buffer[_QUERY_GRADIENT] = query_gradient.data_ptr()
        if wanted[1]:
            key_gradient = query.new_zeros((b, h, p.m_padded, p.d_padded))
            buffer[_KEY_GRADIENT] = key_gradient.data_ptr()
        if wanted[2]:
            value_gradient = query.new_zeros((b, h, p.m_padded, p.v_padded))
            buffer[_VALUE_GRADIENT] = value_gradient.data_ptr()
        scratch = query.new_empty(p.threads * p.scratch)
        of_batch, of_head, of_row, _ = as_4d(gradient, self.rank).stride()
        buffer[_GRADIENT], buffer[_BACKWARD_SCRATCH] = gradient.data_ptr(), scratch.data_ptr()
        # after the address, the strides of `Strided`; 0 broadcasts a dimension of size 1
        buffer[_GRADIENT + 1] = of_batch if b > 1 else 0
        buffer[_GRADIENT + 2] = of_head if h > 1 else 0
        buffer[_GRADIENT + 3] = of_row if n > 1 else 0
        if logarithms_gradient is not None:
            logarithms_gradient = logarithms_gradient.to(sums).contiguous()
            buffer[_ROW_GRADIENT] = logarithms_gradient.data_ptr()
        for slot, x in ((_QUERY, query), (_KEY, key), (_VALUE, value), (_OUTPUT, pooled), (_MAXIMUM, statistics)):
            buffer[_SHIFT + slot] = x.data_ptr()
        buffer[_SHIFT + _RECIPROCAL] = statistics.data_ptr() + b * h * n * statistics.element_size()
        call_kernel(p.kernel, p.threads, buffer)
        query_sum = None if query_gradient is None else query_gradient[0] if p.ranges == 1 else query_gradient.sum(0)
        return tuple(
            None if x is None else _as_operand(x, operand, dtype)
            for x, operand in zip((query_sum, key_gradient, value_gradient), (query, key, value), strict=True)
        )


def serves(call: Call) -> bool:
    """Return True: the tiled kernels support all options."""
    return True


def plan(call: Call, operands: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; ``operands`` have ``rank`` batch dimensions."""
    return runner(_plan(call, operands, rank), call.differentiates())


def _plan(call: Call, operands: Sequence[Tensor], rank: int) -> Plan:
    tracked, shape = needs_gradients(*operands), (*operands[0].shape[:-1], operands[2].shape[-1])
    options, tensors = call.options, call.tensors
    wide = [contiguous_rows(x.detach()) for x in operands]
    in_place = all(x.data_ptr() == operand.data_ptr() for x, operand in zip(wide, operands, strict=True))
    query, key, value = (as_4d(x, rank) for x in wide)
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    output, statistics = _output(shape, query.dtype), query.new_empty(b, h, n)
    common = _operands(query, key, value, tensors, options, as_4d(output, rank), statistics)
    tasks, d_padded, v_padded = b * h * -(-n // width(bits)), padded(d, bits), padded(d_v, bits)
    scratch = sum(forward_scratch(bits, d_padded, v_padded))
    arguments = Forward(tasks=tasks, operands=common, scratch=query.new_empty(1, scratch), nan=array("q", [0]))
    backward = None
    if tracked:
        threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
        keys = key_range(b * h, m, threads)
        ranges, m_padded = -(-m // keys), -(-m // TILE_ROWS) * TILE_ROWS
        backward_size = sum(backward_scratch(bits, d_padded, v_padded))
        backward_arguments = Backward(
            tasks=b * h * ranges, operands=common, scratch=query.new_empty(1, backward_size), range=keys, ranges=ranges,
            m_padded=m_padded, scale=options.scale, gradient=as_4d(output, rank), row_gradient=None,
            query_gradient=None, key_gradient=None, value_gradient=None,
        )  # fmt: skip
        # a task writes no rows of queries that attend to none of its keys
        zeros = options.left is not None or tensors.offsets is not None or (options.right is not None and ranges > 1)
        kernel, buffer = backward_kernel(bits), flagged_buffer(backward_arguments)
        backward = BackwardPlan(threads, backward_size, ranges, m_padded, d_padded, v_padded, zeros, kernel, buffer)
    return Plan(
        rank=rank, options=options, excludes=call.excludes(), in_place=in_place, sizes=(b, h, n, m, d, d_v),
        shape=shape, strides=tuple(x.stride() for x in (*wide, output)),
        threads=thread_count(tasks, b * h * n * m * (d + d_v) / 2), scratch=scratch, kernel=forward_kernel(bits),
        buffer=flagged_buffer(arguments), backward_plan=backward,
    )  # fmt: skip


def contiguous_rows(x: Tensor) -> Tensor:
    """x with contiguous rows, in the dtype of the kernels."""
    x = upcast(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _output(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Empty output with a query's heads adjacent in memory, to be merged without a copy."""
    if len(shape) != 4:
        return torch.empty(shape, dtype=dtype)
    b, h, n, d_v = shape
    return torch.empty((b, n, h, d_v), dtype=dtype).transpose(1, 2)


def _set_options(buffer: "array[int]", tensors: Sequence[Tensor | None], shift: int = 0) -> None:
    """Set the addresses of option tensors; ``shift`` is `_SHIFT` for the backward kernel."""
    for slot, x in zip((_MASK, _LENGTHS, _OFFSETS, _SLOPES, _BIAS), tensors, strict=False):
        if x is not None:
            buffer[shift + slot] = x.data_ptr()


def _operands(
    query: Tensor, key: Tensor, value: Tensor, tensors: Tensors, options: Options, output: Tensor, statistics: Tensor
) -> Operands:
    """Arguments shared by both kernels; addresses of row statistics and log Σ exp change per call."""
    (_, h, n, d), (heads_k, m, d_v), bits = query.shape, value.shape[-3:], query.element_size() * 8
    scale, left, right, softcap, *_ = options
    mask, lengths, offsets, slopes, bias = tensors
    cap = 1.0 if softcap is None else softcap / scale
    return Operands(
        query_blocks=-(-n // width(bits)), heads=h, group=h // heads_k, n=n, m=m, d=d, d_v=d_v,
        d_padded=padded(d, bits), v_padded=padded(d_v, bits),
        banded=left is not None or right is not None, left=UNBOUNDED if left is None else min(left, UNBOUNDED),
        right=UNBOUNDED if right is None else min(right, UNBOUNDED), lengths=lengths, offsets=offsets,
        adjusts=any(x is not None for x in (softcap, slopes, bias)), capped=softcap is not None, cap=cap,
        over_cap=1 / cap, slopes=slopes, bias=bias, over_scale=1 / scale, scale=scale, log2_scale=scale * log2(e),
        query=query, key=key, value=value, mask=mask, output=output, maximum=statistics, reciprocal=statistics,
        logarithms=None,
    )  # fmt: skip


def key_range(entries: int, m: int, threads: int) -> int:
    """Keys per backward task, a multiple of ``KEYS``: all, unless that would leave threads idle.

    Then about four tasks per thread even out their times.
    """
    blocks = -(-m // KEYS)
    if entries % threads == 0:
        return blocks * KEYS
    return -(-blocks // min(blocks, -(-4 * threads // entries))) * KEYS


def flagged_buffer(arguments: Arguments) -> "array[int]":
    """Argument buffer with an extra last slot for the flag that the kernel sets."""
    buffer = argument_buffer(arguments.to_slots())
    buffer.append(0)
    return buffer


def _as_operand(x: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient in the shape of its operand: unpadded, and summed over heads that share it."""
    if like.dim() == 4 and like.shape[1] != x.shape[1]:
        x = x.view(x.shape[0], like.shape[1], -1, *x.shape[2:]).sum(2)
    *_, count, columns = like.shape
    if x.shape[-2] == count and x.shape[-1] == columns:
        x = x.view(like.shape)
    else:
        x = (x if like.dim() == 4 else x[:, 0] if like.dim() == 3 else x[0, 0])[..., :count, :columns]
    return x if x.dtype is dtype else x.to(dtype)


_OPERANDS = LEADING + Forward.operands
_QUERY, _KEY, _VALUE, _OUTPUT, _MAXIMUM, _RECIPROCAL, _LOGARITHMS, _MASK, _LENGTHS, _OFFSETS, _SLOPES, _BIAS = (
    _OPERANDS + slot
    for slot in (
        Operands.query, Operands.key, Operands.value, Operands.output, Operands.maximum, Operands.reciprocal,
        Operands.logarithms, Operands.mask, Operands.lengths, Operands.offsets, Operands.slopes, Operands.bias,
    )
)  # fmt: skip
_SCRATCH, _NAN_ADDRESS, _NAN_FLAG = LEADING + Forward.scratch, LEADING + Forward.nan, LEADING + Forward.slots
_SHIFT = Backward.operands - Forward.operands
"""Slots by which the operands begin later in the backward kernel."""
_BACKWARD_SCRATCH, _GRADIENT, _ROW_GRADIENT, _QUERY_GRADIENT, _KEY_GRADIENT, _VALUE_GRADIENT = buffer_slots(
    Backward.scratch, Backward.gradient, Backward.row_gradient, Backward.query_gradient, Backward.key_gradient,
    Backward.value_gradient,
)  # fmt: skip
