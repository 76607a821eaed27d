"""Softmax normalisers of every row, computed in blocks; never materialises n×m."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Numbers

ROWS, KEYS = 128, 4096
"""Queries and keys of a block, whose scores fit into a core's cache."""

Scores = Callable[[Any, Any], Any]
"""Scores (n, m) of queries (n, d) and keys (m, d), for arrays with or without errors."""


@dataclass(frozen=True)
class Attendance:
    """Attending pairs of (n, m): where ``mask`` (n or 1, m or 1) allows them, and j ≤ i + ``offset``."""

    shape: tuple[int, int]
    mask: Numbers | None = None
    offset: int | None = None

    def block(self, rows: slice, keys: slice) -> Numbers | None:
        """Return the attending pairs of a block; None if all attend."""
        found = None if self.mask is None else np.broadcast_to(self.mask, self.shape)[rows, keys]
        if self.offset is None or keys.stop - 1 <= rows.start + self.offset:
            return found
        before = np.arange(keys.start, keys.stop) <= np.arange(rows.start, rows.stop)[:, None] + self.offset
        return before if found is None else found & before

    def behind(self, row: int) -> "Attendance":
        """Return the attendance without the rows before ``row``."""
        n, m = self.shape
        mask = self.mask if self.mask is None or len(self.mask) == 1 else self.mask[row:]
        return Attendance((n - row, m), mask, None if self.offset is None else self.offset + row)

    def of_keys(self, keys: Numbers) -> Numbers:
        """Return which rows attend to these keys: (n, number of keys)."""
        return self._at(np.arange(self.shape[0]), keys)

    def of_rows(self, rows: Numbers) -> Numbers:
        """Return which keys these rows attend to: (number of rows, m)."""
        return self._at(rows, np.arange(self.shape[1]))

    def _at(self, rows: Numbers, keys: Numbers) -> Numbers:
        allowed = np.ones((len(rows), len(keys)), bool)
        if self.mask is not None:
            allowed &= np.broadcast_to(self.mask, self.shape)[np.ix_(rows, keys)]
        if self.offset is not None:
            allowed &= keys <= rows[:, None] + self.offset
        return allowed

    def end(self, rows: slice) -> int:
        """Return the end of the keys that the block's rows may attend to by position."""
        return self.shape[1] if self.offset is None else int(np.clip(rows.stop + self.offset, 0, self.shape[1]))


def normalizers(scores: Scores, query: Numbers, key: Numbers, attendance: Attendance) -> tuple[Numbers, Numbers]:
    """Return log Σ exp and the greatest score of every row, in double; both −∞ for a row without keys.

    Scores are computed in the dtype of ``query`` and ``key``.
    """
    logarithms, maxima = (np.full(len(query), -np.inf) for _ in range(2))
    with np.errstate(all="ignore"):
        for rows in _blocks(len(query), ROWS):
            greatest, total = maxima[rows], np.zeros(rows.stop - rows.start)
            for keys in _blocks(attendance.end(rows), KEYS):
                block, allowed = scores(query[rows], key[keys]), attendance.block(rows, keys)
                if allowed is not None:
                    block[~allowed] = -np.inf
                greater = np.maximum(greatest, block.max(-1))
                shift = np.where(np.isneginf(greater), 0.0, greater)
                block -= shift[:, None].astype(block.dtype)
                total = total * np.exp(greatest - shift) + np.exp(block, out=block).sum(-1)
                greatest = greater
            maxima[rows], logarithms[rows] = greatest, greatest + np.log(total)
    return logarithms, maxima


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
