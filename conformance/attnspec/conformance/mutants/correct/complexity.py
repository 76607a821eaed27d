"""Correct formulas of a convolution and a graph layer."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.pooling import Pooling


class Comparators(Pooling):
    """Convolution and graph layer, with which attention is compared."""

    def convolution(self, x: Numbers, w: Numbers) -> Numbers:
        """Sum over the taps of the shifted tokens, each projected by the tap's matrix."""
        t, (before, after) = x.shape[-2], self.tap_range(w.shape[0])
        padded = self.pad(x, before, after)
        total = self.project(padded[..., :t, :], w[0])
        for r in range(1, w.shape[0]):
            total = total + self.project(padded[..., r : r + t, :], w[r])
        return total

    def tap_range(self, taps: int) -> tuple[int, int]:
        """Numbers of tokens before and after a position that the taps reach."""
        return (taps - 1) // 2, taps // 2

    def pad(self, x: Numbers, before: int, after: int) -> Numbers:
        """Tokens with ``before`` zeros in front and ``after`` zeros behind."""
        ends = [np.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype) for count in (before, after)]
        return np.concatenate([ends[0], x, ends[1]], axis=-2)

    def graph_layer(self, x: Numbers, w: Numbers, *, mask: Numbers = None) -> Numbers:
        """Sum of the projected features of each node's neighbours."""
        sent, neighbours = self.project(x, w), self.adjacency(mask, x.shape[-2])
        return self.pool(self.edge_weights(neighbours).astype(sent.dtype), sent, None if mask is None else neighbours)

    def adjacency(self, mask: Numbers, n: int) -> Numbers:
        """Adjacency matrix (…, n, n), True at [i, j] for an edge j → i."""
        return np.broadcast_to(True if mask is None else mask, (*(() if mask is None else mask.shape[:-2]), n, n))

    def edge_weights(self, neighbours: Numbers) -> Numbers:
        """Weight of every edge: 1."""
        return neighbours.astype(np.float64)
