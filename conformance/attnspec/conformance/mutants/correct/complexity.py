"""Correct formulas of a convolution and a graph layer, which attention is compared with."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.pooling import Pooling


class Comparators(Pooling):
    """A convolution and a layer of a graph network."""

    def convolution(self, x: Numbers, w: Numbers) -> Numbers:
        """Sum over the taps of the shifted tokens, each projected by the tap's matrix."""
        t, (before, after) = x.shape[-2], self.reach(w.shape[0])
        padded = self.padded(x, before, after)
        total = self.project(padded[..., :t, :], w[0])
        for r in range(1, w.shape[0]):
            total = total + self.project(padded[..., r : r + t, :], w[r])
        return total

    def reach(self, taps: int) -> tuple[int, int]:
        """Numbers of tokens before and after a position that the taps reach."""
        return (taps - 1) // 2, taps // 2

    def padded(self, x: Numbers, before: int, after: int) -> Numbers:
        """Tokens with ``before`` zeros in front and ``after`` zeros behind."""
        ends = [np.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype) for count in (before, after)]
        return np.concatenate([ends[0], x, ends[1]], axis=-2)

    def graph_layer(self, x: Numbers, w: Numbers, *, mask: Numbers = None) -> Numbers:
        """Sum of the projected features of each node's neighbours."""
        sent, neighbours = self.project(x, w), self.neighbours(mask, x.shape[-2])
        return self.pooled(self.shares(neighbours).astype(sent.dtype), sent, None if mask is None else neighbours)

    def neighbours(self, mask: Numbers, n: int) -> Numbers:
        """Matrix (…, n, n), True at [i, j] for an edge from node j to node i."""
        return np.broadcast_to(True if mask is None else mask, (*(() if mask is None else mask.shape[:-2]), n, n))

    def shares(self, neighbours: Numbers) -> Numbers:
        """Weight of every edge: 1."""
        return neighbours.astype(np.float64)
