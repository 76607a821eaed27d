"""Softmax normalisers of every row, computed in blocks without materialising all n×m scores."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers

BLOCK_ROWS, BLOCK_KEYS = 128, 4096
"""Queries and keys per block; the scores of a block fit into a core's cache."""

Scores = Callable[[Any, Any], Any]
"""Function of queries (n, d) and keys (m, d) that returns scores (n, m). Arrays may carry errors."""


@dataclass(frozen=True)
class Attendance:
    """Query–key pairs (i, j) that ``mask`` allows and for which j ≤ i + ``offset``.

    ``mask`` broadcasts to the shape (n, m). Without a mask or an offset, that condition does not apply.
    """

    shape: tuple[int, int]
    mask: Numbers | None = None
    offset: int | None = None

    def block(self, rows: slice, keys: slice) -> Numbers | None:
        """Return the attending pairs of a block; None if all attend."""
        pairs = None if self.mask is None else np.broadcast_to(self.mask, self.shape)[rows, keys]
        if self.offset is None or keys.stop - 1 <= rows.start + self.offset:
            return pairs
        by_position = np.arange(keys.start, keys.stop) <= np.arange(rows.start, rows.stop)[:, None] + self.offset
        return by_position if pairs is None else pairs & by_position

    def from_row(self, row: int) -> "Attendance":
        """Return the attendance without the rows before ``row``."""
        n, m = self.shape
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[row:]
        return Attendance((n - row, m), mask, None if self.offset is None else self.offset + row)

    def of_keys(self, keys: Numbers) -> Numbers:
        """Return True for the rows that attend to these keys, (n, number of keys)."""
        return self._at(np.arange(self.shape[0]), keys)

    def of_rows(self, rows: Numbers) -> Numbers:
        """Return True for the keys to which these rows attend, (number of rows, m)."""
        return self._at(rows, np.arange(self.shape[1]))

    def _at(self, rows: Numbers, keys: Numbers) -> Numbers:
        allowed = np.ones((len(rows), len(keys)), bool)
        if self.mask is not None:
            allowed &= np.broadcast_to(self.mask, self.shape)[np.ix_(rows, keys)]
        if self.offset is not None:
            allowed &= keys <= rows[:, None] + self.offset
        return allowed

    def end(self, rows: slice) -> int:
        """Return the number of leading keys that the position of the block's last row allows."""
        return self.shape[1] if self.offset is None else int(np.clip(rows.stop + self.offset, 0, self.shape[1]))


def normalizers(scores: Scores, query: Numbers, key: Numbers, attendance: Attendance) -> tuple[Numbers, Numbers]:
    """Return log Σ exp and the largest score of every row; −∞ without keys.

    Scores are computed in the dtype of ``query`` and ``key``, sums in double precision.
    """
    logarithms, maxima = (np.full(len(query), -np.inf) for _ in range(2))
    with np.errstate(all="ignore"):
        for rows in blocks(len(query), BLOCK_ROWS):
            running_max, running_sum = maxima[rows], np.zeros(rows.stop - rows.start)
            for keys in blocks(attendance.end(rows), BLOCK_KEYS):
                block, allowed = scores(query[rows], key[keys]), attendance.block(rows, keys)
                if allowed is not None:
                    block[~allowed] = -np.inf
                new_max = np.maximum(running_max, block.max(-1))
                shift = np.where(np.isneginf(new_max), 0.0, new_max)
                block -= shift[:, None].astype(block.dtype)
                running_sum = running_sum * np.exp(running_max - shift) + np.exp(block, out=block).sum(-1)
                running_max = new_max
            maxima[rows], logarithms[rows] = running_max, running_max + np.log(running_sum)
    return logarithms, maxima


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most ``size``."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
