"""Additive attention on the CPU as PyTorch operators around the compiled kernels.

Operators `attnspec::additive_attention_cpu` and `attnspec::additive_scores_cpu` and their gradients. Attention stores
n*m weights only if a backward pass needs them. Second derivatives raise.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnspec.backends.pytorch.kernels.additive.registration import operator
from attnspec.backends.pytorch.kernels.llvm.kernel_plan import offsets_of
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import needs_gradients

from . import backward, huge_pages
from .forward_plan import Sizes, attention_plan, score_plan
from .gradient_plan import UnitGradients, gradient_plan, unit_gradient_plan
from .layout import (
    Weight,
    add_nonfinite,
    attendable,
    bits,
    compute_type,
    entry_index,
    finite_registers,
    flatten,
    padded,
    row_stride,
    weights_memory,
    whole_registers,
    zero_empty_rows,
)
from .pointwise import REFUSE_SECOND_DERIVATIVE
from .tiles import key_lanes


@operator("additive_attention_cpu")
def attention_op(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
                 save: bool) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (*batch, n, d_v) and weights (entries, n, m rounded up). Without `save`, the weights are empty."""
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], mask.shape[:-2] if mask is not None else ())
    compute = compute_type(a.dtype)
    stride = row_stride(m, a.new_empty(0, dtype=compute))
    if n == 0 or m == 0 or batch.numel() == 0:
        return a.new_zeros(*batch, n, d), a.new_zeros(batch.numel() if save else 0, n, stride, dtype=compute)
    # names in 3: batches are flattened, (entries, rows, columns)
    a3, b3, v3 = flatten(a, compute), flatten(b, compute), flatten(value, compute)
    v, all_finite = finite_registers(v3)
    weights = None
    if save or not all_finite:
        weights = weights_memory(a3, batch.numel(), n, m, causal)
        weights.numpy()[..., padded(m, a3) :] = 0.0
    sizes = _sizes(batch, a, b, value, causal, v.shape[2])
    plan = attention_plan(sizes, None if mask is None else mask.shape)
    whole = a3.new_empty(batch.numel(), n, v.shape[2])
    _held, memory = huge_pages.leased_bytes("additive", a3, plan.size)  # held: no other call gets it before the return
    weight = Weight.of(w_v.to(compute).contiguous())
    plan.run(a3, b3, weight, memory, plan.mask_rows(mask), v, whole, weights)
    output = whole[..., :d]
    if not all_finite:
        assert weights is not None
        allowed = attendable(mask, causal, batch, n, m)
        add_nonfinite(output, weights, v3, entry_index(value.shape[:-2], batch), allowed)
    result = output.to(a.dtype).reshape(*batch, n, d).contiguous()
    return result, weights if save and weights is not None else a.new_empty(0, n, stride, dtype=compute)


def _sizes(batch: torch.Size, a: Tensor, b: Tensor, value: Tensor, causal: bool, d: int) -> Sizes:
    """Return the sizes of a call; `d` is the number of value features in whole registers."""
    batches, (m, h) = (a.shape[:-2], b.shape[:-2], value.shape[:-2]), b.shape[-2:]
    return Sizes(batch, *batches, a.shape[-2], m, h, d, causal, compute_type(a.dtype))


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
    """Sum a gradient (entries, …) over broadcast axes, to its operand's shape; contiguous, in the operand's dtype."""
    full = gradient.reshape(*batch, *gradient.shape[-2:])
    return huge_pages.converted(full.sum_to_size(original.shape), original.dtype).contiguous()


