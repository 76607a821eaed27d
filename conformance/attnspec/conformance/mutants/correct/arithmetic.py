"""Correct products, sums and concatenations, which all chapters use."""

from typing import Any

import numpy as np

Numbers = Any
"""A NumPy array, or a ``Tape``, which records how it was computed."""


class Arithmetic:
    """Steps of all chapters; ``default`` is the dtype of results without a float input."""

    default: type = np.float32

    def product(self, a: Numbers, b: Numbers) -> Numbers:
        """Matrix product (…, n, d) × (…, d, m)."""
        return a @ b

    def project(self, x: Numbers, w: Numbers) -> Numbers:
        """Linear map of every row of x (…, n, d) by w (p, d)."""
        return self.product(x, np.swapaxes(w, -1, -2))

    def total(self, x: Numbers) -> Numbers:
        """Sum over the last dimension, which is kept."""
        return np.sum(x, axis=-1, keepdims=True)

    def join_features(self, first: Numbers, second: Numbers) -> Numbers:
        """Concatenate features, those of ``first`` first; the other dimensions broadcast."""
        batch = np.broadcast_shapes(first.shape[:-1], second.shape[:-1])
        both = [np.broadcast_to(x, (*batch, x.shape[-1])) for x in (first, second)]
        return np.concatenate(both, axis=-1)
