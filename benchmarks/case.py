"""What is measured: cases, and for each the subjects that compute the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Thunk = Callable[[], Sequence[Tensor]]
"""A call, ready to be timed: its results, first the output, then gradients if the case has any."""

OURS = "attnspec"


@dataclass(frozen=True)
class Subject:
    """One way to compute a case. ``make`` does what is done once (compilation, caches) and returns the call."""

    name: str
    make: Callable[[], Thunk]
    absent: str = ""
    """Why it cannot be measured here; empty if it can."""


@dataclass(frozen=True)
class Case:
    """One computation, and those who do it.

    ``sizes`` are its dimensions; ``size`` is the one along which it grows. ``work`` counts units (terms, multiply-adds
    times two, bytes) and ``unit`` names them; ``ceiling`` names the rate that limits it. ``exact`` computes a part of
    the first result in double precision, ``part`` takes the same part of a subject's. ``memory`` says that peaks are
    measured too.
    """

    suite: str
    name: str
    mode: str
    sizes: Mapping[str, int]
    size: int
    work: float
    unit: str
    ceiling: str
    subjects: Sequence[Subject]
    exact: Callable[[], Tensor]
    part: Callable[[Tensor], Tensor]
    baseline: str = "eager"
    memory: bool = False

    @property
    def key(self) -> str:
        """A name that is unique within a suite."""
        return f"{self.name}, {self.mode}, " + ", ".join(f"{k}={v}" for k, v in self.sizes.items())


def differentiated(compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Thunk:
    """Forward and backward: the output and the gradients of all inputs for a cotangent of ones and minus ones."""
    leaves = [x.detach().requires_grad_() for x in inputs]

    def call() -> Sequence[Tensor]:
        out = compute(*leaves)
        return (out, *torch.autograd.grad(out, leaves, cotangent(out)))

    return call


def cotangent(out: Tensor) -> Tensor:
    """Alternating signs, without memory of its own."""
    return out.detach().new_tensor([1.0, -1.0]).repeat(-(-out.shape[-1] // 2))[: out.shape[-1]].expand_as(out)


def forward(compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Thunk:
    """Forward alone, without autograd."""

    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return (compute(*inputs),)

    return call


def compiled(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function, compiled anew by ``torch.compile``."""
    torch._dynamo.reset()
    function: Callable[..., Tensor] = torch.compile(compute, dynamic=False)
    return function
