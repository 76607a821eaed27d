"""Expected results of a case from its formula in double precision, and errors against them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Formula = Callable[..., Tensor]
"""``formula(rows, *inputs)`` computes the output rows with these indices."""


def cotangent(out: Tensor) -> Tensor:
    """Cotangent of alternating signs, expanded from one row to save memory."""
    return out.detach().new_tensor([1.0, -1.0]).repeat(-(-out.shape[-1] // 2))[: out.shape[-1]].expand_as(out)


def expected(
    formula: Formula,
    inputs: Sequence[Tensor],
    batched: int,
    rows: Tensor,
    *,
    dtype: torch.dtype,
    backward: bool,
    chunk: int = 64,
    mask: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Compute some rows of the first batch entry's output; with ``backward`` also the gradients of all inputs.

    The first ``batched`` inputs have a batch dimension; their gradients are returned for the first entry only. The
    other inputs are shared; their gradients are sums over the batch. Queries are processed ``chunk`` at a time.
    A ``mask`` (B, n, m) is passed to the formula, as a keyword, for the entry and rows that it computes.
    """

    def of(some: Tensor, entry: int, operands: Sequence[Tensor]) -> Tensor:
        return formula(some, *operands, **({} if mask is None else {"mask": mask[entry : entry + 1, some]}))

    given = [x.detach().to(dtype) for x in inputs]
    first = [x[:1] if i < batched else x for i, x in enumerate(given)]
    out = of(rows, 0, first)
    if not backward:
        return (out,)
    entries = 1 if batched == len(given) else len(given[0])
    totals = [torch.zeros_like(x) for x in first]
    for entry in range(entries):
        leaves = [x[entry : entry + 1] if i < batched else x for i, x in enumerate(given)]
        leaves = [x.detach().requires_grad_() for x in leaves]
        everything = torch.arange(given[0].shape[-2], device=out.device)
        for start in range(0, len(everything), chunk):
            some = everything[start : start + chunk]
            part = of(some, entry, leaves)
            for i, gradient in enumerate(torch.autograd.grad(part, leaves, cotangent(part))):
                if i >= batched or entry == 0:
                    totals[i] += gradient
    return (out, *totals)


def comparable(found: Sequence[Tensor], batched: int, rows: Tensor) -> tuple[Tensor, ...]:
    """Select from the results of a whole call what ``expected`` returns."""
    out, *gradients = (x.detach() for x in found)
    return (out[:1][..., rows, :], *(g[:1] if i < batched else g for i, g in enumerate(gradients)))


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Largest error of each result relative to its largest number; infinite if it has a NaN.

    If a result is all 0, as gradients of scores are for one key, the error is relative to the largest of all results.
    """
    if [x.shape for x in found] != [x.shape for x in exact]:
        shapes = [[tuple(x.shape) for x in xs] for xs in (exact, found)]
        raise ValueError(f"expected results of shapes {shapes[0]}, got {shapes[1]}")
    largest = [float(x.detach().abs().max()) for x in exact]
    relative = [
        float((f.detach().double() - e.detach()).abs().max()) / (own or max(largest) or 1.0)
        for f, e, own in zip(found, exact, largest, strict=True)
    ]
    return [e if e == e else float("inf") for e in relative]
