"""Lengths and indices within their bounds."""

import torch
from torch import Tensor

from attnspec.spec import ShapeError


def refuse_outside(operation: str, argument: str, integers: Tensor | None, most: int) -> None:
    """``ShapeError`` for a length or an index that is not in 0..most; looking at them waits for their device."""
    if integers is None:
        return
    if integers.dtype is torch.int64 and integers.is_cpu and integers.numel():
        low, high = integers.aminmax()  # the fastest way to see that all is well
        if int(low) >= 0 and int(high) <= most:
            return
    wrong = integers[(integers < 0) | (integers > most)]
    if wrong.numel():
        raise ShapeError(operation, argument, f"{argument} in 0..{most}", int(wrong[0]))


def refuse_falling(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """``ShapeError`` for ends of sequences that fall, or do not reach from 0 to ``most``."""
    if int(ends[0]) or int(ends[-1]) != most or bool((ends[1:] < ends[:-1]).any()):
        raise ShapeError(operation, argument, f"integers from 0 to {most}, none below another", ends.tolist())
