"""Structure of a boolean mask: causal, leading keys per batch element, or neither.

A kernel that knows the structure skips the excluded keys; with only the mask it computes their scores, and discards
them. Reading a mask takes one pass over its bytes, and stops at the first entry that does not fit.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

BLOCK = 256
"""Rows compared at a time."""


class Structure(NamedTuple):
    """A mask in its cheapest form: the mask if still needed, causality, or lengths."""

    mask: Tensor | None
    causal: bool = False
    lengths: tuple[int, ...] | None = None


def structure_of(mask: Tensor) -> Structure:
    """Structure of a mask (b|1, h|1, n|1, m); waits for the device unless that is the CPU.

    ``lengths`` has one entry for every batch element of the mask, whose head dimension is then 1.
    """
    entries: np.ndarray[Any, np.dtype[np.bool_]] = _without_repetition(mask).cpu().numpy()
    rows, keys = entries.shape[-2:]
    if entries.shape[1] != 1 or not entries.size:
        return Structure(mask)
    top, bottom = entries[0, 0, 0], entries[0, 0, -1]
    # Cheap tests come first, so that most masks of another structure are not read whole.
    if rows == 1 or (top[-1] == bottom[-1] and (top == bottom).all() and _rows_agree(entries)):
        first = entries[:, 0, 0]
        lengths = first.sum(-1)
        if (first == (np.arange(keys) < lengths[:, None])).all():
            # lengths below m do not replace the mask: not every kernel takes them
            return Structure(None if (lengths == keys).all() else mask, lengths=tuple(lengths.tolist()))
    elif len(entries) == 1 and keys > 1 and not top[-1] and bottom[0] and _is_causal(entries[0, 0]):
        return Structure(None, causal=True)
    return Structure(mask)


def _without_repetition(mask: Tensor) -> Tensor:
    """The mask without the copies that ``expand`` made."""
    for axis in range(3):
        if mask.shape[axis] > 1 and mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask


def _rows_agree(entries: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    return all(
        bool((entries[:, :, start : start + BLOCK] == entries[:, :, :1]).all())
        for start in range(0, entries.shape[-2], BLOCK)
    )


def _is_causal(entries: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    rows, keys = entries.shape
    for start in range(0, rows, BLOCK):
        stop = min(rows, start + BLOCK)
        left, right = min(start, keys), min(stop, keys)
        block = entries[start:stop]
        if not (
            np.array_equal(block[:, left:right], _triangle()[: stop - start, : right - left])
            and block[:, :left].all()
            and not block[:, right:].any()
        ):
            return False
    return True


@lru_cache(maxsize=1)
def _triangle() -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.tri(BLOCK, dtype=np.bool_)
