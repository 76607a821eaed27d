"""Additive attention on the CPU as PyTorch operators around the compiled kernels.

Operators `attnspec::additive_attention_cpu` and `attnspec::additive_scores_cpu` and their gradients; scores of size n*m
exist only in the weights that a backward pass needs. Second derivatives raise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.additive.operators import operator
from attnspec.backends.pytorch.kernels.llvm.threads import compiled, run, thread_count
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.first_order import no_second_derivative

from . import backward, forward, pages
from .layout import (
    Arguments,
    Factors,
    Weight,
    bits,
    blocked,
    finite,
    flatten,
    lanes,
    padded,
    row_stride,
    scoring,
    zeros,
)
from .unit_gradients import UnitGradients

GROUP_BYTES = 2**21


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type in which the kernels work: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def whole_registers(x: Tensor) -> Tensor:
    """The last dimension padded with zeros to whole registers."""
    fill = -x.shape[-1] % lanes(x)
    return (pad(x, (0, fill)) if fill else x).contiguous()


def finite_registers(value: Tensor) -> tuple[Tensor, bool]:
    """Values in whole registers, 0 where they are not finite, and whether all of them were."""
    clean = finite(value)
    return whole_registers(value if clean else torch.where(value.isfinite(), value, 0.0)), clean


@dataclass
class MaskRows:
    """A mask as bytes: where each batch entry begins, and the distance between rows (0 if all queries share one)."""

    rows: Tensor
    index: Tensor
    step: int

    @classmethod
    def of(cls, mask: Tensor, batch: torch.Size, n: int, m: int) -> "MaskRows":
        """A mask broadcastable to (*batch, n, m)."""
        own = broadcast(mask.shape, (1, m))
        rows, index = flatten(mask.expand(own), batch, torch.bool)
        return cls(rows, index * (rows.shape[1] * m), m if rows.shape[1] == n and n > 1 else 0)


def attend(a: Tensor, keys: Factors, weight: Weight, value: Tensor, a_index: Tensor, b_index: Tensor,
           value_index: Tensor, mask: MaskRows | None, causal: bool, weights: Tensor | None) -> Tensor:  # fmt: skip
    """Output (entries, n, d rounded up) for non-empty operands in the compute type; value is finite and whole."""
    batches, n, m, h, d = a_index.numel(), a.shape[1], value.shape[1], a.shape[2], value.shape[2]
    single = n == 1 and not causal  # the backward kernels take causal queries by whole chunks
    rows = 1 if single else forward.CHUNK
    chunks = -(-n // rows)
    tasks = batches * chunks
    threads = thread_count(tasks, batches * n * m * (h + d))
    stride = row_stride(m, a)
    scratch_size = rows * stride + 64 + (d if single else 0)
    output = a.new_empty(batches, n, d)
    run(
        compiled(forward.attend_kernel, bits(a), single),
        threads,
        scoring(Factors.of_queries(a, weight.ratio), keys, weight)
        | {
            "tasks": tasks,
            "batches": batches,
            "chunks": chunks,
            "n": n,
            "m": m,
            "causal": int(causal),
            "stride": stride,
            "scratch": a.new_empty(threads * scratch_size),
            "scratch_size": scratch_size,
            "a_index": a_index,
            "b_index": b_index,
            "mask": None if mask is None else mask.rows,
            "mask_index": None if mask is None else mask.index,
            "mask_row": 0 if mask is None else mask.step,
            "value_index": value_index,
            "value": value,
            "d": d,
            "output": output,
            "weights": weights,
        },
    )
    return output


def add_nonfinite(output: Tensor, weights: Tensor, value: Tensor, value_index: Tensor, attendable: Tensor) -> None:
    """Add what the non-finite values of attendable keys contribute; everybody else's row keeps its bits."""
    bad = ~value.isfinite()
    for key in bad.any(-1).any(0).nonzero().flatten().tolist():
        extra = torch.where(bad[:, key], value[:, key], 0.0)[value_index][:, None, :]
        share = weights[:, :, key, None] * extra
        output += torch.where(attendable[:, :, key, None] & bad[:, key][value_index][:, None, :], share, 0.0)


def attendable(mask: Tensor | None, causal: bool, batch: torch.Size, n: int, m: int) -> Tensor:
    """Which keys each query may attend to, (entries, n, m); mask broadcastable to (*batch, n, m)."""
    allowed = torch.ones(n, m, dtype=torch.bool, device="cpu")
    if causal:
        allowed = allowed.tril()
    if mask is not None:
        allowed = allowed & mask
    return allowed.expand(*batch, n, m).reshape(batch.numel(), n, m)


