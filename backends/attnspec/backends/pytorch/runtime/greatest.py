"""The greatest of many numbers, in an order that ties do not leave open."""

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime.transforms import intercepted

SORTED = 4096
"""Up to this many numbers, sorting is faster than finding the least one to keep."""


def first_greatest(x: Tensor, count: int) -> Tensor:
    """Places of the greatest numbers (*batch, m), the greatest first, and of equal ones the first; NaN is least.

    ``topk`` may take any of equal numbers, so that its places are right where no two are. Sorting many to keep a few
    takes longer than to look for the least kept.
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
