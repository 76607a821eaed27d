"""What is measured: cases, and the subjects of each, which all compute the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.exact import cotangent

Call = Callable[[], Sequence[Tensor]]
"""A call that is ready to be timed; it returns the output, then the gradients if the case has any."""

OURS = "attnspec"
FORWARD, WITH_BACKWARD = "forward", "forward+backward"


@dataclass(frozen=True)
class Subject:
    """One way to compute a case. ``make`` does the work that is done once (caches, weights) and returns the call."""

    name: str
    make: Callable[[], Call]
    absent: str = ""
    """Why it cannot be measured here; empty if it can. A call may also give the reason by ``NotImplementedError``."""
    compiles: bool = False
    """Whether the first call compiles, so that its peak memory is the compiler's."""


@dataclass(frozen=True)
class Case:
    """One computation at one size, and its subjects.

    ``sizes`` are its dimensions; ``size`` is the one along which it grows. ``work`` counts units (terms, floating-point
    operations, bytes) and ``unit`` names them; ``ceiling`` names the rate that limits it. ``formula`` computes the
    results, or some rows of them, in a given precision; ``comparable`` takes the same rows of a subject's results.
    ``memory`` says whether peaks are measured too.
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
    comparable: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    baseline: str = "eager"
    memory: bool = False
    shared: int = 0
    """How many of the last inputs have no batch dimension, so that their gradients are sums over the batch."""

    per_unit: float = 1.0
    """How much of what the ceiling counts a unit of work takes at least."""

    gains: bool = False
    """Whether our call is measured with one thread too where there are several."""

    precision: torch.dtype = torch.float32
    """The dtype of the inputs, in which the formula's own error is what others are measured by; not float64."""

    def summands(self, results: int) -> list[int]:
        """How many terms each result is summed over: B·n·m for gradients of shared inputs, 1 for all others."""
        n = self.sizes["n"] if self.shared else 1
        terms = self.sizes.get("B", 1) * n * self.sizes.get("m", n)
        shared = self.shared if results > 1 else 0
        return [1] * (results - shared) + [terms] * shared

    @property
    def key(self) -> str:
        """A name that is unique within its suite."""
        return f"{self.name}, {self.mode}, " + ", ".join(f"{k}={v}" for k, v in self.sizes.items())


def make_call(mode: str, compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Call:
    """The call that a mode times."""
    return forward(compute, inputs) if mode == FORWARD else forward_backward(compute, inputs)


def forward(compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Call:
    """Forward alone, without autograd."""

    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return (compute(*inputs),)

    return call


def forward_backward(
    compute: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor] = (),
    rearrange: Callable[[Sequence[Tensor]], Sequence[Tensor]] = lambda gradients: gradients,
) -> Call:
    """Forward and backward: the output, and the gradients of all inputs for a cotangent of alternating signs.

    ``parameters`` belong to a module, and ``compute`` is not passed them; ``rearrange`` brings their gradients into the
    order and shapes of the formula's. The cotangent is made once: it is the caller's.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]
    given: list[Tensor] = []

    def call() -> Sequence[Tensor]:
        out = compute(*leaves)
        if not given:
            given.append(cotangent(out))
        gradients = torch.autograd.grad(out, [*leaves, *parameters], given[0])
        return (out, *gradients[: len(leaves)], *rearrange(gradients[len(leaves) :]))

    return call


def compiled(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function under ``torch.compile``."""
    function: Callable[..., Tensor] = torch.compile(compute, dynamic=False)
    return function
