"""Plans of recent calls, found by one comparison in C++.

PyTorch's compiler guards its code by comparing tensors with those that it was made for: classes, sizes, strides,
dtypes, devices, whether gradients are wanted, and lazy signs; and what of autocast, tracing and transforms was active
when they were made, for these change what a tensor is dispatched by. It does not see what `torch.compile` traces, nor
forward mode and all modes, and ends the process at a nested tensor: callers must look for these first. All of it takes
as long as reading two shapes in Python. Where a version of PyTorch has no such comparison, nothing is remembered, and
plans are looked up by `plans`.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

try:
    from torch._C._dynamo import guards
except ImportError:  # a private name, which may move
    guards = None  # type: ignore[assignment]

__all__ = ["KEPT", "Recent", "autocasts", "function_modes", "guards", "modes", "named", "transforms"]

# what guards do not see, and what a call is not remembered under, by functions of PyTorch in C++
modes, function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
transforms, autocasts = torch._C._are_functorch_transforms_active, torch._C._is_any_autocast_enabled

Plan = TypeVar("Plan")

KEPT = 4
"""Plans for the same options: each is compared in turn, and beyond so many looking up is as fast."""

MOST_OPTIONS = 256
"""Combinations of options; then all are forgotten."""


class Recent(Generic[Plan]):
    """The last plans of an operation, by options that are compared as they are and by tensors that are guarded.

    ``known`` is read where a call begins: another frame of Python would take as long as the comparison.
    """

    def __init__(self) -> None:
        self.known: dict[Any, list[tuple[Callable[..., bool], Plan]]] = {}

    def remember(self, options: Any, plan: Plan, *tensors: Tensor) -> None:
        """Keep the plan of an ordinary call; of one that has a tensor twice, which guards refuse, nothing is kept."""
        if guards is None or len(set(map(id, tensors))) < len(tensors):
            return
        if len(self.known) >= MOST_OPTIONS:
            self.known.clear()
        made = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        self.known[options] = [(made.check, plan), *self.known.get(options, ())][:KEPT]


def named(called: Callable[..., Any], name: str) -> None:
    """Give a function made by a decorator a code object of its own, as ``torch.compile`` wants it, under a name."""
    called.__code__ = called.__code__.replace(co_name=name, co_qualname=name)
