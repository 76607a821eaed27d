"""Base class of duck arrays: arrays with their own arithmetic.

A formula of the reference, called with one, runs in that arithmetic.
"""

from typing import Any

import numpy as np


class DuckArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array around NumPy numbers, ``value``, whose shape and dtype it has."""

    value: np.ndarray[tuple[int, ...], np.dtype[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.value.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers."""
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)
