"""Base class of rows of PyTorch's matrix; a row is one way to call it.

A row is a backend. It can also print itself as a program without attnspec that shows a violation: the functions that
call PyTorch import nothing else, and the program consists of their source.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from attnspec.backends.bases.torch import TorchBackend, devices
from attnspec.spec import Limits

DTYPES = ("float64", "float32", "bfloat16", "float16")

HEADER = '''
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def array(numbers: Any, dtype: str) -> Tensor:
    """A tensor with the numbers of a NumPy array."""
    return torch.tensor(numbers).to({device!r}, getattr(torch, dtype))


def numbers(x: Tensor) -> Any:
    """A NumPy array with the numbers of a tensor."""
    return x.detach().cpu().to(torch.float64).numpy()


def gradients(results: Callable[[], Any], arguments: Any, cotangents: Any) -> Any:
    """The gradients of the results, weighted by cotangents; results without a cotangent are left out."""
    for x in arguments:
        x.requires_grad_()
    pairs = [(x, c) for x, c in zip(results(), cotangents) if c is not None]
    outputs, weights = zip(*pairs)
    return torch.autograd.grad(outputs, arguments, weights, materialize_grads=True)
'''
"""First lines of every row's program."""


class Row(TorchBackend):
    """One way to call PyTorch.

    ``calls`` are functions by operation, ``parts`` the functions that they use. A call is a function, or a `partial`
    with positional arguments. ``imports`` are lines of its program.
    """

    limits = Limits(dtypes=DTYPES, devices=devices())
    calls: dict[str, Callable[..., Any]]
    parts: tuple[Callable[..., Any], ...] = ()
    imports = ""

    def plain(self, operation: str, *, device: str) -> str:
        """Return the source of a program without attnspec that defines ``call`` and array conversion."""
        call = self.calls[operation]
        function, fixed_arguments = (call.func, call.args) if isinstance(call, partial) else (call, ())
        sources = [HEADER.strip().format(device=device), *map(inspect.getsource, (*self.parts, function))]
        partial_arguments = ", ".join([function.__name__, *map(_source_of, fixed_arguments)])
        body = "\n\n\n".join(source.strip() for source in sources)
        return f"{self.imports}{body}\n\n\ncall = partial({partial_arguments})\n"


def _source_of(x: Any) -> str:
    """Return Python source of a fixed argument, such as ``torch.gru`` or ``SDPBackend.MATH``."""
    name = getattr(x, "__name__", None)
    if name is None:
        return str(x) if isinstance(x, SDPBackend) else repr(x)
    return f"torch.{name}" if getattr(torch, name, None) is x else f"{x.__module__}.{name}"
