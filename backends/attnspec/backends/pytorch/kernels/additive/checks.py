"""Checks of additive attention's operands: shapes, devices, dtypes."""

from typing import NoReturn

import torch
from torch import Tensor

from attnspec.backends.pytorch.runtime import autocast
from attnspec.backends.pytorch.runtime.broadcasting import broadcast


def refuse(argument: str, expected: str, got: Tensor) -> NoReturn:
    """Raise ``ValueError`` with the shape that the argument has."""
    raise ValueError(f"additive attention: {argument}: expected {expected}; got {tuple(got.shape)}")


def check(a: Tensor, b: Tensor, w_v: Tensor, value: Tensor | None, mask: Tensor | None) -> None:
    """Raise for operands whose shapes, devices or mask dtype do not fit together.

    Messages are formatted only when they are raised: formatting a size makes torch.compile specialise on it.
    """
    if w_v.dim() != 1 or w_v.shape[0] < 1:
        refuse("w_v", "shape (h,), h >= 1", w_v)
    others = [x for x in (b, w_v, value, mask) if x is not None]
    if any(x.device != a.device for x in others):
        devices = ", ".join(str(x.device) for x in (a, *others))
        raise ValueError(f"additive attention: expected all tensors on one device; got {devices}")
    h = w_v.shape[0]
    if a.dim() < 2 or a.shape[-1] != h:
        refuse("a", f"shape (*batch, n, {h})", a)
    if b.dim() < 2 or b.shape[-1] != h:
        refuse("b", f"shape (*batch, m, {h})", b)
    n, m = a.shape[-2], b.shape[-2]
    shapes = [a.shape[:-2], b.shape[:-2]]
    if value is not None:
        if value.dim() < 2 or value.shape[-2] != m or value.shape[-1] < 1:
            refuse("value", f"shape (*batch, {m}, d_v), d_v >= 1", value)
        shapes.append(value.shape[:-2])
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"additive attention: mask: expected torch.bool; got {mask.dtype}")
        # not `in (1, n)`: torch.compile evaluates that to False for a symbolic size
        rows = mask.dim() >= 2 and (mask.shape[-2] == n or mask.shape[-2] == 1)
        if not (rows and (mask.shape[-1] == m or mask.shape[-1] == 1)):
            refuse("mask", f"shape broadcastable to (*batch, {n}, {m}), rank >= 2", mask)
        shapes.append(mask.shape[:-2])
    try:
        broadcast(*shapes)
    except RuntimeError:
        got = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"additive attention: expected batch dimensions that broadcast; got {got}") from None


def cast_operands(names: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the operands, cast if autocast is on; TypeError unless they share one floating dtype."""
    tensors = autocast.cast(*tensors)
    if any(x.dtype != tensors[0].dtype for x in tensors) or not tensors[0].is_floating_point():
        kinds = ", ".join(str(x.dtype) for x in tensors)
        raise TypeError(f"additive attention: {names}: expected one floating dtype; got {kinds}")
    return tensors
