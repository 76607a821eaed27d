"""Indices of the k largest numbers, with ties in a fixed order."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import readable

MOST_SORTED = 4096
"""Most numbers for which sorting all is faster than selecting the largest first."""


def stable_top_k(x: Tensor, count: int) -> Tensor:
    """Return indices of the ``count`` largest of x (*batch, m), largest first; NaN is smallest.

    Among equal numbers the lower index comes first. ``topk`` breaks ties arbitrarily, so its indices are used only if
    the ``count`` + 1 largest numbers all differ.
    """
    may_read = readable(x)
    if may_read and count < x.shape[-1]:
        values, places = x.topk(count + 1, -1)
        if (values[..., :-1] > values[..., 1:]).all():
            return places[..., :count]
    x = x.masked_fill(x.isnan(), -torch.inf)
    if x.shape[-1] <= MOST_SORTED or not may_read:
        return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    least = x.topk(count, -1).values[..., -1:]
    greater, equal = x > least, x == least
    selected = greater | (equal & (equal.cumsum(-1) <= count - greater.sum(-1, keepdim=True)))
    places = selected.nonzero()[:, -1].reshape(*x.shape[:-1], count)
    order: Tensor = x.gather(-1, places).sort(dim=-1, descending=True, stable=True).indices
    return places.gather(-1, order)
