"""Choice of the arithmetic for formulas without float arguments.

Other formulas compute in the arithmetic of their arguments. A formula without float arguments, such as the positional
encoding, starts from :func:`counted`. So it can run in ``np.longdouble``, or on arrays that carry errors:

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
    """Return 0, 1, …, count − 1, shape (count,), in float64 or the context's arithmetic."""
    numbers = np.arange(count)
    convert = _CONVERT.get()
    return numbers.astype(np.float64) if convert is None else convert(numbers)


@contextmanager
def arithmetic(convert: Callable[[np.ndarray], Any]) -> Iterator[None]:
    """Let formulas without float arguments start from ``convert(integers)`` within this context."""
    token = _CONVERT.set(convert)
    try:
        yield
    finally:
        _CONVERT.reset(token)


@contextmanager
def in_arithmetic_of(x: Any) -> Iterator[None]:
    """Let :func:`counted` use the dtype of ``x`` within this context. An arithmetic already set has precedence."""
    if _CONVERT.get() is not None:
        yield
        return
    with arithmetic(lambda numbers: numbers.astype(x.dtype)):
        yield
