"""A call of scaled dot-product attention, in the four dimensions that fused kernels take."""

from math import prod
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import is_on
from attnspec.backends.pytorch.runtime.broadcasting import broadcast
from attnspec.backends.pytorch.runtime.masks import causal_triangle
from attnspec.backends.pytorch.runtime.recording import recorded

NAME = "scaled_dot_product_attention"


class Call(NamedTuple):
    """query (b, h, n, d), key (b, h, m, d), value (b, h, m, d_v), mask (b|1, h|1, n|1, m).

    ``lengths``, where given, says for every batch element how many keys its mask leaves, from the first on.
    ``in_layer`` says that the call is a part of another operation.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    lengths: tuple[int, ...] | None = None
    in_layer: bool = False

    def first_keys(self, stop: int) -> "Call":
        """The call with the first keys only."""
        mask = None if self.mask is None else self.mask[..., :stop]
        return self._replace(key=self.key[:, :, :stop], value=self.value[:, :, :stop], mask=mask)

    def allowed(self) -> Tensor:
        """All conditions as one mask."""
        n, m = self.query.shape[-2], self.key.shape[-2]
        device = self.query.device
        allowed = torch.ones(1, 1, 1, m, dtype=torch.bool, device=device) if self.mask is None else self.mask
        return allowed & causal_triangle(n, m, device) if self.causal else allowed

    def differentiates(self) -> bool:
        """Whether autograd records this call."""
        return recorded(self.query, self.key, self.value)


def four_dimensional(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Call, torch.Size]:
    """The call in four dimensions, and its batch.

    Written out without general helpers: it takes as long as a small kernel.
    """
    q, k, v = query.shape, key.shape, value.shape
    if len(q) < 2 or len(k) < 2 or len(v) < 2:
        _refuse("every argument", "at least two dimensions", min(len(q), len(k), len(v)))
    if k[-1] != q[-1]:
        _refuse("key", f"{q[-1]} features as the query", k[-1])
    if v[-2] != k[-2]:
        _refuse("value", f"{k[-2]} rows as the key", v[-2])
    if not (query.dtype is key.dtype is value.dtype and query.is_floating_point()) and not is_on(query):
        got = ", ".join(str(x.dtype) for x in (query, key, value))
        raise TypeError(f"{NAME}: query, key, value: expected one floating dtype; got {got}")
    if scale is None and not q[-1]:
        _refuse("query", "at least one feature, or a scale", 0)
    others = (key, value) if mask is None else (key, value, mask)
    if any(x.device != query.device for x in others):
        got = ", ".join(str(x.device) for x in (query, *others))
        _refuse("query, key, value, mask", "one device", got)
    batch = q[:-2]
    equal = batch == k[:-2] == v[:-2]
    if mask is not None:
        of_mask = _batch_of_mask(mask, batch, q[-2], k[-2])
        equal = equal and (len(of_mask) == 0 or of_mask == batch or _fits(of_mask, batch))
    if not equal:
        shapes = (batch, k[:-2], v[:-2]) if mask is None else (batch, k[:-2], v[:-2], of_mask)
        try:
            batch = broadcast(*shapes)
        except RuntimeError:
            _refuse("query, key, value, mask", "batches that broadcast", ", ".join(str(tuple(s)) for s in shapes))
        query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    rank = len(batch)
    if rank == 1:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
    elif rank != 2:
        query, key, value = (x.flatten(0, rank - 2) if rank else x[None, None] for x in (query, key, value))
    if mask is not None:
        mask = _mask_with_batch(mask, batch)
        if mask.shape[-1] != k[-2]:
            mask = mask.expand(-1, -1, -1, k[-2])
    return Call(query, key, value, mask, causal, q[-1] ** -0.5 if scale is None else scale), batch


def overlaps(x: Tensor) -> bool:
    """Whether numbers of x share memory. PyTorch's fused kernel gives its output the strides of such a query."""
    return x.numel() > 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _refuse(argument: str, expected: str, got: object) -> NoReturn:
    raise ValueError(f"{NAME}: {argument}: expected {expected}; got {got}")


def _batch_of_mask(mask: Tensor, batch: torch.Size, n: int, m: int) -> torch.Size:
    shape = mask.shape
    if mask.dtype is not torch.bool:
        raise TypeError(f"{NAME}: mask: expected bool, True = attend; got {mask.dtype}")
    if len(shape) < 2 or shape[-2] not in (1, n) or shape[-1] not in (1, m):
        _refuse("mask", f"what broadcasts to {(*batch, n, m)}", tuple(shape))
    return shape[:-2]


def _fits(of_mask: torch.Size, batch: torch.Size) -> bool:
    """Whether the mask's batch needs no expansion of the operands."""
    if len(of_mask) < len(batch):
        return prod(of_mask) == 1
    return len(of_mask) == len(batch) and all(x == 1 or x == own for x, own in zip(of_mask, batch, strict=True))


def _mask_with_batch(mask: Tensor, batch: torch.Size) -> Tensor:
    """The mask with two batch dimensions, each as large as the batch's or 1."""
    rank, missing = len(batch), len(batch) + 2 - mask.dim()
    if rank < 2:
        return mask.unsqueeze(1) if rank and not missing else mask[None, None]
    if rank == 2:
        return mask if not missing else mask[None, None] if missing == 2 else mask.unsqueeze(0)
    mask = mask[(None,) * missing]
    leading, rest = mask.shape[: rank - 1], mask.shape[rank - 1 :]
    return mask.view(1, *rest) if prod(leading) == 1 else mask.expand(*batch[:-1], *rest).flatten(0, rank - 2)
