"""Range checks of lengths and indices.

On a GPU the checks wait for earlier kernels: Python has to read the numbers.
"""

import torch
from torch import Tensor

from attnspec.spec import ShapeError


def refuse_out_of_range(operation: str, argument: str, integers: Tensor | None, most: int, *, least: int = 0) -> None:
    """Raise ``ShapeError`` for an integer outside ``least``..``most``."""
    if integers is None:
        return
    if integers.dtype is torch.int64 and integers.is_cpu and integers.numel():
        low, high = integers.aminmax()  # one pass over the numbers; the general test below takes several
        if int(low) >= least and int(high) <= most:
            return
    wrong = integers[(integers < least) | (integers > most)]
    if wrong.numel():
        raise ShapeError(operation, argument, f"{argument} in {least}..{most}", int(wrong[0]))


def refuse_decreasing_ends(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """Raise ``ShapeError`` unless the sequences' ends run from 0 to ``most`` and never decrease."""
    if int(ends[0]) or int(ends[-1]) != most or bool((ends[1:] < ends[:-1]).any()):
        raise ShapeError(operation, argument, f"integers from 0 to {most}, never falling", ends.tolist())
