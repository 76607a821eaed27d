"""Reshaping of grouped attention's operands to one batch dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


def batches(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> list[torch.Size]:
    """Batch shape of each operand that has one."""
    shapes = [x.shape[:-3] for x in (query, key, value)]
    if visible.mask is not None:
        shapes.append(visible.mask.shape[:-2])
    shapes += [x.shape for x in (visible.lengths, visible.offsets) if x is not None]
    if scoring.bias is not None:
        shapes.append(scoring.bias.shape[:-3])
    return shapes


def batch_of(query: Tensor, key: Tensor, value: Tensor, visible: Visible, scoring: Scoring) -> torch.Size:
    """Common batch shape of all operands."""
    shapes = batches(query, key, value, visible, scoring)
    first = shapes[0]
    return first if all(x == first for x in shapes) else broadcast(*shapes)


def merge_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """x (*#batch, heads, rows, columns) with all batch dimensions merged into one."""
    if len(batch) != 1 or x.shape[:-3] != batch:
        x = x.expand(*batch, *x.shape[-3:]).reshape(batch.numel(), *x.shape[-3:])
    return x


def merge_ints(numbers: Tensor | None, batch: torch.Size) -> Tensor | None:
    """Integers (*#batch) as int64 (b,), usable as indices."""
    return None if numbers is None else numbers.expand(batch).reshape(-1).to(torch.int64).contiguous()


def merge_mask(mask: Tensor, batch: torch.Size, m: int) -> Tensor:
    """A mask (*#batch, #n, #m) as (b|1, 1, #n, m) with contiguous rows."""
    return merge_bias(mask.unsqueeze(-3), batch, m)


def merge_bias(x: Tensor, batch: torch.Size, m: int) -> Tensor:
    """A bias (*#batch, #heads, #n, #m) as (b|1, #heads, #n, m) with contiguous rows."""
    x = x.expand(*x.shape[:-1], m)
    one_entry = x.shape[:-3].numel() == 1
    x = x.reshape(1, *x.shape[-3:]) if one_entry else merge_batch(x, batch)
    return x if x.stride(-1) == 1 or m == 1 else x.contiguous()


LOADED_BYTES = 16
"""Bytes that kernels on CUDA load at once, from addresses divisible by it."""


def padded_features(x: Tensor, count: int, *, allow_repeats: bool = True) -> Tensor:
    """x with at least ``count`` features, in rows from which kernels can load; zeros change no score or column.

    Unless ``allow_repeats``, an operand that ``expand`` repeats along a dimension is copied: under masks, PyTorch reads
    such keys wrongly (https://github.com/pytorch/pytorch/issues/191937).
    """
    if x.shape[-1] < count:
        return F.pad(x, (0, count - x.shape[-1]))
    outer = [stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    usable = x.stride(-1) == 1 and _loadable(x, outer) and (allow_repeats or 0 not in outer)
    return x if usable else x.clone(memory_format=torch.contiguous_format)


def _loadable(x: Tensor, strides: list[int]) -> bool:
    """Return whether every row begins at a multiple of `LOADED_BYTES`.

    PyTorch 2.11 does not look at the address. A kernel that reads one between two multiples fails, and so does every
    later operation on the device: https://github.com/pytorch/pytorch/issues/183484. Under ``torch.compile`` and
    transforms a tensor has no address, and only its strides are looked at.
    """
    address = 0 if operations_intercepted() else x.data_ptr()
    return all(number % LOADED_BYTES == 0 for number in (address, *(x.itemsize * stride for stride in strides)))
