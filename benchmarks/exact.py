"""Expected results of a case from its formula in double precision, and errors against them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Formula = Callable[..., Tensor]
"""``formula(rows, *inputs)`` computes the output rows with these indices."""


def cotangent(out: Tensor) -> Tensor:
    """Cotangent of alternating signs, expanded from one row to save memory."""
    features = out.shape[-1]
    signs = torch.tensor([1.0, -1.0], dtype=out.dtype, device=out.device)
    return signs.repeat((features + 1) // 2)[:features].expand_as(out)


def expected(
    formula: Formula,
    inputs: Sequence[Tensor],
    rows: Tensor,
    *,
    batched: int,
    dtype: torch.dtype,
    backward: bool,
    chunk: int = 64,
    mask: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return some rows of the first batch entry's output; with ``backward`` also all gradients.

    The first ``batched`` inputs have a batch dimension; their gradients are returned for the first entry only. The
    other inputs are shared; their gradients are sums over the batch. Queries are processed ``chunk`` at a time.
    A ``mask`` (B, n, m) is passed to the formula, as a keyword, for the entry and rows that it computes.
    """

    def rows_of_entry(some_rows: Tensor, entry: int, operands: Sequence[Tensor]) -> Tensor:
        return formula(some_rows, *operands, **({} if mask is None else {"mask": mask[entry : entry + 1, some_rows]}))

    operands_in_dtype = [x.detach().to(dtype) for x in inputs]
    first = [x[:1] if i < batched else x for i, x in enumerate(operands_in_dtype)]
    out = rows_of_entry(rows, 0, first)
    if not backward:
        return (out,)
    # Only gradients of shared inputs need the other entries of the batch.
    entries = 1 if batched == len(operands_in_dtype) else len(operands_in_dtype[0])
    totals = [torch.zeros_like(x) for x in first]
    for entry in range(entries):
        leaves = [x[entry : entry + 1] if i < batched else x for i, x in enumerate(operands_in_dtype)]
        leaves = [x.detach().requires_grad_() for x in leaves]
        all_rows = torch.arange(operands_in_dtype[0].shape[-2], device=out.device)
        for start in range(0, len(all_rows), chunk):
            some_rows = all_rows[start : start + chunk]
            part = rows_of_entry(some_rows, entry, leaves)
            for i, gradient in enumerate(torch.autograd.grad(part, leaves, cotangent(part))):
                if i >= batched or entry == 0:
                    totals[i] += gradient
    return (out, *totals)


def comparable(results: Sequence[Tensor], rows: Tensor, *, batched: int) -> tuple[Tensor, ...]:
    """Select, from the results of a whole call, the rows and gradients that ``expected`` computes."""
    out, *gradients = (x.detach() for x in results)
    return (out[:1][..., rows, :], *(g[:1] if i < batched else g for i, g in enumerate(gradients)))


def errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Return each result's largest error relative to its largest number; infinite for NaN.

    The error of a result that is all 0 is relative to the largest of all results. With one key, gradients of queries
    and keys are 0: its weight is 1 whatever the score.
    """
    if [x.shape for x in results] != [x.shape for x in exact]:
        shapes = [[tuple(x.shape) for x in xs] for xs in (exact, results)]
        raise ValueError(f"expected results of shapes {shapes[0]}, got {shapes[1]}")
    largest = [float(x.detach().abs().max()) for x in exact]
    relative = [
        float((f.detach().double() - e.detach()).abs().max()) / (largest_of_result or max(largest) or 1.0)
        for f, e, largest_of_result in zip(results, exact, largest, strict=True)
    ]
    return [e if e == e else float("inf") for e in relative]
