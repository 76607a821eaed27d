"""Additive attention in plain PyTorch operations: any device, dtype and derivative.

Slow, in bounded memory: only one chunk of query rows has its tanh in memory; the backward pass recomputes it.
Half dtypes are computed in float32.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.accumulation import finite, times_vector, upcast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.products import batched_product
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted, under_torch_func

CHUNK = 2**22
"""Most elements of the largest intermediate, (batch, rows, m, h): 16 MiB of float32. A chunk has at least one row."""


def _chunks(n: int, batch: int, m: int, width: int) -> list[slice]:
    rows = max(1, CHUNK // max(1, batch * m * width))
    # a single chunk is sliced without sizes, so that torch.compile need not specialise on n
    return [slice(None)] if n <= rows else [slice(first, first + rows) for first in range(0, n, rows)]


def _score_chunk(a: Tensor, b: Tensor, w_v: Tensor, allowed: Tensor | None) -> Tensor:
    terms = a[..., :, None, :] + b[..., None, :, :]
    if allowed is not None:
        # a NaN of an excluded key must not reach the gradient of the query
        terms = torch.where(allowed[..., None], terms, 0.0)
    terms = torch.tanh(terms)
    # a weight per head, (heads, 1, 1, h), has more dimensions
    return times_vector(terms, w_v) if w_v.dim() == 1 else (terms * w_v).sum(-1)


def _attention_chunk(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, allowed: Tensor, nonfinite: bool) -> Tensor:
    """Attention of some rows. If ``nonfinite``, numbers of excluded pairs are replaced, in sums and gradients."""
    scores = _score_chunk(a, b, w_v, allowed if nonfinite else None)
    # a row without an attendable key has weights 0 and gradients 0
    excluded, empty = ~allowed, ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(excluded, -torch.inf)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(excluded, 0.0)
    if nonfinite:
        output = torch.where(allowed[..., None], weights[..., None] * value[..., None, :, :], 0.0).sum(-2)
    else:
        output = batched_product(weights, value)
    # stops a NaN in the incoming gradient of an empty row
    return output.masked_fill(empty, 0.0)


def _with_checkpoint(compute: Callable[..., Tensor], *operands: Tensor | bool | None) -> Tensor:
    """compute(*operands), recomputed in the backward pass, except under torch.func, which has no checkpoints."""
    if under_torch_func():
        return compute(*operands)
    result: Tensor = checkpoint(compute, *operands, use_reentrant=False, preserve_rng_state=False)
    return result


def attention(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, *, mask: Tensor | None = None,
              causal: bool = False) -> Tensor:  # fmt: skip
    """softmax(sum_h w_v tanh(a + b)) value for operands of one dtype."""
    n, m, d = a.shape[-2], b.shape[-2], value.shape[-1]
    shapes = [x.shape[:-2] for x in (a, b, value)]
    batch = broadcast(*shapes, mask.shape[:-2] if mask is not None else ())
    dtype = a.dtype
    if n == 0 or m == 0 or batch.numel() == 0:
        # 0 times the operands keeps them in the autograd graph, so that they have gradients, of 0
        return value.new_zeros(*batch, n, d) + 0 * (a.sum() + b.sum() + w_v.sum() + value.sum()).nan_to_num()
    with autocast.off(a):
        a, b, w_v, value = map(upcast, (a, b, w_v, value))
        allowed = causal_triangle(n, m, a.device) if causal else torch.ones(n, m, dtype=torch.bool, device=a.device)
        if mask is not None:
            allowed = allowed & mask
        nonfinite = mask is not None or causal  # assumed where values cannot be read
        if nonfinite and a.is_cpu and not operations_intercepted():  # elsewhere reading would wait for the device
            nonfinite = not bool(a.isfinite().all() & b.isfinite().all() & value.isfinite().all())
        parts = []
        for chunk in _chunks(n, batch.numel(), m, max(b.shape[-1], d) if nonfinite else b.shape[-1]):
            operands = (a[..., chunk, :], b, w_v, value, allowed[..., chunk, :], nonfinite)
            parts.append(_with_checkpoint(_attention_chunk, *operands))
        return torch.cat(parts, -2).to(dtype).expand(*batch, n, d)


def masked_scores(a: Tensor, b: Tensor, w_v: Tensor, allowed: Tensor | None) -> Tensor:
    """sum_h w_v tanh(a + b) without chunks, of any numbers where pairs are excluded; their gradients are 0."""
    if allowed is not None and a.is_cpu and finite(a) and finite(b):
        allowed = None
    return _score_chunk(a, b, w_v, allowed)


def attention_in_memory(
    a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """`attention` without chunks, for few terms in float32 or float64; w_v (h), or (*batch, 1, 1, h)."""
    n, m = a.shape[-2], b.shape[-2]
    if mask is None and not causal and m:
        return batched_product(_score_chunk(a, b, w_v, None).softmax(-1), value)
    allowed = mask if mask is not None else torch.ones(1, m, dtype=torch.bool, device=a.device)
    allowed = allowed.expand(*allowed.shape[:-1], m)
    if causal:
        allowed = allowed & causal_triangle(n, m, a.device)
    nonfinite = not a.is_cpu or operations_intercepted() or not all(map(finite, (a, b, value)))
    return _attention_chunk(a, b, w_v, value, allowed, nonfinite)


def scores(a: Tensor, b: Tensor, w_v: Tensor) -> Tensor:
    """sum_h w_v tanh(a + b) for operands of one dtype."""
    n, m = a.shape[-2], b.shape[-2]
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    dtype = a.dtype
    if n == 0 or m == 0 or batch.numel() == 0:
        return a.new_zeros(*batch, n, m) + 0 * (a.sum() + b.sum() + w_v.sum()).nan_to_num()
    with autocast.off(a):
        a, b, w_v = map(upcast, (a, b, w_v))
        chunks = _chunks(n, batch.numel(), m, b.shape[-1])
        parts = [_with_checkpoint(_score_chunk, a[..., chunk, :], b, w_v, None) for chunk in chunks]
        return torch.cat(parts, -2).to(dtype)
