"""Functions of autograd without the frames of Python that PyTorch puts around them.

`Function.apply` looks for what torch.func wraps, and a node of the backward for the function that it calls: of a small
call both take microseconds.
"""

from collections.abc import Callable
from typing import Any

import torch

_NODE = "_backward_cls"


def direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """What applies a function that has a ``backward`` and is never called under torch.func."""
    node = getattr(function, _NODE, None)  # a private name: where it has moved, nodes call their function as they do
    if node is not None:
        node.apply = function.backward
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply
