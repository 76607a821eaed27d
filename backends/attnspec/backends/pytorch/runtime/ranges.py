"""Range checks of numbers, lengths and indices; skipped where reading values is impossible or slow."""

from math import inf

from torch import Tensor

from attnspec.backends.bases import ranges
from attnspec.backends.pytorch.runtime.transforms import operations_intercepted


def refuse_out_of_range(operation: str, argument: str, integers: Tensor | None, most: int, *, least: int = 0) -> None:
    """Raise ``ShapeError`` for an integer outside ``least``..``most``, on the CPU and outside of transforms."""
    if integers is not None and _readable(integers):
        ranges.refuse_out_of_range(operation, argument, integers, most, least=least)


def refuse_decreasing_ends(operation: str, argument: str, ends: Tensor, most: int) -> None:
    """Raise ``ShapeError`` for sequence ends that decrease or do not run from 0 to ``most``."""
    if _readable(ends):
        ranges.refuse_decreasing_ends(operation, argument, ends, most)


def _readable(integers: Tensor) -> bool:
    """Return whether to read numbers. On other devices every call would wait, and graphs could not capture it."""
    return integers.is_cpu and not operations_intercepted()


def refuse_scale_and_cap(operation: str, scale: float | None, softcap: float | None = None) -> None:
    """Raise ``ValueError`` unless the scale is finite and the cap positive and finite."""
    if scale is not None and not -inf < scale < inf:
        raise ValueError(f"{operation}: scale: expected a finite number; got {scale}")
    if softcap is not None and not 0 < softcap < inf:
        raise ValueError(f"{operation}: softcap: expected a positive, finite number; got {softcap}")
