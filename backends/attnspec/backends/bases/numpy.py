"""Base of backends that compute with NumPy arrays, without gradients."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from attnspec.backends.bases.contract import Operations
from attnspec.spec import ShapeError

NDArray = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Alignment of every copy, in bytes: the order of sums in BLAS libraries depends on it."""


def strided_copy(array: NDArray) -> NDArray:
    """Return a writable copy with the same gaps and broadcast axes; strides become positive."""
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
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start : start + size].view(dtype)


def refuse_out_of_range(operation: str, argument: str, integers: NDArray, most: int) -> None:
    """Raise ``ShapeError`` for a length outside 0..most."""
    wrong = integers[(integers < 0) | (integers > most)]
    if wrong.size:
        raise ShapeError(operation, argument, f"{argument} in 0..{most}", int(wrong[0]))


class NumPyBackend(Operations[NDArray]):
    """Subclass, set ``name`` and define operations as methods.

    Conversion copies, so that an operation that writes to its inputs never changes the caller's arrays.
    """

    name: str

    def from_numpy(self, array: NDArray, *, device: str) -> NDArray:
        """Return a copy with the same dtype and strides; ``ValueError`` for any device but ``cpu``."""
        if device != "cpu":
            raise ValueError(f"device: expected cpu; got {device!r}")
        return strided_copy(array)

    def to_numpy(self, array: NDArray) -> NDArray:
        """Return a copy; ``TypeError`` unless `array` is a NumPy array."""
        if not isinstance(array, np.ndarray | np.generic):
            raise TypeError(f"result: expected a NumPy array; got {type(array).__name__}")
        return np.array(array)
