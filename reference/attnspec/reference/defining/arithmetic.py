"""The arithmetic of formulas without float arguments.

Other formulas compute in the arithmetic of their arguments. One without, such as the positional encoding, takes its
numbers from :func:`counted`, so that it can be computed in ``np.longdouble``, or on arrays that carry their errors:

    with arithmetic(lambda numbers: numbers.astype(np.longdouble)):
        oracle = sinusoidal_positional_encoding(n, d)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

_CONVERT: ContextVar[Callable[[np.ndarray], Any] | None] = ContextVar("convert", default=None)


def counted(count: int) -> Any:
    """The numbers 0, 1, …, count − 1, shape (count), in float64 or in the arithmetic of the context."""
    numbers = np.arange(count)
    convert = _CONVERT.get()
    return numbers.astype(np.float64) if convert is None else convert(numbers)


@contextmanager
def arithmetic(convert: Callable[[np.ndarray], Any]) -> Iterator[None]:
    """Within this context, formulas without float arguments start from ``convert(integers)``."""
    token = _CONVERT.set(convert)
    try:
        yield
    finally:
        _CONVERT.reset(token)


@contextmanager
def in_arithmetic_of(x: Any) -> Iterator[None]:
    """Within this context, numbers that are counted have the dtype of an array, if no context has set an arithmetic."""
    if _CONVERT.get() is not None:
        yield
        return
    with arithmetic(lambda numbers: numbers.astype(x.dtype)):
        yield
