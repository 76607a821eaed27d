"""Largest of many numbers, with ties in a fixed order."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import intercepted

SORTED = 4096
"""Up to this many numbers, sorting is faster than finding the smallest one to keep."""


def first_greatest(x: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest of x (*batch, m), largest first; NaN is smallest.

    Of equal numbers the first comes first. ``topk`` may return any of them, so its indices are used only if no two
    numbers are equal. Finding the smallest number to keep is faster than sorting many.
    """
    if not intercepted() and count < x.shape[-1]:
        values, places = x.topk(count + 1, -1)
        if (values[..., :-1] > values[..., 1:]).all():
            return places[..., :count]
    x = x.masked_fill(x.isnan(), -torch.inf)
    if x.shape[-1] <= SORTED or intercepted():
        return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    least = x.topk(count, -1).values[..., -1:]
    greater, equal = x > least, x == least
    kept = greater | (equal & (equal.cumsum(-1) <= count - greater.sum(-1, keepdim=True)))
    places = kept.nonzero()[:, -1].reshape(*x.shape[:-1], count)
    order: Tensor = x.gather(-1, places).sort(dim=-1, descending=True, stable=True).indices
    return places.gather(-1, order)
