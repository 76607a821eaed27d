"""Range checks of lengths and indices."""

import torch
from torch import Tensor

from attnspec.spec import ShapeError


def refuse_outside(operation: str, argument: str, integers: Tensor | None, most: int) -> None:
    """Raise ``ShapeError`` for a length or index outside 0..most; waits for the tensor's device."""
    if integers is None:
        return
    if integers.dtype is torch.int64 and integers.is_cpu and integers.numel():
        low, high = integers.aminmax()  # the fastest test for the usual case
        if int(low) >= 0 and int(high) <= most:
            return
    wrong = integers[(integers < 0) | (integers > most)]
    if wrong.numel():
        raise ShapeError(operation, argument, f"{argument} in 0..{most}", int(wrong[0]))


def refuse_falling(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """Raise ``ShapeError`` unless the ends of sequences never decrease, from 0 to ``most``."""
    if int(ends[0]) or int(ends[-1]) != most or bool((ends[1:] < ends[:-1]).any()):
        raise ShapeError(operation, argument, f"integers from 0 to {most}, none below another", ends.tolist())
