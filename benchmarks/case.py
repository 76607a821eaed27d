"""What is measured: cases, and for each the subjects that compute the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.exact import cotangent

Thunk = Callable[[], Sequence[Tensor]]
"""A call, ready to be timed: its results, first the output, then gradients if the case has any."""

OURS = "attnspec"
FORWARD, BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Subject:
    """One way to compute a case. ``make`` does what is done once (caches, weights) and returns the call."""

    name: str
    make: Callable[[], Thunk]
    absent: str = ""
    """Why it cannot be measured here; empty if it can. A call may also say so by ``NotImplementedError``."""
    compiles: bool = False
    """Whether the first call compiles, so that its memory is not the call's."""


@dataclass(frozen=True)
class Case:
    """One computation, and those who do it.

    ``sizes`` are its dimensions; ``size`` is the one along which it grows. ``work`` counts units (terms, multiply-adds
    times two, bytes) and ``unit`` names them; ``ceiling`` names the rate that limits it. ``formula`` gives the results,
    or a part of them, in the precision it is asked for; ``part`` takes the same part of a subject's results. ``memory``
    says that peaks are measured too.
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
    formula: Callable[[torch.dtype], Sequence[Tensor]]
    part: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    baseline: str = "eager"
    memory: bool = False
    shared: int = 0
    """How many inputs, the last ones, have no batch dimension, so that their gradients are sums over all of it."""

    def summands(self, results: int) -> list[int]:
        """For each of the results, how many numbers of its own size it adds up: 1, or a sum over batch, n and m."""
        n = self.sizes["n"] if self.shared else 1
        whole = self.sizes.get("B", 1) * n * self.sizes.get("m", n)
        shared = self.shared if results > 1 else 0
        return [1] * (results - shared) + [whole] * shared

    @property
    def key(self) -> str:
        """A name that is unique within a suite."""
        return f"{self.name}, {self.mode}, " + ", ".join(f"{k}={v}" for k, v in self.sizes.items())


def call_of(mode: str, compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Thunk:
    """The call that a mode asks for."""
    return forward(compute, inputs) if mode == FORWARD else differentiated(compute, inputs)


def forward(compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Thunk:
    """Forward alone, without autograd."""

    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return (compute(*inputs),)

    return call


def differentiated(
    compute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor] = (),
    arranged: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda gradients: gradients,
) -> Thunk:
    """Forward and backward: the output and the gradients of all inputs for a cotangent of ones and minus ones.

    ``parameters`` are a module's own, which ``compute`` reads itself; ``arranged`` views their gradients in the order
    and shapes of the formula's.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]

    def call() -> Sequence[Tensor]:
        out = compute(*leaves)
        gradients = torch.autograd.grad(out, [*leaves, *parameters], cotangent(out))
        return (out, *gradients[: len(leaves)], *arranged(gradients[len(leaves) :]))

    return call


def compiled(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function under ``torch.compile``."""
    function: Callable[..., Tensor] = torch.compile(compute, dynamic=False)
    return function
