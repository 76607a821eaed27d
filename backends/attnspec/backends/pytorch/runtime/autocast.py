"""Autocast, and argument names of PyTorch, at the boundary of operations.

Autocast casts operands on entry and is then off: left on, it would also round the intermediate products.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from attnspec.backends.bases.autocast import autocast_enabled
from attnspec.spec import OPERATIONS
from attnspec.spec.contract.tree import map_tree

P = ParamSpec("P")
R = TypeVar("R")

TORCH_NAMES = {
    "attn_mask": ("mask", "mask, boolean, True = may attend (floats are the bias of grouped_query_attention)"),
    "is_causal": ("causal", "causal"),
    "scale": ("query", "a scaled query, or grouped_query_attention, which has scale"),
    "enable_gqa": ("query", "no flag: grouped_query_attention takes keys and values with fewer heads"),
    "dropout_p": ("query", "no dropout in attention: dropout is an operation on weights"),
}
"""Arguments of PyTorch's ``scaled_dot_product_attention``: the argument here, and what to use instead."""


def off(x: Tensor) -> AbstractContextManager[None]:
    """Context with autocast off; empty if it is off, or the device has none."""
    return torch.autocast(x.device.type, enabled=False) if autocast_enabled(x) else nullcontext()


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors of one device to autocast's dtype, if autocast is on; float64 stays."""
    if not autocast_enabled(tensors[0]):
        return tensors
    low = torch.get_autocast_dtype(tensors[0].device.type)
    return tuple(_lowered(x, low) for x in tensors)


def follows_autocast(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation of matrix products: operands are cast to autocast's dtype; float64 stays."""
    return _wrapped(operation, lower=True)


def ignores_autocast(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation of differences, exponentials or copies: it keeps its operands' dtype.

    PyTorch's autocast keeps it on the CPU too; on CUDA it computes exponentials of half operands in float32.
    """
    return _wrapped(operation, lower=False)


def _wrapped(operation: Callable[P, R], *, lower: bool) -> Callable[P, R]:
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        try:
            if first is None or not autocast_enabled(first):
                return operation(*args, **kwargs)
            kind = first.device.type
            low = torch.get_autocast_dtype(kind)
            with torch.autocast(kind, enabled=False):
                if not lower:
                    return operation(*args, **kwargs)
                positional = map_tree(args, lambda _, x: _lowered(x, low))
                named = map_tree(kwargs, lambda _, x: _lowered(x, low))
                return operation(*positional, **named)
        except TypeError:
            _refuse_names_of_torch(operation.__name__, kwargs)
            raise

    # Each operation gets its own code object: torch.compile stops after compiling one code object eight times.
    called.__code__ = called.__code__.replace(co_name=operation.__name__)
    return wraps(operation)(called)


def _lowered(x: Any, low: torch.dtype) -> Any:
    """Cast x to ``low`` if it is a floating tensor, but not float64."""
    lower = isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64
    return x.to(low) if lower else x


def _refuse_names_of_torch(operation: str, names: Collection[str]) -> None:
    """Raise ``TypeError`` for an argument that has another name here than in PyTorch, or none."""
    known = OPERATIONS[operation].call.names
    for name, (own, instead) in TORCH_NAMES.items():
        if name in names and name not in known and own in known:
            raise TypeError(f"{operation}: expected {instead}; got {name}") from None
