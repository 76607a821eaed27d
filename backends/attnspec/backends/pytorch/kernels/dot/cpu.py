"""Scaled dot-product attention on the CPU by the compiled kernels, differentiable once.

Half dtypes are computed in float32 and rounded at the end. Nothing of size n*m is in memory, forward or backward.
A weight below the smallest normal number is 0.
"""

import struct
from array import array
from math import e, log2
from typing import Any

import torch
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.call import Call
from attnspec.backends.pytorch.kernels.llvm.threads import compiled, run, thread_count
from attnspec.backends.pytorch.runtime.accumulation import widened
from attnspec.backends.pytorch.runtime.first_order import first_order, no_second_derivative
from attnspec.backends.pytorch.runtime.transforms import ordinary, taken_over

from .backward import backward_kernel
from .forward import KEYS, forward_kernel
from .tiles import TILE_ROWS, width

_once = no_second_derivative("scaled dot-product attention", "llvm", "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)")


def attend(call: Call) -> tuple[Tensor, bool]:
    """The output (b, h, n, d_v) of a call without empty operands, and whether a NaN is in it."""
    query, key, value, mask, causal, scale, _ = call
    if call.differentiates():
        output, odd = DotAttention.apply(query, key, value, mask, causal, scale)  # type: ignore[no-untyped-call]
        return output, odd
    pooled, _, _, odd = _forward(query, key, value, mask, causal, scale)
    return pooled.to(query.dtype), odd


