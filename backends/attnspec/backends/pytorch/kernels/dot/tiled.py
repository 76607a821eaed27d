"""Plans of the tiled kernels, which support all options: the path ``llvm``.

They share keys among heads without copies and skip keys that masks, windows and lengths exclude. Half dtypes are
computed in float32 and rounded at the end. Nothing of size n*m is stored, forward or backward. A weight below the
smallest normal number is 0.
"""

from array import array
from collections.abc import Sequence
from math import e, log2

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.arguments import (
    FAR,
    KEYS,
    Operands,
    backward_scratch,
    forward_scratch,
    padded,
)
from attnspec.backends.pytorch.kernels.dot.backward import Backward, backward_kernel
from attnspec.backends.pytorch.kernels.dot.call import Call, Options, Tensors, as_four
from attnspec.backends.pytorch.kernels.dot.differentiable import Attend, attending
from attnspec.backends.pytorch.kernels.dot.forward import Forward, forward_kernel
from attnspec.backends.pytorch.kernels.dot.tiles import TILE_ROWS, width
from attnspec.backends.pytorch.kernels.llvm.arguments import Arguments
from attnspec.backends.pytorch.kernels.llvm.codegen import LEADING
from attnspec.backends.pytorch.kernels.llvm.machine_code import Compiled
from attnspec.backends.pytorch.kernels.llvm.threads import call as call_kernel
from attnspec.backends.pytorch.kernels.llvm.threads import thread_count, with_leading
from attnspec.backends.pytorch.runtime.accumulation import finite, widened
from attnspec.backends.pytorch.runtime.plans import plan_class
from attnspec.backends.pytorch.runtime.recording import recorded

empty_strided = torch.empty_strided


@plan_class
class BackwardPlan:
    """Kernel and padded sizes of the gradients; ``ranges`` as in `Backward`."""

    threads: int
    scratch: int
    ranges: int
    m_padded: int
    d_padded: int
    v_padded: int
    zeros: bool
    kernel: "Compiled[Backward]"
    words: "array[int]"


