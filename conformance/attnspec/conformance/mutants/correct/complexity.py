"""Correct formulas of the layers that attention is compared with."""

import numpy as np

from attnspec.conformance.mutants.correct.arithmetic import Numbers
from attnspec.conformance.mutants.correct.pooling import Pooling


class Comparators(Pooling):
    """A convolution, and a layer of a graph network."""

    def convolution(self, x: Numbers, w: Numbers) -> Numbers:
        """The sum of what all taps see, each in its own matrix."""
        t, (before, after) = x.shape[-2], self.reach(w.shape[0])
        padded = self.padded(x, before, after)
        total = self.project(padded[..., :t, :], w[0])
        for r in range(1, w.shape[0]):
            total = total + self.project(padded[..., r : r + t, :], w[r])
        return total

    def reach(self, taps: int) -> tuple[int, int]:
        """How many tokens back and ahead the taps reach."""
        return (taps - 1) // 2, taps // 2

    def padded(self, x: Numbers, before: int, after: int) -> Numbers:
        """The tokens between zeros."""
        ends = [np.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype) for count in (before, after)]
        return np.concatenate([ends[0], x, ends[1]], axis=-2)

    def graph_layer(self, x: Numbers, w: Numbers, *, mask: Numbers = None) -> Numbers:
        """The sum of what the neighbours send."""
        sent, neighbours = self.project(x, w), self.neighbours(mask, x.shape[-2])
        return self.pooled(self.shares(neighbours).astype(sent.dtype), sent, None if mask is None else neighbours)

    def neighbours(self, mask: Numbers, n: int) -> Numbers:
        """For each node, the nodes with an edge to it."""
        return np.broadcast_to(True if mask is None else mask, (*(() if mask is None else mask.shape[:-2]), n, n))

    def shares(self, neighbours: Numbers) -> Numbers:
        """How much of what a neighbour sends is counted: all of it."""
        return neighbours.astype(np.float64)
