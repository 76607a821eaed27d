"""Cases, and their subjects: different ways to compute one result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.exact import cotangent

Call = Callable[[], Sequence[Tensor]]
"""Call to be timed; it returns the output, then the gradients if the case has any."""

OURS = "attnspec"
FORWARD, WITH_BACKWARD = "forward", "forward+backward"


@dataclass(frozen=True)
class Subject:
    """One way to compute a case. ``make`` prepares caches and weights once and returns the call."""

    name: str
    make: Callable[[], Call]
    absent: str = ""
    """Reason why it cannot be measured here; empty if it can. A call may also raise it as ``NotImplementedError``."""
    compiles: bool = False
    """True if the first call compiles, so that its peak memory is the compiler's."""


@dataclass(frozen=True)
class Case:
    """One computation at one size, and its subjects.

    ``sizes`` are its dimensions; ``size`` is the one along which it grows. ``work`` counts units (terms, floating-point
    operations, bytes) and ``unit`` names them; ``ceiling`` names the rate that limits it. ``formula`` computes the
    results, or some rows of them, in a dtype; ``comparable`` takes the same rows of a subject's results.
    With ``memory``, peaks are measured too.
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
    """Number of last inputs without batch dimension; their gradients are sums over the batch."""

    per_unit: float = 1.0
    """Smallest number of the ceiling's units, such as multiply-adds, that one unit of work needs."""

    gains: bool = False
    """True if our call is also measured with one thread where there are several."""

    precision: torch.dtype = torch.float32
    """Dtype of the inputs, not float64. The formula's own error in it sets the errors that subjects may have."""

    def summands(self, results: int) -> list[int]:
        """Number of terms in each result's sum: B·n·m for gradients of shared inputs, 1 for all others."""
        n = self.sizes["n"] if self.shared else 1
        terms = self.sizes.get("B", 1) * n * self.sizes.get("m", n)
        shared = self.shared if results > 1 else 0
        return [1] * (results - shared) + [terms] * shared

    @property
    def key(self) -> str:
        """Name, unique within its suite."""
        return f"{self.name}, {self.mode}, " + ", ".join(f"{k}={v}" for k, v in self.sizes.items())


def make_call(mode: str, compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Call:
    """Make the call of a mode: forward alone, or forward and backward."""
    return forward(compute, inputs) if mode == FORWARD else forward_backward(compute, inputs)


def forward(compute: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Call:
    """Make a call of the forward pass, without autograd."""

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
    """Make a call of forward and backward: output, and gradients of all inputs for a cotangent of alternating signs.

    ``parameters`` belong to a module and are not passed to ``compute``; ``rearrange`` brings their gradients into the
    order and shapes of the formula's. The cotangent is made once, since in practice it is the caller's.
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
    """Compile a function with ``torch.compile``, for static shapes."""
    function: Callable[..., Tensor] = torch.compile(compute, dynamic=False)
    return function