@plan_class
class Plan:
    """Kernels for calls with the same shapes, strides and options; ``sizes``: b, h, n, m, d, d_v.

    ``ready``: operands are read without copies. ``strides`` are those of the operands as read, and of the output.
    """

    rank: int
    options: Options
    excludes: bool
    ready: bool
    sizes: tuple[int, int, int, int, int, int]
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    threads: int
    scratch: int
    kernel: "Compiled[Forward]"
    words: "array[int]"
    backward_plan: BackwardPlan | None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor | None, bool, tuple[Tensor, ...]]:
        """Output, log Σ exp, whether an excluded NaN may have spread, and tensors for the backward."""
        dtype, given = query.dtype, (key, value)
        if not self.ready:
            query, key, value = rows(query), rows(key), rows(value)
        b, h, n, *_ = self.sizes
        sums, count = query.dtype, b * h * n
        pooled, numbers = empty_strided(self.shape, self.strides[3], dtype=sums), torch.empty(2 * count, dtype=sums)
        scratch = torch.empty(self.threads * self.scratch, dtype=sums)
        logarithms = torch.empty((b, h, n), dtype=sums) if self.options.logarithms else None
        words = self.words[:]
        if tensors:
            _set(words, tensors)
        words[_QUERY], words[_KEY], words[_VALUE] = query.data_ptr(), key.data_ptr(), value.data_ptr()
        words[_OUTPUT], words[_SCRATCH] = pooled.data_ptr(), scratch.data_ptr()
        words[_MAXIMUM] = address = numbers.data_ptr()
        words[_RECIPROCAL] = address + count * numbers.element_size()
        if logarithms is not None:
            words[_LOGARITHMS] = logarithms.data_ptr()
        words[_NAN] = words.buffer_info()[0] + 8 * _STRANGE
        call_kernel(self.kernel, self.threads, words)
        strange = words[_STRANGE] != 0
        if self.backward_plan is not None and self.excludes and not strange:
            strange = not all(map(finite, given))
        output = pooled
        if sums is not dtype and not self.options.wide:
            output = pooled.to(dtype)
            logarithms = None if logarithms is None else logarithms.to(dtype)
        return output, logarithms, strange, (pooled, numbers)

    def reads(self, operands: Sequence[Tensor], kept: Sequence[Tensor]) -> bool:
        """Return whether strides are those of the forward pass, and row statistics contiguous."""
        wide = operands if self.ready else [rows(x) for x in operands]
        pooled, numbers = kept
        return tuple(x.stride() for x in (*wide, pooled)) == self.strides and numbers.is_contiguous()

    def backward(
        self, operands: Sequence[Tensor], tensors: Sequence[Tensor | None], kept: Sequence[Tensor],
        gradient: Tensor | None, of_logarithms: Tensor | None, wanted: Sequence[bool],
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        """Gradients of the ``wanted`` operands."""
        dtype, (pooled, numbers) = operands[0].dtype, kept
        query, key, value = operands if self.ready else [rows(x) for x in operands]
        (b, h, n, _, d, _), p, sums = self.sizes, self.backward_plan, pooled.dtype
        assert p is not None
        gradient = pooled.new_zeros(self.shape) if gradient is None else rows(gradient.to(sums))
        words = p.words[:]
        if tensors:
            _set(words, tensors, _LATER)
        by_query = by_key = by_value = None
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
        of_batch, of_head, of_row, _ = as_four(gradient, self.rank).stride()
        words[_GRADIENT], words[_B_SCRATCH] = gradient.data_ptr(), scratch.data_ptr()
        words[_GRADIENT + 1] = of_batch if b > 1 else 0
        words[_GRADIENT + 2] = of_head if h > 1 else 0
        words[_GRADIENT + 3] = of_row if n > 1 else 0
        if of_logarithms is not None:
            of_logarithms = of_logarithms.to(sums).contiguous()
            words[_OF_ROWS] = of_logarithms.data_ptr()
        for word, x in ((_QUERY, query), (_KEY, key), (_VALUE, value), (_OUTPUT, pooled), (_MAXIMUM, numbers)):
            words[_LATER + word] = x.data_ptr()
        words[_LATER + _RECIPROCAL] = numbers.data_ptr() + b * h * n * numbers.element_size()
        call_kernel(p.kernel, p.threads, words)
        of_query = None if by_query is None else by_query[0] if p.ranges == 1 else by_query.sum(0)
        return tuple(
            None if x is None else _as(x, own, dtype)
            for x, own in zip((of_query, by_key, by_value), (query, key, value), strict=True)
        )


def serves(call: Call) -> bool:
    """Return True: the tiled kernels support all options."""
    return True


def plan(call: Call, given: Sequence[Tensor], rank: int) -> Attend:
    """Return the function for calls like this one; operands ``given`` have ``rank`` batch dimensions."""
    return attending(_plan(call, given, rank), call.differentiates())


def _plan(call: Call, given: Sequence[Tensor], rank: int) -> Plan:
    tracked, shape, options, tensors = recorded(*given), (*given[0].shape[:-1], given[2].shape[-1]), *call[3:5]
    wide = [rows(x.detach()) for x in given]
    ready = all(x.data_ptr() == own.data_ptr() for x, own in zip(wide, given, strict=True))
    query, key, value = (as_four(x, rank) for x in wide)
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    output, numbers = _output(shape, query.dtype), query.new_empty(b, h, n)
    operands = _operands(query, key, value, tensors, options, as_four(output, rank), numbers)
    tasks, d_padded, v_padded = b * h * -(-n // width(bits)), padded(d, bits), padded(d_v, bits)
    scratch = sum(forward_scratch(bits, d_padded, v_padded))
    arguments = Forward(tasks=tasks, operands=operands, scratch=query.new_empty(1, scratch), nan=array("q", [0]))
    backward = None
    if tracked:
        threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
        keys = key_range(b * h, m, threads)
        ranges, m_padded = -(-m // keys), -(-m // TILE_ROWS) * TILE_ROWS
        more = sum(backward_scratch(bits, d_padded, v_padded))
        of_results = Backward(
            tasks=b * h * ranges, operands=operands, scratch=query.new_empty(1, more), range=keys, ranges=ranges,
            m_padded=m_padded, scale=options.scale, gradient=as_four(output, rank), row_gradient=None,
            query_gradient=None, key_gradient=None, value_gradient=None,
        )  # fmt: skip
        # a task writes no rows of queries that attend to none of its keys
        zeros = options.left is not None or tensors.offsets is not None or (options.right is not None and ranges > 1)
        kernel, words = backward_kernel(bits), template(of_results)
        backward = BackwardPlan(threads, more, ranges, m_padded, d_padded, v_padded, zeros, kernel, words)
    return Plan(
        rank, options, call.excludes(), ready, (b, h, n, m, d, d_v), shape,
        tuple(x.stride() for x in (*wide, output)), thread_count(tasks, b * h * n * m * (d + d_v) / 2), scratch,
        forward_kernel(bits), template(arguments), backward,
    )  # fmt: skip


def rows(x: Tensor) -> Tensor:
    """x with contiguous rows, in the dtype of the kernels."""
    x = widened(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _output(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Empty output with a query's heads adjacent in memory, to be merged without a copy."""
    if len(shape) != 4:
        return torch.empty(shape, dtype=dtype)
    b, h, n, d_v = shape
    return torch.empty((b, n, h, d_v), dtype=dtype).transpose(1, 2)


def _set(words: "array[int]", tensors: Sequence[Tensor | None], later: int = 0) -> None:
    """Set the addresses of option tensors; ``later`` shifts the slots for the backward kernel."""
    for word, x in zip((_MASK, _LENGTHS, _OFFSETS, _SLOPES, _BIAS), tensors, strict=False):
        if x is not None:
            words[later + word] = x.data_ptr()


def _operands(
    query: Tensor, key: Tensor, value: Tensor, tensors: Tensors, options: Options, output: Tensor, numbers: Tensor
) -> Operands:
    """Arguments shared by both kernels; addresses of row statistics and log Σ exp change per call."""
    (_, h, n, d), (heads_k, m, d_v), bits = query.shape, value.shape[-3:], query.element_size() * 8
    scale, left, right, softcap, *_ = options
    mask, lengths, offsets, slopes, bias = tensors
    cap = 1.0 if softcap is None else softcap / scale
    return Operands(
        query_blocks=-(-n // width(bits)), heads=h, group=h // heads_k, n=n, m=m, d=d, d_v=d_v,
        d_padded=padded(d, bits), v_padded=padded(d_v, bits),
        banded=left is not None or right is not None, left=FAR if left is None else min(left, FAR),
        right=FAR if right is None else min(right, FAR), lengths=lengths, offsets=offsets,
        adjusts=any(x is not None for x in (softcap, slopes, bias)), capped=softcap is not None, cap=cap,
        over_cap=1 / cap, slopes=slopes, bias=bias, over_scale=1 / scale, scale=scale, log2_scale=scale * log2(e),
        query=query, key=key, value=value, mask=mask, output=output, maximum=numbers, reciprocal=numbers,
        logarithms=None,
    )  # fmt: skip


def key_range(entries: int, m: int, threads: int) -> int:
    """Keys per backward task, a multiple of ``KEYS``: all, unless that would leave threads idle."""
    blocks = -(-m // KEYS)
    if entries % threads == 0:
        return blocks * KEYS
    return -(-blocks // min(blocks, -(-4 * threads // entries))) * KEYS


def template(arguments: Arguments) -> "array[int]":
    """Argument buffer: leading words, the arguments, and one word for the kernel's NaN flag."""
    words = with_leading(arguments.to_words())
    words.append(0)
    return words


def _as(x: Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
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
    _OPERANDS + word
    for word in (
        Operands.query, Operands.key, Operands.value, Operands.output, Operands.maximum, Operands.reciprocal,
        Operands.logarithms, Operands.mask, Operands.lengths, Operands.offsets, Operands.slopes, Operands.bias,
    )
)  # fmt: skip
_SCRATCH, _NAN, _STRANGE = LEADING + Forward.scratch, LEADING + Forward.nan, LEADING + Forward.words
_LATER = Backward.operands - Forward.operands
"""Words by which the operands begin later in the backward kernel."""
_B_SCRATCH, _GRADIENT, _OF_ROWS, _BY_QUERY, _BY_KEY, _BY_VALUE = (
    LEADING + word
    for word in (
        Backward.scratch, Backward.gradient, Backward.row_gradient, Backward.query_gradient, Backward.key_gradient,
        Backward.value_gradient,
    )
)  # fmt: skip
