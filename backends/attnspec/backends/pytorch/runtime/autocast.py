"""Autocast at the boundary of an operation: operands are cast on entry.

Inside it is off: left on, it would also round the intermediate products.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import is_on
from attnspec.spec.contract.tree import mapped

P = ParamSpec("P")
R = TypeVar("R")


def off(x: Tensor) -> AbstractContextManager[None]:
    """Context with autocast off for x's device, if it is on; not every device supports it."""
    return torch.autocast(x.device.type, enabled=False) if is_on(x) else nullcontext()


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, of one device, in autocast's dtype where it is on; float64 stays."""
    if not is_on(tensors[0]):
        return tensors
    low = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(_lowered(x, low) for x in tensors)


def lowers(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation of products: under autocast, operands and result get its dtype; float64 stays."""
    return _at_boundary(operation, lower=True)


def keeps(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation of differences or exponentials: like PyTorch, autocast does not affect it."""
    return _at_boundary(operation, lower=False)


def _at_boundary(operation: Callable[P, R], *, lower: bool) -> Callable[P, R]:
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        if first is None or not is_on(first):
            return operation(*args, **kwargs)
        kind = first.device.type
        low = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            if not lower:
                return operation(*args, **kwargs)
            named, positional = (
                mapped(kwargs, lambda _, x: _lowered(x, low)),
                mapped(args, lambda _, x: _lowered(x, low)),
            )
            return operation(*positional, **named)

    # each operation gets a code object of its own: torch.compile stops after compiling one code object eight times
    called.__code__ = called.__code__.replace(co_name=operation.__name__)
    return wraps(operation)(called)


def _lowered(x: Any, low: torch.dtype) -> Any:
    """x in the dtype, if it is a floating tensor other than float64."""
    lower = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64
    return x.to(low) if lower else x
