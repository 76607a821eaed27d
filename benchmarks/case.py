"""Cases of the benchmarks, and their subjects: different ways to compute one result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.exact import cotangent

Call = Callable[[], Sequence[Tensor]]
"""Call to be timed; it returns the output, then the gradients if the case has any."""

OURS = "attnspec"
FORWARD, WITH_BACKWARD = "forward", "forward+backward"

PASSES = {FORWARD: 1.0, WITH_BACKWARD: 3.0}
"""Work of a mode, in forward passes: each matrix product has two gradients, which are products too."""
ATTENTION_PASSES = {FORWARD: 1.0, WITH_BACKWARD: 3.5}
"""Work of dot-product attention: two products forward, five backward, one of which recomputes the scores."""


@dataclass(frozen=True)
class Subject:
    """One way to compute a case; ``make`` prepares caches and weights and returns the call."""

    name: str
    make: Callable[[], Call]
    absent: str = ""
    """Reason why the subject cannot be measured here, or empty. A call may raise ``NotImplementedError`` instead."""
    compiles: bool = False
    """True if the first call compiles, so that peak memory is measured at a later call."""


@dataclass(frozen=True)
class Case:
    """One computation at one size, and its subjects.

    ``sizes`` are all dimensions, ``size`` the one that grows from case to case. ``work`` counts units (terms,
    floating-point operations, bytes), ``unit`` names them, and ``ceiling`` names the rate that limits the case.
    ``formula`` computes the results, or some rows of them, in a dtype; ``comparable`` selects the same rows of a
    subject's results. With ``memory``, peak memory is measured too.
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
    """True to measure our call with one thread too, if the run has several: the gain of threads."""

    precision: torch.dtype = torch.float32
    """Dtype of the inputs, not float64. The error of the formula in this dtype sets the allowed errors."""

    def summands(self, results: int) -> list[int]:
        """Return the terms in each result's sum: B·n·m for gradients of shared inputs, else 1."""
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
    """Make a call of forward and backward, for a cotangent of alternating signs.

    ``parameters`` belong to a module and are not passed to ``compute``; ``rearrange`` brings their gradients into the
    order and shapes of the formula's. Later calls reuse the cotangent of the first: a caller would bring it along.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]
    cotangents: list[Tensor] = []

    def call() -> Sequence[Tensor]:
        out = compute(*leaves)
        if not cotangents:
            cotangents.append(cotangent(out))
        gradients = torch.autograd.grad(out, [*leaves, *parameters], cotangents[0])
        return (out, *gradients[: len(leaves)], *rearrange(gradients[len(leaves) :]))

    return call


def compiled(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function with ``torch.compile``, for static shapes."""
    function: Callable[..., Tensor] = torch.compile(compute, dynamic=False)
    return function