@operator("additive_attention_cpu_backward")
def attention_backward_op(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, output: Tensor,
                          weights: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a, b, w_v and value."""
    n, m, d = a.shape[-2], *value.shape[-2:]
    batch, compute = output.shape[:-2], compute_type(a.dtype)
    if n == 0 or m == 0 or batch.numel() == 0:
        return torch.zeros_like(a), torch.zeros_like(b), torch.zeros_like(w_v), torch.zeros_like(value)
    a3, b3, v3 = flatten(a, compute), flatten(b, compute), flatten(value, compute)
    g3 = grad.to(compute).expand(*batch, n, d).reshape(batch.numel(), n, d)
    g3 = whole_registers(zero_empty_rows(g3, weights, m))
    o3, v3 = whole_registers(output.to(compute).reshape(batch.numel(), n, d)), finite_registers(v3)[0]
    plan = gradient_plan(_sizes(batch, a, b, value, causal, v3.shape[2]))
    grad_a, grad_b, grad_w, grad_value = plan.run(
        g3, a3, b3, w_v.to(compute).contiguous(), v3, o3, weights.contiguous()
    )
    grad_value = _like(grad_value[..., :d], batch, value)
    return _like(grad_a, batch, a), _like(grad_b, batch, b), grad_w.to(w_v.dtype), grad_value


@attention_backward_op.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, output: Tensor, weights: Tensor,
      causal: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return tuple(x.new_empty(x.shape) for x in (a, b, w_v, value))  # type: ignore[return-value]


@operator("additive_scores_cpu")
def scores_op(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """Scores (*batch, n, m)."""
    n, m = a.shape[-2], b.shape[-2]
    batch, compute = broadcast(a.shape[:-2], b.shape[:-2]), compute_type(a.dtype)
    if n == 0 or m == 0 or batch.numel() == 0:
        return a.new_zeros(*batch, n, m)
    a3, b3 = flatten(a, compute), flatten(b, compute)
    output = a3.new_empty(*batch, n, m)  # not a view, so that callers may change it in place
    plan = score_plan(_sizes(batch, a, b, b, False, 0))
    _held, memory = huge_pages.leased_bytes("additive", a3, plan.size)
    plan.run(a3, b3, Weight.of(w_v.to(compute).contiguous()), memory, output)
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
    a3, b3 = flatten(a, compute), flatten(b, compute)
    # score gradients as the attention's backward writes them: whole tiles, each with its range of nonzero key blocks
    tiles, stride = -(-n // backward.ROWS), row_stride(m, a3)
    score_grad = grad.to(compute).reshape(batch.numel(), n, m)
    score_grad = pad(score_grad, (0, stride - m, 0, tiles * backward.ROWS - n)).contiguous()
    all_blocks = torch.tensor([0, padded(m, a3) // key_lanes(bits(a3))], device="cpu")
    extent = all_blocks.expand(batch.numel(), tiles, 2).contiguous()
    of_units = unit_gradient_plan(_sizes(batch, a, b, b, False, 0), batch.numel())
    offsets, size = offsets_of(of_units.bytes)
    _held, memory = huge_pages.leased_bytes("additive gradients", a3, size)
    units = UnitGradients(of_units, a3, b3, Weight.of(w_v.to(compute).contiguous()), memory, offsets)
    units.add(0, score_grad, extent.data_ptr())
    grad_a, grad_b, of_w = units.finish()
    # the part of dw_v that is 0 under a softmax, see `backward`
    grad_w = of_w.double() + float(score_grad.numpy().sum(-1).sum(dtype=np.float64))
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
        raise RuntimeError("additive attention: gradients: expected an output computed with save=True; got save=False")
    a, b, w_v, value, output, weights = ctx.saved_tensors
    return *attention_backward_op(grad, a, b, w_v, value, output, weights, ctx.causal), None, None, None


attention_op.register_autograd(_attention_backward, setup_context=_save_attention)
scores_op.register_autograd(
    lambda ctx, grad: scores_backward_op(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
for gradients_op in (attention_backward_op, scores_backward_op):
    gradients_op.register_autograd(REFUSE_SECOND_DERIVATIVE)


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, *, mask: Tensor | None = None,
              causal: bool = False) -> Tensor:  # fmt: skip
    """softmax(sum_h w_v tanh(a + b)) value, differentiable; operands of one dtype."""
    save = needs_gradients(a, b, w_v, value)
    return attention_op(a, b, w_v, value, mask, causal, save)[0]


def scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """sum_h w_v tanh(a + b), differentiable; operands of one dtype."""
    return scores_op(a, b, w_v)
