"""Cases of functions with weights, against named rivals whose weights may have other layouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.case import FORWARD, OURS, PASSES, Call, Case, Subject, forward, forward_backward, make_call
from benchmarks.exact import cotangent


@dataclass(frozen=True)
class Rival:
    """Another way to compute the function: of its data alone, with a copy of the weights of its own."""

    compute: Callable[..., Tensor]
    weights: Sequence[Tensor]
    rearrange: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    """Convert gradients of its weights to the order and shapes of the function's weights."""


@dataclass(frozen=True)
class Function:
    """A function of data and weights: ours, formula and rivals, the first of them the baseline.

    Data has a batch dimension; weights have none. ``work`` is FLOP forward.
    """

    ours: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    data: Sequence[Tensor]
    weights: Sequence[Tensor]
    rivals: Mapping[str, Rival]
    work: float


def case(suite: str, name: str, mode: str, sizes: Mapping[str, int], size: int, function: Function) -> Case:
    """Case of one function at one size, whose whole results and gradients are compared."""
    f = function
    inputs = (*f.data, *f.weights)

    def make_rival_call(rival: Rival) -> Call:
        if mode == FORWARD:
            return forward(rival.compute, f.data)
        return forward_backward(rival.compute, f.data, rival.weights, rival.rearrange)

    def exact(dtype: torch.dtype) -> Sequence[Tensor]:
        leaves = [x.detach().to(dtype).requires_grad_(mode != FORWARD) for x in inputs]
        out = f.formula(*leaves)
        gradients = () if mode == FORWARD else torch.autograd.grad(out, leaves, cotangent(out))
        return (out.detach(), *gradients)

    def subject(name: str, rival: Rival) -> Subject:
        return Subject(name, lambda: make_rival_call(rival))

    return Case(
        suite, name, mode, sizes=sizes, size=size, work=f.work * PASSES[mode], unit="FLOP", ceiling="matmul",
        subjects=[
            *(subject(name, rival) for name, rival in f.rivals.items()),
            Subject(OURS, lambda: make_call(mode, f.ours, inputs)),
        ],
        formula=exact, comparable=lambda results: [x.detach() for x in results],
        baseline=next(iter(f.rivals)), shared=len(f.weights),
    )  # fmt: skip
