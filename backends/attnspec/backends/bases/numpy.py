"""Base of backends that compute with NumPy arrays. There are no gradients."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.backends.bases.contract import Operations
from attnspec.spec import ShapeError

NDArray = np.ndarray[Any, Any]


ALIGNMENT = 64
"""Bytes. BLAS libraries sum in another order where the alignment differs, so every copy has the same."""


def strided_copy(array: NDArray) -> NDArray:
    """A writable copy with the same strides, gaps and repetitions included; negative strides become positive."""
    itemsize = array.dtype.itemsize
    if array.flags.c_contiguous:
        copy = _aligned(array.nbytes, array.dtype).reshape(array.shape)
    elif any(stride % itemsize for stride in array.strides):
        return array.copy()
    else:
        strides = tuple(map(abs, array.strides))
        last = sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
        room = _aligned(last + itemsize, array.dtype)
        room.fill(0)
        copy = as_strided(room, array.shape, strides)
    copy[...] = array
    return copy


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray:
    """That many bytes, whatever they hold."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start : start + size].view(dtype)


def refuse_outside(operation: str, argument: str, integers: NDArray, most: int) -> None:
    """``ShapeError`` for a length that is not in 0..most."""
    wrong = integers[(integers < 0) | (integers > most)]
    if wrong.size:
        raise ShapeError(operation, argument, f"{argument} in 0..{most}", int(wrong[0]))


class NumPyBackend(Operations[NDArray]):
    """Subclass, set ``name`` and define operations as methods.

    Conversion only copies, so that an operation that writes to its inputs writes to arrays of its own.
    """

    name: str

    def from_numpy(self, array: NDArray, *, device: str) -> NDArray:
        """A copy with the same dtype and strides; ``ValueError`` for any device but ``cpu``."""
        if device != "cpu":
            raise ValueError(f"device: expected cpu; got {device!r}")
        return strided_copy(array)

    def to_numpy(self, array: NDArray) -> NDArray:
        """A copy; ``TypeError`` for what is no NumPy array."""
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"result: expected a NumPy array; got {type(array).__name__}")
        return np.array(array)
