"""Lengths and indices within their bounds, where their values can be read."""

from torch import Tensor

from attnspec.backends.bases import ranges
from attnspec.backends.pytorch.runtime.transforms import intercepted


def refuse_outside(operation: str, argument: str, integers: Tensor | None, most: int) -> None:
    """``ShapeError`` for an integer that is not in 0..most; under transforms they are taken on trust."""
    if integers is not None and not (integers.is_meta or intercepted()):
        ranges.refuse_outside(operation, argument, integers, most)


def refuse_falling(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """``ShapeError`` for ends of sequences that fall, or do not reach from 0 to ``most``; the same holds for them."""
    if not (ends.is_meta or intercepted()):
        ranges.refuse_falling(operation, argument, ends, most)
