"""PyTorch custom operators ``attnspec::…``: opaque to ``torch.compile``, differentiable by autograd.

``torch.library.custom_op`` would import PyTorch's compiler at the first call, which takes longer than most first calls
themselves.
"""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

TWICE_DIFFERENTIABLE = "additive.attention(query @ w_q.mT, key @ w_k.mT, w_v, value, path='plain')"
"""The call that error messages suggest for second derivatives."""

# PyTorch annotates neither `Library` nor its methods.
LIBRARY = torch.library.Library("attnspec", "FRAGMENT")  # type: ignore[no-untyped-call]


class Operator(Generic[P, R]):
    """The operator ``attnspec::name`` of a function that neither writes to its tensors nor returns them."""

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.__doc__, self.__wrapped__ = function.__doc__, function
        self.name = f"attnspec::{name}"
        schema = torch.library.infer_schema(function, mutates_args=())
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        # one implementation for all devices, without derivatives until `register_autograd`
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        self.overload = getattr(torch.ops.attnspec, name).default

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function through PyTorch's dispatcher."""
        result: R = self.overload(*args, **kwargs)
        return result

    def register_fake(self, function: Callable[P, R]) -> None:
        """Register a function that returns empty results of the right shapes and dtypes, for tracing."""
        torch.library.register_fake(self.name, function, lib=LIBRARY)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Any = None) -> None:
        """Register the gradients, as ``torch.library.register_autograd`` does."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=LIBRARY)


def operator(name: str) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a function the operator ``attnspec::name``."""
    return lambda function: Operator(name, function)
