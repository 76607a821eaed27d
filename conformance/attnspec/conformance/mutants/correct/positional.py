"""Correct encodings of positions."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Arithmetic, Numbers


class Positional(Arithmetic):
    """Encodings of positions."""

    def sinusoidal_positional_encoding(self, n: int, d: int) -> Numbers:
        """Interleaved sines and cosines (n, d)."""
        angle = self.positions(n)[:, None] * self.frequencies(d)
        return self.interleave(np.sin(angle), np.cos(angle))[:, :d].astype(self.default)

    def positions(self, n: int) -> Numbers:
        """Positions 0 … n−1."""
        return np.arange(n, dtype=np.float64)

    def frequencies(self, d: int) -> Numbers:
        """One frequency for each pair of columns."""
        return 10000.0 ** (-2 * np.arange((d + 1) // 2) / d)

    def interleave(self, sines: Numbers, cosines: Numbers) -> Numbers:
        """Columns sin, cos, sin, cos, …"""
        return np.stack([sines, cosines], axis=-1).reshape(len(sines), 2 * sines.shape[-1])

    def learned_positions(self, table: Numbers, n: int) -> Numbers:
        """The first n rows of the table."""
        return self.first_rows(table, n)

    def first_rows(self, table: Numbers, n: int) -> Numbers:
        """Rows 0 … n−1."""
        return table[:n]

    def add_positions(self, x: Numbers, p: Numbers) -> Numbers:
        """x + p."""
        return x + p

    def concat_positions(self, x: Numbers, p: Numbers) -> Numbers:
        """Features of x, then those of p."""
        return self.join_features(x, p)
