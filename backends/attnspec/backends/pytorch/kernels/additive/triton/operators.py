"""Additive attention in Triton: PyTorch custom operators, their fake tensors and gradients.

Runs on CUDA tensors, and on CPU tensors if TRITON_INTERPRET=1 is set before Triton is imported (slow; for tests). The
backward pass needs the output and one number per row (the log-sum-exp); nothing of size n*m is ever stored, but several
copies of the gradients are, see `gradient_splits`. Results are bitwise repeatable on one kind of GPU: there are no
atomic operations.

NaN or infinity in a masked key or value has no effect on queries that may not attend to it, neither in the result nor
in the gradients of queries, keys and weights. But NaN in the upstream gradient of a query propagates to the values'
gradients of every key of its tile.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

try:
    import triton  # noqa: F401
except ImportError as error:
    raise ImportError("additive attention on CUDA needs Triton: install triton, or attnspec[triton]") from error

from attnspec.backends.pytorch.kernels.additive.checks import check
from attnspec.backends.pytorch.kernels.additive.registration import TWICE_DIFFERENTIABLE, operator
from attnspec.backends.pytorch.kernels.additive.triton.backward import delta_kernel, gradient_kernel
from attnspec.backends.pytorch.kernels.additive.triton.forward import forward_kernel, scores_kernel
from attnspec.backends.pytorch.kernels.additive.triton.launch import (
    BLOCK,
    INTERPRET,
    NARROWEST,
    WIDEST_OF_GRADIENTS,
    Partials,
    combine,
    compact_mask,
    empty_partials,
    factors,
    gradient_splits,
    launch,
    mask_arguments,
    most_score_parts,
    multiprocessors,
    padded,
    power_of_two,
    scaled_weights,
    tile_warps,
    tile_width,
    tiles_per_program,
    widest_value,
)
from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.devices import AMPERE, capability
from attnspec.backends.pytorch.runtime.first_order import no_second_derivative

DTYPES = (torch.float32, *HALF_DTYPES)
# products with upstream gradients in float32 are three tf32 products, accurate to 2^-22
PRECISION = "tf32x3"
FEATURES = 16  # value features of a product in the backward pass


def supports(a: Tensor, *others: Tensor) -> bool:
    """Return whether the tensors share one device and one dtype: float32, bfloat16 or float16 (not float64)."""
    device = "cpu" if INTERPRET else "cuda"
    return (
        a.dtype in DTYPES
        and a.device.type == device
        and all(x.dtype == a.dtype and x.device == a.device for x in others)
        and (INTERPRET or capability(a.device) >= AMPERE)
    )


@operator("additive_attention_triton")
def _attention(
    a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attention: (B, n, h), (B, m, h), (h), (B, m, d_v), mask (outer, inner, n, m) with ones -> (B, n, d_v), (B, n).

    The mask's batch is B = outer · ``inner``; its axes have size 1 where it broadcasts (`compact_mask`).

    The second result is log2 sum_j exp2(log2(e) (e_ij - c)), c the same for all pairs, and infinite for an empty row.
    """
    a, b, w_v, value = a.contiguous(), b.contiguous(), w_v.contiguous(), value.contiguous()
    batch, n, hidden = a.shape
    m, d_v = value.shape[1:]
    out = value.new_zeros(batch, n, d_v)
    lse = value.new_full((batch, n), float("inf"), dtype=torch.float32)
    if out.numel() == 0 or m == 0:
        return out, lse
    widest, processors = widest_value(value), multiprocessors(a.device)
    blocks = batch * -(-n // BLOCK) * -(-d_v // widest)
    wide = tile_width(m, blocks, processors)
    weights = scaled_weights(w_v)
    query = factors(a, weights, BLOCK, scaled=True, unscaled=False)
    key = factors(b, weights, wide, scaled=False, unscaled=True, value=value)
    tiles = key.rows_padded // wide
    per_program = tiles_per_program(tiles, blocks, processors)
    splits = -(-tiles // per_program)
    partials = empty_partials(a, batch * n, splits, d_v) if splits > 1 else Partials(lse, lse, out)
    mask_bytes, strides = mask_arguments(mask, a)
    block_d = min(key.parts.shape[-1], widest)
    launch(
        forward_kernel, (batch * query.rows_padded // BLOCK, -(-d_v // block_d), splits), query.scaled, key.unscaled,
        a, b, query.ranges, key.ranges, key.nonfinite, weights.ratio, weights.flip, weights.constants, value,
        key.parts, mask_bytes, partials.total, partials.largest, partials.denominator, n, m, query.rows_padded,
        key.rows_padded, hidden, weights.stored, d_v, key.parts.shape[-1], key.parts[:1].numel(), per_program * wide,
        inner, *strides, WIDE=wide, BD=block_d, CAUSAL=causal, MASK=mask is not None, SPLIT=splits > 1,
        PARTS=key.parts.shape[0], INTERPRET=INTERPRET, num_stages=2,
        num_warps=tile_warps(wide, min(d_v, widest), blocks * splits, processors),
    )  # fmt: skip
    if splits > 1:
        combine(partials, out, lse)
    return out, lse


@_attention.register_fake
def _(
    a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int, causal: bool
) -> tuple[Tensor, Tensor]:
    batch, n, _ = a.shape
    return value.new_empty(batch, n, value.shape[2]), value.new_empty((batch, n), dtype=torch.float32)


@operator("additive_attention_triton_backward")
def _attention_backward(
    grad: Tensor, grad_lse: Tensor | None, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None,
    inner: int, causal: bool, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a, b, w_v and value; `grad_lse` enters through d lse / d scores = log2(e) P."""
    grad, value, out = grad.contiguous(), value.contiguous(), out.contiguous()
    batch, n, d_v = out.shape
    delta = torch.empty_like(lse)
    launch(
        delta_kernel, (-(-batch * n // BLOCK),), out, grad, delta, batch * n, d_v,
        BD=min(max(power_of_two(d_v), 16), 64), num_warps=4,
    )  # fmt: skip
    if grad_lse is not None:
        delta -= math.log2(math.e) * grad_lse
    grad, padded_value = (pad(x, (0, -d_v % FEATURES)) if d_v % FEATURES else x for x in (grad, value))
    grad_a, grad_b, grad_w, grad_value = _all_gradients(grad, a, b, w_v, padded_value, mask, inner, causal, lse, delta)
    return grad_a, grad_b, grad_w, grad_value[..., :d_v].to(value.dtype, copy=True)


@_attention_backward.register_fake
def _(
    grad: Tensor, grad_lse: Tensor | None, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None,
    inner: int, causal: bool, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return a.new_empty(a.shape), b.new_empty(b.shape), w_v.new_empty(w_v.shape), value.new_empty(value.shape)


def _all_gradients(
    grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor, value: Tensor | None, mask: Tensor | None, inner: int,
    causal: bool, lse: Tensor, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a, b, w_v and value in one launch; without `value`, `grad` is the gradient of the scores.

    Value features are a multiple of `FEATURES`: rows of another length would be loaded one number at a time, with an
    address each, which takes more registers than a thread has.
    """
    a, b, w_v = a.contiguous(), b.contiguous(), w_v.contiguous()
    batch, n, hidden = a.shape
    m = b.shape[1]
    d_v = 1 if value is None else value.shape[2]
    weights = scaled_weights(w_v)
    wide = min(max(power_of_two(m), NARROWEST), WIDEST_OF_GRADIENTS)
    query = factors(a, weights, BLOCK, scaled=True, unscaled=True)
    key = factors(b, weights, wide, scaled=False, unscaled=True)
    splits = gradient_splits(
        batch, query.rows_padded // BLOCK, key.rows_padded // wide, hidden, multiprocessors(a.device)
    )
    grad_query = query.unscaled.new_zeros(splits.keys, *query.unscaled.shape)
    grad_key = key.unscaled.new_zeros(splits.queries, *key.unscaled.shape)
    r_sum = a.new_zeros(batch * splits.queries * splits.keys, weights.stored, dtype=torch.float32)
    grad_value = a.new_zeros(0 if value is None else splits.queries, batch, m, d_v, dtype=torch.float32)
    mask_bytes, strides = mask_arguments(mask, a)
    launch(
        gradient_kernel, (r_sum.shape[0], splits.hidden), query.scaled, query.unscaled, key.unscaled, a, b,
        query.ranges, key.ranges, weights.ratio, weights.flip, weights.constants, grad if value is None else value,
        mask_bytes, lse, delta, grad, grad_query, grad_key, r_sum, grad_value, batch, n, m, query.rows_padded,
        key.rows_padded, hidden, weights.stored, d_v, splits.queries, splits.keys, splits.hidden, inner, *strides,
        WIDE=wide, BD=FEATURES, SCORES=value is None, CAUSAL=causal, MASK=mask is not None, PRECISION=PRECISION,
        INTERPRET=INTERPRET, num_warps=1, num_stages=2,
    )  # fmt: skip
    four_w = 4.0 * w_v.float()
    grad_a = (grad_query.sum(0)[:, :hidden, :n].mT * four_w).to(a.dtype)
    grad_b = (grad_key.sum(0)[:, :hidden, :m].mT * four_w).to(b.dtype)
    grad_w = -2.0 * r_sum[:, :hidden].sum(0)
    if value is None:
        grad_w = grad_w + grad.sum(dtype=torch.float32)
    grad_w = (weights.flip[:hidden] * grad_w).to(w_v.dtype)
    return grad_a.contiguous(), grad_b.contiguous(), grad_w, grad_value.sum(0)


def _save_attention(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    a, b, w_v, value, mask, ctx.inner, ctx.causal = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(a, b, w_v, value, mask, *output)


def _attention_gradients(ctx, grad, grad_lse):  # type: ignore[no-untyped-def]
    a, b, w_v, value, mask, out, lse = ctx.saved_tensors
    if grad is None and grad_lse is None:
        return (None,) * 7
    grad = torch.zeros_like(out) if grad is None else grad
    gradients = _attention_backward(grad, grad_lse, a, b, w_v, value, mask, ctx.inner, ctx.causal, out, lse)
    return *gradients, None, None, None


_attention.register_autograd(_attention_gradients, setup_context=_save_attention)


@operator("additive_scores_triton")
def _scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """Scores: (B, n, h), (B, m, h), (h) -> (B, n, m)."""
    a, b, w_v = a.contiguous(), b.contiguous(), w_v.contiguous()
    batch, n, hidden = a.shape
    m = b.shape[1]
    if 0 in (batch, n, m):
        return a.new_empty(batch, n, m)
    blocks, processors = batch * -(-n // BLOCK), multiprocessors(a.device)
    wide = tile_width(m, blocks, processors)
    weights = scaled_weights(w_v)
    query = factors(a, weights, BLOCK, scaled=True, unscaled=False)
    key = factors(b, weights, wide, scaled=False, unscaled=True)
    programs = blocks * key.rows_padded // wide
    most_parts = min(-(-processors // programs), most_score_parts(n, m, hidden))
    units = max(padded(-(-hidden // most_parts), 3), 3)
    parts = max(-(-hidden // units), 1)
    out = a.new_empty((parts, batch, n, m), dtype=torch.float32 if parts > 1 else a.dtype)
    launch(
        scores_kernel, (programs, parts), query.scaled, key.unscaled, a, b, query.ranges, key.ranges, weights.ratio,
        weights.flip, weights.constants, out, batch, n, m, query.rows_padded, key.rows_padded, hidden, weights.stored,
        units, WIDE=wide, INTERPRET=INTERPRET, num_warps=tile_warps(wide, 1, programs * parts, processors),
    )  # fmt: skip
    return out.sum(0).to(a.dtype) if parts > 1 else out[0]


@_scores.register_fake
def _(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[1])


@operator("additive_scores_triton_backward")
def _scores_backward(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and w_v. Rows of `grad` need not sum to 0, unlike under a softmax."""
    grad = unread = grad.contiguous()  # with SCORES the kernel reads no log-sum-exp and deltas
    return _all_gradients(grad, a, b, w_v, None, None, 1, False, lse=unread, delta=unread)[:3]


@_scores_backward.register_fake
def _(grad: Tensor, a: Tensor, b: Tensor, w_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a.new_empty(a.shape), b.new_empty(b.shape), w_v.new_empty(w_v.shape)


_scores.register_autograd(
    lambda ctx, grad: _scores_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
for _gradients in (_attention_backward, _scores_backward):
    _gradients.register_autograd(no_second_derivative("additive attention", "triton", TWICE_DIFFERENTIABLE))


def lower(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors, cast if autocast is on, as PyTorch's own attention does; TypeError for other dtypes."""
    tensors = autocast.cast(*tensors)
    if len({x.dtype for x in tensors}) > 1 or tensors[0].dtype not in DTYPES:
        got = ", ".join(str(x.dtype) for x in tensors)
        raise TypeError(f"additive attention: dtypes: expected one of float32, bfloat16, float16 for all; got {got}")
    return tensors


def join(batch: tuple[int, ...], *tensors: Tensor) -> list[Tensor]:
    """Return each tensor (*, rows, columns) as (B, rows, columns)."""
    return [x.expand(*batch, *x.shape[-2:]).reshape(math.prod(batch), *x.shape[-2:]) for x in tensors]


def attention(
    a: Float[Tensor, "*#batch n h"],
    b: Float[Tensor, "*#batch m h"],
    w_v: Float[Tensor, " h"],
    value: Float[Tensor, "*#batch m d_v"],
    *,
    mask: Bool[Tensor, "*#batch #n #m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "*batch n d_v"]:
    """softmax_j(w_v . tanh(a_i + b_j)) value, for projected queries `a` and keys `b`.

    float32, bfloat16 or float16, with float32 accumulation; the result has the inputs' dtype. A fully masked row, and
    every row when m = 0, is 0 with zero gradients. Raises ValueError for shapes, TypeError for dtypes.
    """
    check(a, b, w_v, value, mask)
    a, b, w_v, value = lower(a, b, w_v, value)
    n, m = a.shape[-2], b.shape[-2]
    batch = broadcast(a.shape[:-2], b.shape[:-2], value.shape[:-2], () if mask is None else mask.shape[:-2])
    compact, inner = (None, 1) if mask is None else compact_mask(mask, batch, n, m)
    queries, keys, values = join(batch, a, b, value)
    out, _ = _attention(queries, keys, w_v, values, compact, inner, causal)
    return out.reshape(*batch, n, value.shape[-1])


def scores(
    a: Float[Tensor, "*#batch n h"], b: Float[Tensor, "*#batch m h"], w_v: Float[Tensor, " h"]
) -> Float[Tensor, "*batch n m"]:
    """w_v . tanh(a_i + b_j); gradients are correct with or without a softmax after it."""
    check(a, b, w_v, None, None)
    a, b, w_v = lower(a, b, w_v)
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    queries, keys = join(batch, a, b)
    return _scores(queries, keys, w_v).reshape(*batch, a.shape[-2], b.shape[-2])
