"""Conditions on the keys of a query: masks, windows, lengths, packed sequences."""

from typing import NamedTuple

import torch
from torch import Tensor

Window = tuple[int | None, int | None] | None


class Visible(NamedTuple):
    """Conditions on query-key pairs, all of which must hold; None is no condition.

    ``mask`` (*batch, #n, #m). Query i sees keys i − ``left`` + offset to i + ``right`` + offset, among the first
    ``lengths`` (*batch) keys; ``offsets`` (*batch) are 0 if None. They also move the distances that slopes penalise.
    """

    mask: Tensor | None = None
    left: int | None = None
    right: int | None = None
    lengths: Tensor | None = None
    offsets: Tensor | None = None

    def allowed(self, n: int, m: int, device: torch.device) -> Tensor | None:
        """All conditions as one mask (*#batch, 1, #n, #m) for all heads; None allows everything."""
        allowed = self.mask
        if self.left is not None or self.right is not None:
            relative = relative_positions(n, m, self.offsets, device)
            allowed = conjunction(allowed, within_window(relative, (self.left, self.right)))
        if self.lengths is not None:
            allowed = conjunction(allowed, torch.arange(m, device=device) < self.lengths[..., None, None])
        return None if allowed is None else allowed.unsqueeze(-3)


def visible(mask: Tensor | None, causal: bool, window: Window, lengths: Tensor | None = None,
            offsets: Tensor | None = None) -> Visible:  # fmt: skip
    """Conditions of an operation; ``causal`` sets ``right`` to 0, whatever the window."""
    left, right = (None, None) if window is None else window
    return Visible(mask, left, 0 if causal else right, lengths, offsets)


def relative_positions(n: int, m: int, offsets: Tensor | None, device: torch.device | str | None) -> Tensor:
    """Position of every key minus that of every query, (*batch, n, m); ``offsets`` (*batch) move queries."""
    positions = torch.arange(n, device=device)[:, None]
    return torch.arange(m, device=device) - (positions if offsets is None else positions + offsets[..., None, None])


def conjunction(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """True where both masks are; None allows everything."""
    return other if mask is None else mask if other is None else mask & other


def window_mask(n: int, m: int, window: Window, device: torch.device | str | None) -> Tensor:
    """Booleans (n, m): key j is within the window around query i."""
    return within_window(relative_positions(n, m, None, device), window)


def within_window(relative: Tensor, window: Window) -> Tensor:
    """True where ``relative``, key position minus query position, is within a window."""
    left, right = (None, None) if window is None else window
    inside = torch.ones_like(relative, dtype=torch.bool) if left is None else relative >= -left
    return inside if right is None else inside & (relative <= right)


def locate(ends: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Sequence of each of ``count`` packed positions, and its position in that sequence."""
    positions = torch.arange(count, device=ends.device)
    sequence = torch.bucketize(positions, ends[1:-1].contiguous().to(positions.dtype), right=True)
    return sequence, positions - ends[sequence]
