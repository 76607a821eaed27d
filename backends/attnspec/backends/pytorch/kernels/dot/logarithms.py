"""log Σ exp of rows, from the two numbers that kernels keep of each."""

import torch
from torch import Tensor


def of_rows(maxima: Tensor, reciprocals: Tensor, scale: float) -> Tensor:
    """Of rows that all have a key: from the largest score before the scale, and 1/Σ exp(score − maximum)."""
    return torch.add(reciprocals.log().neg_(), maxima, alpha=scale)


def of_numbers(numbers: Tensor, scale: float) -> Tensor:
    """Of both (2, …), −∞ for rows without a key."""
    maxima, reciprocals = numbers.unbind()
    return of_rows(maxima, reciprocals, scale).masked_fill_(reciprocals == 0, -torch.inf)
