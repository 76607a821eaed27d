"""Correct masks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.reference.defining.choices import choice


class Masking:
    """Masks that are True where a key may be attended to."""

    def causal_mask(self, n: int, m: int, *, include_self: bool = True) -> Numbers:
        """True at and before the diagonal."""
        rows, columns = np.arange(n)[:, None], np.arange(m)
        return columns <= rows if include_self else columns < rows

    def padding_mask(self, lengths: Numbers, m: int) -> Numbers:
        """True at positions below each length."""
        self.check_lengths(lengths, m)
        return np.arange(m) < lengths[..., None]

    def check_lengths(self, lengths: Numbers, m: int) -> None:
        """Raise for a length outside 0…m."""
        if np.any((lengths < 0) | (lengths > m)):
            raise ValueError(f"padding_mask: lengths: expected 0 to {m}; got {lengths}")

    def build_aligned(self, make: Callable[..., Numbers], n: int, m: int, **options: Any) -> Numbers:
        """Call ``make`` for n × m; "bottom-right" alignment puts the diagonal through the last corner."""
        if choice("causal_alignment") != "bottom-right":
            return make(n, m, **options)
        size = max(n, m)
        return make(size, size, **options)[size - n :, size - m :]

    def with_empty_rows_filled(self, mask: Numbers) -> Numbers:
        """The mask; rows without attendable keys get all keys if "uniform" is chosen."""
        if mask is None or choice("fully_masked") != "uniform":
            return mask
        return mask | ~np.any(mask, axis=-1, keepdims=True)

    def attendable(self, mask: Numbers, causal: bool, n: int, m: int) -> Numbers:
        """The mask joined with the causal mask if ``causal``; None if all keys are attendable."""
        if not causal:
            return mask
        triangle = self.build_aligned(self.causal_mask, n, m)
        return triangle if mask is None else mask & triangle
