"""Conditions on the keys of a query: masks, windows, lengths, packed sequences."""

from typing import NamedTuple

import torch
from torch import Tensor

Window = tuple[int | None, int | None] | None


class Visible(NamedTuple):
    """Conditions on query-key pairs, all of which must hold; None is no condition.

    ``mask`` (*batch, #n, #m). Query i sees keys i − ``left`` + offset to i + ``right`` + offset, among the first
    ``lengths`` (*batch) keys; ``offsets`` (*batch) are 0 if None.
    """

    mask: Tensor | None = None
    left: int | None = None
    right: int | None = None
    lengths: Tensor | None = None
    offsets: Tensor | None = None

    def allowed(self, n: int, m: int, device: torch.device) -> Tensor | None:
        """All conditions as one mask (*#batch, 1, #n, #m) for all heads; None allows everything."""
        keys, found = torch.arange(m, device=device), self.mask
        if self.left is not None or self.right is not None:
            aligned = torch.arange(n, device=device)[:, None]
            if self.offsets is not None:
                aligned = aligned + self.offsets[..., None, None]
            found = joined(found, within(keys - aligned, (self.left, self.right)))
        found = found if self.lengths is None else joined(found, keys < self.lengths[..., None, None])
        return None if found is None else found.unsqueeze(-3)


def visible(mask: Tensor | None, causal: bool, window: Window, lengths: Tensor | None = None,
            offsets: Tensor | None = None) -> Visible:  # fmt: skip
    """Conditions of an operation; ``causal`` sets ``right`` to 0, whatever the window."""
    left, right = (None, None) if window is None else window
    return Visible(mask, left, 0 if causal else right, lengths, offsets)


def joined(mask: Tensor | None, more: Tensor | None) -> Tensor | None:
    """Conjunction of two masks; None allows everything."""
    return more if mask is None else mask if more is None else mask & more


def near(n: int, m: int, window: Window, device: torch.device | str | None) -> Tensor:
    """Booleans (n, m): key j is within the window around query i."""
    return within(torch.arange(m, device=device) - torch.arange(n, device=device)[:, None], window)


def within(behind: Tensor, window: Window) -> Tensor:
    """True where ``behind``, key position minus query position, is within a window."""
    left, right = (None, None) if window is None else window
    found = torch.ones_like(behind, dtype=torch.bool) if left is None else behind >= -left
    return found if right is None else found & (behind <= right)


def places(ends: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sequence of each of ``count`` packed positions, and its position in that sequence."""
    every = torch.arange(count, device=ends.device)
    sequence = torch.bucketize(every, ends[1:-1].contiguous().to(every.dtype), right=True)
    return sequence, every - ends[sequence]
