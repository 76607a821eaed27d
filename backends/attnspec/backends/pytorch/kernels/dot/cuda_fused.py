"""Scaled dot-product attention on accelerators: calls fitted to PyTorch's fused kernels.

PyTorch tries cuDNN, flash, memory-efficient and math in an order that depends on the device, and runs the first that
accepts the arguments. They need head sizes that are multiples of 8 (4 in float32); flash also needs equal head sizes
and no mask. Causal kernels align n ≠ m differently. Therefore sizes are padded, and causal calls made square here.
float64 has no fused kernel.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.kernels.dot.batches import padded_features
from attnspec.backends.pytorch.runtime.accumulation import HALF_DTYPES
from attnspec.backends.pytorch.runtime.devices import AMPERE, capability
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.transforms import being_captured, fused_allowed

NAME = "F.scaled_dot_product_attention"
"""Function that `dense` calls; PyTorch does not report which kernel it then runs."""

WAIT_FROM = 1 << 34
"""Multiply-adds of a product from which waiting for a mask pays: about 100 µs on an H100."""


def worth_waiting(query: Tensor, work: int) -> bool:
    """Return whether to read a mask: never inside a graph capture, and only for long work."""
    return work >= WAIT_FROM and query.is_cuda and not being_captured(query)


WIDEST_PACKED = 256
"""Largest head size of the flash kernels."""


def worth_packing(query: Tensor, value: Tensor, causal: bool, lengths: tuple[int, ...]) -> bool:
    """Return whether the variable-length kernel takes a call: half dtypes, not causal, an allowed flash kernel.

    It aligns causal masks at the bottom right.
    """
    fits = max(query.shape[-1], value.shape[-1]) <= WIDEST_PACKED and max(query.shape[:2]) <= MOST_BLOCKS
    takes_call = fits and not causal and min(lengths) > 0 and query.dtype in HALF_DTYPES
    return takes_call and query.is_cuda and fused_allowed() and capability(query.device) >= AMPERE


def variable_length(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, ...], scale: float) -> Tensor:
    """Output of one call for the whole batch, with keys packed without padding."""
    from torch.nn.attention.varlen import varlen_attn

    b, h, n, d = query.shape
    d_v = value.shape[-1]
    width = _multiple(max(d, d_v), 8)

    def packed(x: Tensor) -> Tensor:
        rows = torch.cat([x[i, :, :length].transpose(0, 1) for i, length in enumerate(lengths)])
        return F.pad(rows, (0, width - x.shape[-1]))

    queries = F.pad(query.transpose(1, 2).reshape(b * n, h, d), (0, width - d))
    ends = [[n * i for i in range(b + 1)], list(accumulate(lengths, initial=0))]
    of_queries, of_keys = torch.tensor(ends, dtype=torch.int32, device=query.device).unbind()
    # n and max(lengths): the longest sequences of queries and of keys
    output = varlen_attn(queries, packed(key), packed(value), of_queries, of_keys, n, max(lengths), scale=scale)
    assert isinstance(output, Tensor)
    return output[..., :d_v].view(b, n, h, d_v).transpose(1, 2)


def dense(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Output for a batch of equal sizes; fully masked rows attend to all keys, then are zeroed."""
    n, m, d_v = query.shape[-2], key.shape[-2], value.shape[-1]
    if not query.numel() or not m:
        return query @ key.mT @ value
    if mask is not None:
        if causal:
            mask = mask & causal_triangle(n, m, mask.device)
        has_key = mask.any(-1, keepdim=True)
        query, key, value = _padded_operands(query, key, value, allow_repeats=False)
        output = _in_parts(query, key, value, mask | ~has_key, scale)
        return output[..., :d_v].masked_fill(~has_key, 0)
    query, key, value = _padded_operands(query, key, value)
    if not causal:
        return _in_parts(query, key, value, None, scale)[..., :d_v]
    key, value = key[:, :, :n], value[:, :, :n]
    if n <= m:
        return _in_parts(query, key, value, None, scale, causal=True)[..., :d_v]
    upper = _in_parts(query[:, :, :m], key, value, None, scale, causal=True)
    lower = _in_parts(query[:, :, m:], key, value, None, scale)
    return torch.cat([upper, lower], -2)[..., :d_v]


MOST_BLOCKS = 65_535
"""Most batch elements, and most heads, of one call: CUDA's limit of a grid.

PyTorch launches larger grids, and raises: https://github.com/pytorch/pytorch/issues/142228.
"""

MOST_PAIRS = 1 << 32
"""Number of pairs from which PyTorch's offsets into a mask overflow, without an error.

See https://github.com/pytorch/pytorch/issues/187227.
"""


def _in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float,
              causal: bool = False) -> Tensor:  # fmt: skip
    """PyTorch's attention, by several calls where one would exceed `MOST_BLOCKS` or `MOST_PAIRS`."""
    rows = query.shape[2]
    if mask is not None and mask.shape[2] > 1:  # PyTorch pads the rows of a mask to a multiple of 16
        rows = max(1, (MOST_PAIRS - 1) // _multiple(key.shape[-2], 16))
    for axis, most in enumerate((MOST_BLOCKS, MOST_BLOCKS, rows)):
        if query.shape[axis] > most:
            parts = []
            for start in range(0, query.shape[axis], most):
                count = min(most, query.shape[axis] - start)
                keys, values = (x if axis == 2 else x.narrow(axis, start, count) for x in (key, value))
                allowed = mask if mask is None or mask.shape[axis] == 1 else mask.narrow(axis, start, count)
                parts.append(_in_parts(query.narrow(axis, start, count), keys, values, allowed, scale, causal))
            return torch.cat(parts, axis)
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)


def _multiple(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _padded_operands(
    query: Tensor, key: Tensor, value: Tensor, *, allow_repeats: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad head sizes for the fused kernels; zeros change neither scores nor returned columns."""
    if query.dtype is torch.float64:
        return query, key, value
    unit = 4 if query.dtype is torch.float32 else 8
    d, d_v = _multiple(query.shape[-1], unit), _multiple(value.shape[-1], unit)
    sizes = (query, d), (key, d), (value, d_v)
    query, key, value = (padded_features(x, size, allow_repeats=allow_repeats) for x, size in sizes)
    return query, key, value