@operator("additive_attention_cpu")
def attention_op(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
                 save: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (*batch, n, d_v) and, if `save`, the weights (entries, n, m rounded up), else an empty tensor."""
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], mask.shape[:-2] if mask is not None else ())
    compute = compute_type(a.dtype)
    whole = row_stride(m, a.new_empty(0, dtype=compute))
    if n == 0 or m == 0 or batch.numel() == 0:
        return a.new_zeros(*batch, n, d), a.new_zeros(batch.numel() if save else 0, n, whole, dtype=compute)
    a3, a_index = flatten(a, batch, compute)
    b3, b_index = flatten(b, batch, compute)
    v3, value_index = flatten(value, batch, compute)
    v, clean = finite_registers(v3)
    rows = None if mask is None else MaskRows.of(mask, batch, n, m)
    weights = None
    if save or not clean:
        shape = batch.numel(), n, whole
        weights = zeros(a3, *shape) if causal else a3.new_empty(shape)
        weights.numpy()[..., padded(m, a3) :] = 0.0
    weight = Weight.of(w_v.to(compute).contiguous())
    output = attend(a3, Factors.of_keys(b3), weight, v, a_index, b_index, value_index, rows, causal, weights)[..., :d]
    if not clean:
        assert weights is not None
        add_nonfinite(output, weights, v3, value_index, attendable(mask, causal, batch, n, m))
    result = output.to(a.dtype).reshape(*batch, n, d).contiguous()
    return result, weights if save and weights is not None else a.new_empty(0, n, whole, dtype=compute)


@attention_op.register_fake
def _(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
      save: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], mask.shape[:-2] if mask is not None else ())
    compute = compute_type(a.dtype)
    whole = row_stride(m, a.new_empty(0, dtype=compute))
    entries = batch.numel() if save else 0
    return a.new_empty(*batch, n, d), a.new_empty(entries, n, whole, dtype=compute)


def _like(gradient: Tensor, batch: torch.Size, original: Tensor) -> Tensor:
    """The gradient of a broadcast operand summed back to its shape, contiguous and in its type."""
    full = gradient.reshape(*batch, *gradient.shape[-2:])
    return pages.converted(full.sum_to_size(original.shape), original.dtype).contiguous()


@operator("additive_attention_cpu_backward")
def attention_backward_op(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, output: Tensor,
                          weights: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a, b, w_v and value."""
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch, compute = output.shape[:-2], compute_type(a.dtype)
    if n == 0 or m == 0 or batch.numel() == 0:
        return torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(w_v), torch.zeros_like(value)
    a3, a_index = flatten(a, batch, compute)
    b3, b_index = flatten(b, batch, compute)
    v3, value_index = flatten(value, batch, compute)
    g3 = grad.to(compute).expand(*batch, n, d).reshape(batch.numel(), n, d)
    if not finite(g3):  # what is given for a row without an attendable key has no effect
        g3 = torch.where(weights.any(-1, keepdim=True), g3, 0.0)
    delta = torch.from_numpy(np.einsum("bnd,bnd->bn", g3.numpy(), output.to(compute).reshape(g3.shape).numpy()))
    g3, v3 = whole_registers(g3), finite_registers(v3)[0]
    whole, entries, wide = weights.shape[2], batch.numel(), v3.shape[2]
    tiles = -(-n // backward.ROWS)
    extent = weights.new_empty(entries, tiles, 2, dtype=torch.int64)
    grad_value = pages.empty(a3, entries, m, wide)
    common: Arguments = {"n": n, "m": m, "d": wide, "causal": int(causal), "stride": whole, "value_block": blocked(v3)}
    threads, weights = torch.get_num_threads(), weights.contiguous()
    units = UnitGradients(a3, b3, w_v.to(compute).contiguous(), a_index, b_index)
    # the gradient of the scores exists for a few entries at a time, in memory that stays in the cache
    group = max(GROUP_BYTES // (n * whole * a3.element_size()), -(-2 * threads * backward.UNITS // a3.shape[2]), 1)
    score_grad = zeros(a3, min(group, entries), tiles * backward.ROWS, whole)
    query_chunks, key_chunks = -(-n // forward.CHUNK), -(-m // forward.CHUNK)
    for first in range(0, entries, group):
        part = slice(first, min(first + group, entries))
        count = part.stop - first
        run(
            compiled(backward.score_gradient_kernel, bits(a3), n == 1),
            thread_count(count * query_chunks, count * n * m * wide),
            common
            | {
                "tasks": count * query_chunks,
                "batches": count,
                "chunks": query_chunks,
                "weights": weights[part],
                "grad_output": g3[part],
                "value_index": value_index[part],
                "delta": delta[part],
                "score_grad": score_grad,
                "extent": extent[part],
            },
        )
        units.add(first, score_grad[:count], extent[part])
    run(
        compiled(backward.value_gradient_kernel, bits(a3)),
        thread_count(entries * key_chunks, entries * n * m * wide),
        common
        | {
            "tasks": entries * key_chunks,
            "batches": entries,
            "chunks": key_chunks,
            "weights": weights,
            "grad_output": g3,
            "grad_value": grad_value,
        },
    )
    grad_a, grad_b = units.projection_gradients()
    grad_w = units.weight_gradient().to(w_v.dtype)
    return _like(grad_a, batch, a), _like(grad_b, batch, b), grad_w, _like(grad_value[..., :d], batch, value)


@attention_backward_op.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, output: Tensor, weights: Tensor,
      causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (a, b, w_v, value))  # type: ignore[return-value]


@operator("additive_scores_cpu")
def scores_op(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """Scores (*batch, n, m)."""
    (n, h), m = a.shape[-2:], b.shape[-2]
    batch, compute = broadcast(a.shape[:-2], b.shape[:-2]), compute_type(a.dtype)
    entries = batch.numel()
    if n == 0 or m == 0 or entries == 0:
        return a.new_zeros(*batch, n, m)
    a3, a_index = flatten(a, batch, compute)
    b3, b_index = flatten(b, batch, compute)
    chunks = -(-n // forward.CHUNK)
    threads = thread_count(entries * chunks, entries * n * m * h)
    stride = row_stride(m, a3)
    scratch_size = forward.CHUNK * stride + 64
    output = a3.new_empty(*batch, n, m)  # and no view, so that it may be changed in place
    weight = Weight.of(w_v.to(compute).contiguous())
    run(
        compiled(forward.scores_kernel, bits(a3)),
        threads,
        scoring(Factors.of_queries(a3, weight.ratio), Factors.of_keys(b3), weight)
        | {
            "tasks": entries * chunks,
            "batches": entries,
            "chunks": chunks,
            "n": n,
            "m": m,
            "causal": 0,
            "stride": stride,
            "scratch": a3.new_empty(threads * scratch_size),
            "scratch_size": scratch_size,
            "a_index": a_index,
            "b_index": b_index,
            "output": output,
        },
    )
    return output.to(a.dtype)


@scores_op.register_fake
def _(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    return a.new_empty(*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2])


@operator("additive_scores_cpu_backward")
def scores_backward_op(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and w_v."""
    n, m = a.shape[-2], b.shape[-2]
    batch, compute = broadcast(a.shape[:-2], b.shape[:-2]), compute_type(a.dtype)
    if n == 0 or m == 0 or batch.numel() == 0:
        return torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(w_v)
    a3, a_index = flatten(a, batch, compute)
    b3, b_index = flatten(b, batch, compute)
    tiles, whole = -(-n // backward.ROWS), row_stride(m, a3)
    slopes = grad.to(compute).reshape(batch.numel(), n, m)
    slopes = pad(slopes, (0, whole - m, 0, tiles * backward.ROWS - n)).contiguous()
    every = torch.tensor([0, padded(m, a3) // forward.key_lanes(bits(a3))], device="cpu")
    extent = every.expand(batch.numel(), tiles, 2).contiguous()
    units = UnitGradients(a3, b3, w_v.to(compute).contiguous(), a_index, b_index)
    units.add(0, slopes, extent)
    grad_w = units.weight_gradient() + float(slopes.numpy().sum(-1).sum(dtype=np.float64))
    grad_a, grad_b = units.projection_gradients()
    return _like(grad_a, batch, a), _like(grad_b, batch, b), grad_w.to(w_v.dtype)


@scores_backward_op.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a.new_empty(a.shape), b.new_empty(b.shape), w_v.new_empty(w_v.shape)


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    a, b, w_v, value, _, ctx.causal, ctx.save = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(a, b, w_v, value, *output)


def _attention_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if not ctx.save:
        raise RuntimeError(
            "additive attention: computed with save=False, so that its weights were not kept for gradients"
        )
    a, b, w_v, value, output, weights = ctx.saved_tensors
    return *attention_backward_op(grad, a, b, w_v, value, output, weights, ctx.causal), None, None, None


def _save_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _scores_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = scores_backward_op(grad, *ctx.saved_tensors)
    return gradients


attention_op.register_autograd(_attention_backward, setup_context=_save_attention)
scores_op.register_autograd(_scores_backward, setup_context=_save_scores)
for gradients_op in (attention_backward_op, scores_backward_op):
    gradients_op.register_autograd(
        no_second_derivative("additive attention", "llvm", "additive.attention(..., path='plain')")
    )


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, *, mask: Tensor | None = None,
              causal: bool = False) -> Tensor:  # fmt: skip
    """softmax(sum_h w_v tanh(a + b)) value, differentiable; operands of one dtype."""
    save = torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, w_v, value))
    output: Tensor = attention_op(a, b, w_v, value, mask, causal, save)[0]
    return output


def scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """sum_h w_v tanh(a + b), differentiable; operands of one dtype."""
    output: Tensor = scores_op(a, b, w_v)
    return output
