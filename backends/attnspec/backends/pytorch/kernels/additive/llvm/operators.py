"""Additive attention on the CPU as PyTorch operators around the compiled kernels.

Operators `attnspec::additive_attention_cpu` and `attnspec::additive_scores_cpu` and their gradients; scores of size n*m
exist only in the weights that a backward pass needs. Second derivatives raise.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.additive.registration import operator
from attnspec.backends.pytorch.kernels.llvm.threads import run, thread_count
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import recorded

from . import backward, pages
from .arguments import Scores, attention_scratch
from .attention import MaskPlaces, add_nonfinite, attend, attendable, compute_type, finite_registers, kept_weights
from .attention_gradients import attention_gradients, of_attendable
from .direct import ONCE
from .layout import (
    Factors,
    Weight,
    bits,
    flatten,
    padded,
    row_stride,
    terms,
)
from .scores import scores_kernel
from .tiles import CHUNK, key_lanes
from .unit_gradients import UnitGradients


@operator("additive_attention_cpu")
def attention_op(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
                 save: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (*batch, n, d_v) and, if `save`, the weights (entries, n, m rounded up), else an empty tensor."""
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], mask.shape[:-2] if mask is not None else ())
    compute = compute_type(a.dtype)
    stride = row_stride(m, a.new_empty(0, dtype=compute))
    if n == 0 or m == 0 or batch.numel() == 0:
        return a.new_zeros(*batch, n, d), a.new_zeros(batch.numel() if save else 0, n, stride, dtype=compute)
    a3, a_index = flatten(a, batch, compute)
    b3, b_index = flatten(b, batch, compute)
    v3, value_index = flatten(value, batch, compute)
    v, clean = finite_registers(v3)
    rows = None if mask is None else MaskPlaces.of(mask, batch, n, m).rows(mask)
    weights = None
    if save or not clean:
        weights = kept_weights(a3, batch.numel(), n, m, causal)
        weights.numpy()[..., padded(m, a3) :] = 0.0
    weight = Weight.of(w_v.to(compute).contiguous())
    keys = Factors.of_keys(b3, weight.flip)
    output = attend(a3, keys, weight, v, a_index, b_index, value_index, rows, causal, weights)[..., :d]
    if not clean:
        assert weights is not None
        add_nonfinite(output, weights, v3, value_index, attendable(mask, causal, batch, n, m))
    result = output.to(a.dtype).reshape(*batch, n, d).contiguous()
    return result, weights if save and weights is not None else a.new_empty(0, n, stride, dtype=compute)


@attention_op.register_fake
def _(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
      save: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], mask.shape[:-2] if mask is not None else ())
    compute = compute_type(a.dtype)
    stride = row_stride(m, a.new_empty(0, dtype=compute))
    entries = batch.numel() if save else 0
    return a.new_empty(*batch, n, d), a.new_empty(entries, n, stride, dtype=compute)


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
    g3 = of_attendable(g3, weights, m)
    v3 = finite_registers(v3)[0]
    grad_a, grad_b, grad_w, grad_value = attention_gradients(
        g3, a3, b3, w_v.to(compute).contiguous(), v3, output.to(compute).reshape(g3.shape), weights.contiguous(),
        a_index, b_index, value_index, causal,
    )  # fmt: skip
    grad_value = _like(grad_value[..., :d], batch, value)
    return _like(grad_a, batch, a), _like(grad_b, batch, b), grad_w.to(w_v.dtype), grad_value


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
    chunks = -(-n // CHUNK)
    threads = thread_count(entries * chunks, entries * n * m * h)
    stride = row_stride(m, a3)
    output = a3.new_empty(*batch, n, m)  # and no view, so that it may be changed in place
    weight = Weight.of(w_v.to(compute).contiguous())
    arguments = Scores(
        tasks=entries * chunks,
        chunks=chunks,
        n=n,
        m=m,
        h=h,
        causal=False,
        stride=stride,
        scratch=a3.new_empty(threads, sum(attention_scratch(bits(a3), CHUNK, stride, 0))),
        a_index=a_index,
        b_index=b_index,
        terms=terms(Factors.of_queries(a3, weight.flip, weight.ratio), Factors.of_keys(b3, weight.flip), weight),
        output=output,
    )
    run(scores_kernel(bits(a3)), threads, arguments)
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
    tiles, stride = -(-n // backward.ROWS), row_stride(m, a3)
    score_grad = grad.to(compute).reshape(batch.numel(), n, m)
    score_grad = pad(score_grad, (0, stride - m, 0, tiles * backward.ROWS - n)).contiguous()
    every = torch.tensor([0, padded(m, a3) // key_lanes(bits(a3))], device="cpu")
    extent = every.expand(batch.numel(), tiles, 2).contiguous()
    units = UnitGradients(a3, b3, w_v.to(compute).contiguous(), a_index, b_index)
    units.add(0, score_grad, extent)
    grad_w = units.weight_gradient().double() + float(score_grad.numpy().sum(-1).sum(dtype=np.float64))
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
    gradients_op.register_autograd(ONCE)


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, *, mask: Tensor | None = None,
              causal: bool = False) -> Tensor:  # fmt: skip
    """softmax(sum_h w_v tanh(a + b)) value, differentiable; operands of one dtype."""
    save = recorded(a, b, w_v, value)
    output: Tensor = attention_op(a, b, w_v, value, mask, causal, save)[0]
    return output


def scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """sum_h w_v tanh(a + b), differentiable; operands of one dtype."""
    output: Tensor = scores_op(a, b, w_v)
    return output
