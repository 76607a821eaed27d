"""Reshaping of grouped attention's operands to one batch dimension."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnspec.backends.pytorch.kernels.formula import Scoring
from attnspec.backends.pytorch.kernels.visible import Visible
from attnspec.backends.pytorch.runtime.broadcasting import broadcast


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


def padded_features(x: Tensor, count: int) -> Tensor:
    """x with contiguous rows of at least ``count`` features; added zeros change no score or column."""
    if x.shape[-1] < count:
        return F.pad(x, (0, count - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()
