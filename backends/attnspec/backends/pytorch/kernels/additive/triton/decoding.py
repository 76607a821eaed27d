"""Bahdanau's decoding step in Triton: one query per source sentence, with prepared keys and values.

CUDA graphs can capture its two launches: their grids depend on shapes alone, and nothing waits for the device.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec.backends.pytorch.kernels.additive.registration import operator
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.recording import needs_gradients

from .decoding_kernels import step_kernel
from .launch import (
    INTERPRET,
    combine,
    compact_mask,
    empty_partials,
    launch,
    mask_arguments,
    multiprocessors,
    padded,
    power_of_two,
)
from .operators import attention, join

TILE = 2**15
"""Most numbers of a tile of values in a decoding step."""


@operator("additive_step_triton")
def _step(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int) -> Tensor:
    """Decoding step: (B, h), (B, m, h), (h), (B, m, d_v), mask (outer, inner, 1, m) -> (B, d_v)."""
    a, b, w_v, value = a.contiguous(), b.contiguous(), w_v.contiguous(), value.contiguous()
    batch, m, d_v = value.shape
    hidden = a.shape[1]
    out = value.new_zeros(batch, d_v)
    if out.numel() == 0 or m == 0:
        return out
    block_d = max(power_of_two(d_v), 16)
    # A tile of values has at most 128 numbers a thread: 32 keys of 2,048 features spill 1,900 bytes a thread.
    block_k, warps = min(32, max(TILE // block_d, 1)), 4 if block_d <= 512 else 8
    splits = _splits(batch, m, block_k, a.device)
    per_split = padded(-(-m // splits), block_k)
    splits = -(-m // per_split)
    partials = empty_partials(a, batch, splits, d_v)
    mask_bytes, (outer_stride, inner_stride, _, key_stride) = mask_arguments(mask, a)
    launch(
        step_kernel, (batch * splits,), a, b, w_v, value, mask_bytes, partials.largest, partials.denominator,
        partials.total, m, hidden, d_v, per_split, splits, inner, outer_stride, inner_stride, key_stride, BK=block_k,
        BH=min(max(power_of_two(hidden) // 2, 16), 64), BD=block_d, MASK=mask is not None,
        INTERPRET=INTERPRET, num_warps=warps,
    )  # fmt: skip
    combine(partials, out)
    return out


@_step.register_fake
def _(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor, mask: Tensor | None, inner: int) -> Tensor:
    return value.new_empty(value.shape[0], value.shape[2])


def _splits(batch: int, m: int, block_k: int, device: torch.device) -> int:
    """Splits of the keys: enough for four programs per multiprocessor, each with at least one block of keys."""
    return max(1, min(-(-m // block_k), -(-4 * multiprocessors(device) // batch)))


@dataclass(frozen=True)
class StepCache:
    """Projected keys (B, m, h), w_v, values and batch shape of the sources, for `step`."""

    key: Tensor
    w_v: Tensor
    value: Tensor
    batch: tuple[int, ...]


def cache(
    b: Float[Tensor, "*#batch m h"], w_v: Float[Tensor, " h"], value: Float[Tensor, "*#batch m d_v"]
) -> StepCache:
    """Copy the keys and values of the sources for `step`; later changes of these tensors have no effect.

    The caller has checked and cast the operands (`additive.prepare_keys`).
    """
    batch = broadcast(b.shape[:-2], value.shape[:-2])
    keys, values = join(batch, b, value)
    keys, w_v, values = (x.clone(memory_format=torch.contiguous_format) for x in (keys, w_v, values))
    return StepCache(keys, w_v, values, batch)


def step(
    cache: StepCache, a: Float[Tensor, "*#batch h"], mask: Bool[Tensor, "*#batch #m"] | None = None
) -> Float[Tensor, "*batch d_v"]:
    """One decoding step: the context of one projected query per batch element; `additive.step` has checked both.

    Two launches, whose grids depend on the inputs' shapes alone; nothing waits for the device. To capture a decoder
    loop, run one warm-up step, then `with torch.cuda.graph(graph): context = step(cache, a, mask)`, and overwrite `a`
    and `mask` in place between replays. Or compile the loop body with torch.compile(mode="reduce-overhead"): the step
    is one opaque operation, compiled once for all lengths. If gradients are needed, `attention` of one query computes
    the step, and keeps the tensors for the backward pass.
    """
    batch = broadcast(cache.batch, a.shape[:-1], () if mask is None else mask.shape[:-1])
    mask = None if mask is None else mask.unsqueeze(-2)
    key = cache.key.reshape(*cache.batch, *cache.key.shape[1:])
    value = cache.value.reshape(*cache.batch, *cache.value.shape[1:])
    if needs_gradients(a, cache.key, cache.w_v, cache.value):
        return attention(a.unsqueeze(-2), key, cache.w_v, value, mask=mask).squeeze(-2)
    compact, inner = (None, 1) if mask is None else compact_mask(mask, batch, 1, cache.key.shape[1])
    query = a.expand(*batch, a.shape[-1]).reshape(math.prod(batch), a.shape[-1])
    keys, values = join(batch, key, value)
    return _step(query, keys, cache.w_v, values, compact, inner).reshape(*batch, values.shape[-1])
