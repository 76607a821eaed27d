"""NumPy duck arrays that count the matrix products computed with them.

A formula of the reference, called with such arrays, computes its usual result. Afterwards their :class:`Tally` holds
the multiply-adds of all matrix products and the length of the longest chain of products in which each needs the result
of the one before:

    tally = Tally()
    x = Counted(np.ones((5, 3)), tally)
    self_attention(x)
    tally.multiply_adds, tally.longest_chain     # 150, 2
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.reference.defining.duck_array import DuckArray


@dataclass
class Tally:
    """Counts of one computation, shared by all of its arrays."""

    multiply_adds: int = 0
    longest_chain: int = 0


class Counted(DuckArray):
    """An array that counts; ``chain`` is the length of the longest chain of products behind it."""

    __array_priority__ = 1000

    def __init__(self, value: Any, tally: Tally, chain: int = 0) -> None:
        self.value = np.asarray(value)
        self.tally = tally
        self.chain = chain

    def __getitem__(self, index: Any) -> "Counted":
        return Counted(self.value[index], self.tally, self.chain)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        apply = getattr(ufunc, method)
        result = self._applied(apply, inputs, kwargs)
        if ufunc is np.matmul and method == "__call__":
            self.tally.multiply_adds += result.value.size * inputs[0].shape[-1]
            result.chain += 1
            self.tally.longest_chain = max(self.tally.longest_chain, result.chain)
        return result

    def __array_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return self._applied(function, args, kwargs)

    def _applied(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Apply a function to the numbers; the result continues the longest chain of the arguments."""
        chain = max(x.chain for x in _counted((*args, *kwargs.values())))
        result = function(*map(_plain, args), **{name: _plain(x) for name, x in kwargs.items()})
        floats = isinstance(result, np.ndarray | np.generic) and result.dtype.kind == "f"
        return Counted(result, self.tally, chain) if floats else result


def _counted(arguments: Iterable[Any]) -> Iterator[Counted]:
    for x in arguments:
        if isinstance(x, Counted):
            yield x
        elif isinstance(x, list | tuple):
            yield from _counted(x)


def _plain(x: Any) -> Any:
    """Replace the counting arrays in an argument by their numbers."""
    if isinstance(x, list | tuple):
        return type(x)(map(_plain, x))
    return x.value if isinstance(x, Counted) else x
