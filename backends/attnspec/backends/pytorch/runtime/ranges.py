"""Range checks of numbers, lengths and indices, where their values can be read."""

from math import inf

from torch import Tensor

from attnspec.backends.bases import ranges
from attnspec.backends.pytorch.runtime.transforms import intercepted


def refuse_outside(operation: str, argument: str, integers: Tensor | None, most: int) -> None:
    """Raise ``ShapeError`` for an integer outside 0..most; transforms and meta tensors skip the check."""
    if integers is not None and not (integers.is_meta or intercepted()):
        ranges.refuse_outside(operation, argument, integers, most)


def refuse_falling(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """Raise ``ShapeError`` for sequence ends that decrease or do not run from 0 to ``most``; skipped likewise."""
    if not (ends.is_meta or intercepted()):
        ranges.refuse_falling(operation, argument, ends, most)


def refuse_scale_and_cap(operation: str, scale: float | None, softcap: float | None = None) -> None:
    """Raise ``ValueError`` for a scale that is not finite, or a cap that is not positive and finite."""
    if scale is not None and not -inf < scale < inf:
        raise ValueError(f"{operation}: scale: expected a finite number; got {scale}")
    if softcap is not None and not 0 < softcap < inf:
        raise ValueError(f"{operation}: softcap: expected a positive, finite number; got {softcap}")