class DotAttention(torch.autograd.Function):
    """softmax(scale·QKᵀ)V for (b, h, n, d), (b, h, m, d), (b, h, m, d_v), and whether a NaN is in it."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, bool]:
        """The output; the backward reads it before its rounding."""
        pooled, top, inverse, odd = _forward(query, key, value, mask, causal, scale)
        ctx.save_for_backward(query, key, value, mask, pooled, top, inverse)
        ctx.causal, ctx.scale = causal, scale
        return pooled.to(query.dtype), odd

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor | None, ...]:
        """Gradients of query, key and value."""
        *operands, mask, pooled, top, inverse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]

        def gradients(
            gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, pooled: Tensor, top: Tensor, inverse: Tensor
        ) -> tuple[Tensor | None, ...]:
            call = Call(query, key, value, mask, ctx.causal, ctx.scale)
            gradient = gradient.resolve_neg()
            if taken_over() or not all(map(ordinary, (gradient, query, key, value, pooled, top, inverse))):
                return _plain_gradients(call, gradient, pooled, wanted)
            return _backward(call, gradient, pooled, top, inverse, wanted)

        tensors = gradient, *operands, pooled, top, inverse
        found = first_order(_once, gradients, *tensors)
        return *found, None, None, None


def _rows(x: Tensor) -> Tensor:
    """x with rows that lie side by side, in the type of the kernels."""
    return _side_by_side(widened(x))


def _side_by_side(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _bits(x: float) -> int:
    word: int = struct.unpack("q", struct.pack("d", x))[0]
    return word


def _layout(name: str, x: Tensor) -> dict[str, int]:
    """Address and steps; a dimension of size 1 is read as often as the others are long."""
    steps = [0 if size == 1 else step for size, step in zip(x.shape[:3], x.stride()[:3], strict=True)]
    return {name: x.data_ptr(), f"{name}_batch": steps[0], f"{name}_head": steps[1], f"{name}_row": steps[2]}


def _arguments(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float,
               output: Tensor, top: Tensor, inverse: Tensor) -> dict[str, int]:  # fmt: skip
    """What both kernels take, but for tasks and scratch memory; the tensors must outlive the call."""
    (_, h, n, d), (m, d_v) = query.shape, value.shape[-2:]
    lanes = width(query.element_size() * 8)
    unmasked = {"mask": 0, "mask_batch": 0, "mask_head": 0, "mask_row": 0}
    return {
        "chunks": -(-n // lanes), "heads": h, "n": n, "m": m, "d": d, "d_v": d_v,
        "d_whole": -(-d // lanes) * lanes, "v_whole": -(-d_v // lanes) * lanes,
        "causal": int(causal), "scale": _bits(scale * log2(e)),
        **_layout("query", query), **_layout("key", key), **_layout("value", value),
        **(unmasked if mask is None else _layout("mask", mask)), **_layout("output", output),
        "top": top.data_ptr(), "inverse": inverse.data_ptr(),
    }  # fmt: skip


def _forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
             scale: float) -> tuple[Tensor, Tensor, Tensor, bool]:  # fmt: skip
    """Output in the type of the kernels, for each query the largest score and one over the sum, and whether NaN."""
    query, key, value = _rows(query), _rows(key), _rows(value)
    mask = None if mask is None else _side_by_side(mask)
    (b, h, n, d), (m, d_v) = query.shape, value.shape[-2:]
    # rows of one query side by side: heads are then joined without a copy
    output = query.new_empty(b, n, h, d_v).transpose(1, 2)
    top, inverse = query.new_empty(2, b, h, n)
    odd = array("q", [0])
    values = _arguments(query, key, value, mask, causal, scale, output, top, inverse)
    tasks = b * h * values["chunks"]
    threads = thread_count(tasks, b * h * n * m * (d + d_v) / 2)
    lanes = width(query.element_size() * 8)
    size = (values["d_whole"] + values["v_whole"] + KEYS) * lanes + _words(query)
    scratch = query.new_empty(threads * size)
    values |= {"tasks": tasks, "scratch": scratch.data_ptr(), "scratch_size": size, "flag": odd.buffer_info()[0]}
    run(compiled(forward_kernel, query.element_size() * 8), threads, values)
    return output, top, inverse, odd[0] != 0


def _words(x: Tensor) -> int:
    """Reals that take as much memory as 64 bits of a mask for each query of a block."""
    return 8 // x.element_size() * width(x.element_size() * 8)


def _backward(call: Call, gradient: Tensor, pooled: Tensor, top: Tensor, inverse: Tensor,
              wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of those operands that are wanted, in their dtypes."""
    # whatever stored them for the backward may have moved them
    query, key, value, gradient, pooled = (_rows(x) for x in (*call[:3], gradient, pooled))
    top, inverse = top.contiguous(), inverse.contiguous()
    mask = None if call.mask is None else _side_by_side(call.mask)
    (b, h, n, d), (m, d_v) = query.shape, value.shape[-2:]
    values = _arguments(query, key, value, mask, call.causal, call.scale, pooled, top, inverse)
    d_whole, v_whole, m_whole = values["d_whole"], values["v_whole"], -(-m // TILE_ROWS) * TILE_ROWS
    threads = thread_count(b * h * -(-m // KEYS), b * h * n * m * (3 * d + 2 * d_v) / 2)
    keys = _range(b * h, m, threads)
    ranges = -(-m // keys)
    by_query = by_key = by_value = None
    if wanted[0]:
        # a range of keys writes no row that attends none of them
        allocate = query.new_zeros if call.causal and ranges > 1 else query.new_empty
        by_query = allocate(ranges, b, h, n, d)
    if wanted[1]:
        by_key = query.new_zeros(b, h, m_whole, d_whole)
    if wanted[2]:
        by_value = query.new_zeros(b, h, m_whole, v_whole)
    lanes = width(query.element_size() * 8)
    size = (3 * d_whole + 2 * v_whole + 2 * KEYS + 1) * lanes + _words(query)
    scratch = query.new_empty(threads * size)
    values |= {
        "tasks": b * h * ranges, "scratch": scratch.data_ptr(), "scratch_size": size,
        "range": keys, "ranges": ranges, "m_whole": m_whole, "slope": _bits(call.scale),
        **_layout("gradient", gradient),
        "query_gradient": 0 if by_query is None else by_query.data_ptr(),
        "key_gradient": 0 if by_key is None else by_key.data_ptr(),
        "value_gradient": 0 if by_value is None else by_value.data_ptr(),
    }  # fmt: skip
    run(compiled(backward_kernel, query.element_size() * 8), threads, values)
    return (
        None if by_query is None else (by_query[0] if ranges == 1 else by_query.sum(0)).to(call.query.dtype),
        None if by_key is None else by_key[:, :, :m, :d].to(call.key.dtype),
        None if by_value is None else by_value[:, :, :m, :d_v].to(call.value.dtype),
    )


def _plain_gradients(call: Call, gradient: Tensor, pooled: Tensor,
                     wanted: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The same by PyTorch's operations, for what kernels cannot read: batches of gradients, modes, odd tensors."""
    query, key, value = map(widened, call[:3])
    gradient, allowed = gradient.to(query.dtype), call.allowed()
    attends = allowed.any(-1, keepdim=True)
    scores = (call.scale * (query @ key.mT)).masked_fill(~allowed, -torch.inf).masked_fill(~attends, 0)
    weights = torch.softmax(scores, -1).masked_fill(~(allowed & attends), 0)
    slopes = gradient @ value.mT - (gradient * pooled).sum(-1, keepdim=True)
    slopes = call.scale * weights * slopes.masked_fill(~allowed, 0)
    found = slopes @ key, slopes.mT @ query, weights.mT @ gradient
    return tuple(x.to(own.dtype) if w else None for x, own, w in zip(found, call[:3], wanted, strict=True))


def _range(entries: int, m: int, threads: int) -> int:
    """Keys of one task of the backward, a multiple of ``KEYS``: all, unless some threads would have less to do."""
    blocks = -(-m // KEYS)
    if entries % threads == 0:
        return blocks * KEYS
    return -(-blocks // min(blocks, -(-4 * threads // entries))) * KEYS
