"""Scaled dot-product attention on the CPU by the compiled kernels, with first derivatives.

Half dtypes are computed in float32 and rounded at the end. Nothing of size n*m is stored, forward or backward.
A weight below the smallest normal number is 0.
"""

from array import array
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.transforms import addressable, intercepted

from .arguments import FAR, KEYS, Operands, Options, backward_scratch, forward_scratch, padded
from .backward import Backward, backward_kernel
from .forward import Forward, forward_kernel
from .tiles import TILE_ROWS, width

ONCE = no_second_derivative("scaled dot-product attention", "llvm", "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)")


def attend(call: Call) -> tuple[Tensor, bool]:
    """The output (b, h, n, d_v) of a call without empty operands, and whether a NaN is in it."""
    query, key, value, mask, causal, scale, *_ = call
    if call.differentiates():
        output, nan = DotAttention.apply(query, key, value, mask, causal, scale)  # type: ignore[no-untyped-call]
        return output, nan
    pooled, _, _, nan = _forward(query, key, value, mask, causal, scale)
    return pooled.to(query.dtype), nan


class DotAttention(torch.autograd.Function):
    """softmax(scale·QKᵀ)V for (b, h, n, d), (b, h, m, d), (b, h, m, d_v), and whether a NaN is in it."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, bool]:
        """The output; the backward reads it before its rounding."""
        pooled, maximum, reciprocal, nan = _forward(query, key, value, mask, causal, scale)
        ctx.save_for_backward(query, key, value, mask, pooled, maximum, reciprocal)
        ctx.causal, ctx.scale = causal, scale
        return pooled.to(query.dtype), nan

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        *operands, mask, pooled, maximum, reciprocal = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]

        def gradients(
            gradient: Tensor,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            pooled: Tensor,
            maximum: Tensor,
            reciprocal: Tensor,
        ) -> tuple[Tensor | None, ...]:
            call = Call(query, key, value, mask, ctx.causal, ctx.scale)
            gradient = gradient.resolve_neg()
            if intercepted() or not all(map(addressable, (gradient, *tensors[1:]))):
                return gradients_by_pytorch(call, gradient, pooled, wanted)
            return _backward(call, gradient, pooled, maximum, reciprocal, wanted)

        tensors = gradient, *operands, pooled, maximum, reciprocal
        found = first_order(ONCE, gradients, *tensors)
        return *found, None, None, None


def rows(x: Tensor) -> Tensor:
    """x with contiguous rows, in the dtype of the kernels."""
    return _contiguous_rows(widened(x))


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


NOTHING, CAUSAL = Options(), Options(right=0)


def operands_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Options, scale: float,
              output: Tensor, maximum: Tensor, reciprocal: Tensor, logarithms: Tensor | None = None
              ) -> Operands:  # fmt: skip
    """What both kernels take; all tensors have contiguous rows."""
    (_, h, n, d), (heads_k, m, d_v), bits = query.shape, value.shape[-3:], query.element_size() * 8
    left, right, lengths, offsets, softcap, slopes, bias = options
    cap = 1.0 if softcap is None else softcap / scale
    adjusts = any(x is not None for x in (softcap, slopes, bias))
    return Operands(
        query_blocks=-(-n // width(bits)), heads=h, group=h // heads_k, n=n, m=m, d=d, d_v=d_v,
        d_padded=padded(d, bits), v_padded=padded(d_v, bits),
        banded=left is not None or right is not None, left=FAR if left is None else min(left, FAR),
        right=FAR if right is None else min(right, FAR), lengths=lengths, offsets=offsets,
        adjusts=adjusts, capped=softcap is not None, cap=cap, over_cap=1 / cap,
        slopes=slopes, bias=bias, over_scale=1 / scale,
        scale=scale, log2_scale=scale * log2(e), query=query, key=key, value=value, mask=mask,
        output=output, maximum=maximum, reciprocal=reciprocal, logarithms=logarithms,
    )  # fmt: skip


def _forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
             scale: float) -> tuple[Tensor, Tensor, Tensor, bool]:  # fmt: skip
    """Output in the dtype of the kernels, row maxima, reciprocals of the row sums, and whether the output has a NaN."""
    query, key, value = rows(query), rows(key), rows(value)
    mask = None if mask is None else _contiguous_rows(mask)
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    # the heads of a query next to each other, so that they are joined without a copy
    output = query.new_empty(b, n, h, d_v).transpose(1, 2)
    maximum, reciprocal = query.new_empty(2, b, h, n)
    nan = array("q", [0])
    operands = operands_of(query, key, value, mask, CAUSAL if causal else NOTHING, scale, output, maximum, reciprocal)
    tasks = b * h * -(-n // width(bits))
    threads = thread_count(tasks, b * h * n * m * (d + d_v) / 2)
    scratch = query.new_empty(threads, sum(forward_scratch(bits, padded(d, bits), padded(d_v, bits))))
    run(forward_kernel(bits), threads, Forward(tasks=tasks, operands=operands, scratch=scratch, nan=nan))
    return output, maximum, reciprocal, nan[0] != 0


def _backward(call: Call, gradient: Tensor, pooled: Tensor, maximum: Tensor, reciprocal: Tensor,
              wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of the operands that need them, in their dtypes."""
    # hooks on saved tensors may have changed their strides
    query, key, value, gradient, pooled = (rows(x) for x in (*call[:3], gradient, pooled))
    maximum, reciprocal = maximum.contiguous(), reciprocal.contiguous()
    mask = None if call.mask is None else _contiguous_rows(call.mask)
    (b, h, n, d), (m, d_v), bits = query.shape, value.shape[-2:], query.element_size() * 8
    options = CAUSAL if call.causal else NOTHING
    operands = operands_of(query, key, value, mask, options, call.scale, pooled, maximum, reciprocal)
    d_padded, v_padded, m_padded = padded(d, bits), padded(d_v, bits), -(-m // TILE_ROWS) * TILE_ROWS
    threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
    keys = key_range(b * h, m, threads)
    ranges = -(-m // keys)
    by_query = by_key = by_value = None
    if wanted[0]:
        # a task writes no rows of queries that attend to none of its keys
        allocate = query.new_zeros if call.causal and ranges > 1 else query.new_empty
        by_query = allocate(ranges, b, h, n, d)
    if wanted[1]:
        by_key = query.new_zeros(b, h, m_padded, d_padded)
    if wanted[2]:
        by_value = query.new_zeros(b, h, m_padded, v_padded)
    scratch = query.new_empty(threads, sum(backward_scratch(bits, d_padded, v_padded)))
    arguments = Backward(
        tasks=b * h * ranges, operands=operands, scratch=scratch, range=keys, ranges=ranges, m_padded=m_padded,
        scale=call.scale, gradient=gradient, row_gradient=None,
        query_gradient=by_query, key_gradient=by_key, value_gradient=by_value,
    )  # fmt: skip
    run(backward_kernel(bits), threads, arguments)
    return (
        None if by_query is None else (by_query[0] if ranges == 1 else by_query.sum(0)).to(call.query.dtype),
        None if by_key is None else by_key[:, :, :m, :d].to(call.key.dtype),
        None if by_value is None else by_value[:, :, :m, :d_v].to(call.value.dtype),
    )


def gradients_by_pytorch(call: Call, gradient: Tensor, pooled: Tensor,
                     wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same by PyTorch's operations, for what kernels cannot read: batched gradients, dispatch modes, subclasses."""
    query, key, value = map(widened, call[:3])
    gradient, allowed = gradient.to(query.dtype), call.allowed()
    attends = allowed.any(-1, keepdim=True)
    scores = (call.scale * (query @ key.mT)).masked_fill(~allowed, -torch.inf).masked_fill(~attends, 0)
    weights = torch.softmax(scores, -1).masked_fill(~(allowed & attends), 0)
    d_scores = gradient @ value.mT - (gradient * pooled).sum(-1, keepdim=True)
    d_scores = call.scale * weights * d_scores.masked_fill(~allowed, 0)
    found = d_scores @ key, d_scores.mT @ query, weights.mT @ gradient
    return tuple(x.to(own.dtype) if w else None for x, own, w in zip(found, call[:3], wanted, strict=True))


def key_range(entries: int, m: int, threads: int) -> int:
    """Keys of one task of the backward, a multiple of ``KEYS``: all, unless that would leave threads idle."""
    blocks = -(-m // KEYS)
    if entries % threads == 0:
        return blocks * KEYS
    return -(-blocks // min(blocks, -(-4 * threads // entries))) * KEYS
