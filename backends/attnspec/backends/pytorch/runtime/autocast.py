"""Autocast at the border of an operation: operands are taken in autocast's dtype, and inside it is off.

Inside, a product of half operands would otherwise be rounded again before what it is needed for.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import is_on

P = ParamSpec("P")
R = TypeVar("R")


def off(x: Tensor) -> AbstractContextManager[None]:
    """Autocast switched off for the device of x, where it is on: not every device knows it."""
    return torch.autocast(x.device.type, enabled=False) if is_on(x) else nullcontext()


def taken(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, of one device, as autocast takes them: in its dtype where it is on, float64 excepted."""
    if not is_on(tensors[0]):
        return tensors
    low = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(_lowered(x, low) for x in tensors)


def lowers(operation: Callable[P, R]) -> Callable[P, R]:
    """For operations made of products: under autocast, operands and result are in its dtype, float64 excepted."""
    return _at_border(operation, lower=True)


def keeps(operation: Callable[P, R]) -> Callable[P, R]:
    """For differences and exponentials, which PyTorch does not lower either: autocast changes nothing."""
    return _at_border(operation, lower=False)


def _at_border(operation: Callable[P, R], *, lower: bool) -> Callable[P, R]:
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if first is None or not is_on(first):
            return operation(*args, **kwargs)
        kind = first.device.type
        low = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            if not lower:
                return operation(*args, **kwargs)
            lowered = {name: _lowered(x, low) for name, x in kwargs.items()}
            return operation(*(_lowered(x, low) for x in args), **lowered)

    # code of its own for every operation: torch.compile counts how often it compiles a code, and stops at eight
    called.__code__ = called.__code__.replace(co_name=operation.__name__)
    return wraps(operation)(called)


def _lowered(x: Any, low: torch.dtype) -> Any:
    """x in the dtype, if it is a tensor of reals narrower than float64."""
    lower = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64
    return x.to(low) if lower else x
