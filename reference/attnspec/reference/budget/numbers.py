"""Helpers of both error arithmetics: exact softmax, counts of equal terms, precision of integers."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attnspec.spec.contract.precision import Precision

Numbers = np.ndarray[Any, Any]

DOUBLE = np.dtype(np.float64)

SINGLE = 2.0**-24
"""The unit roundoff of float32."""

# These NumPy functions move numbers without computing, so the same call moves values and errors.
MOVES = frozenset(
    {
        *(np.swapaxes, np.moveaxis, np.transpose, np.reshape, np.broadcast_to, np.expand_dims, np.squeeze),
        *(np.repeat, np.take_along_axis),
    }
)
JOINS = frozenset({np.concatenate, np.stack})
COMPARISONS = frozenset(
    {np.isfinite, np.isnan, np.isinf, np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal}
)


class Softmax(NamedTuple):
    """The softmax of scores of shape (..., n, m) with its intermediates, all without errors.

    ``shifted`` holds the scores minus the maximum of their row. ``attendable`` is the mask, broadcast. ``summed`` is
    log Σ exp of every row, −∞ for a row without keys. ``logarithm`` is its magnitude, or 0 for a row whose shifted
    exponentials sum to 1 in double: the logarithm of a single one is exact. ``masked`` is False if there is no mask.
    """

    weights: Numbers
    shifted: Numbers
    attendable: Numbers
    summed: Numbers
    logarithm: Numbers
    masked: bool


def growth(u: float, roundings: int) -> float:
    """Relative error of n roundings or divisions by rounded numbers: (1 − u)⁻ⁿ − 1."""
    return math.expm1(-roundings * math.log1p(-u))


def is_real(x: Any) -> bool:
    """Return whether an argument is an array of real numbers, which have errors and gradients."""
    # NumPy has no kind for bfloat16 (ml_dtypes), so the kinds of other dtypes are excluded.
    return isinstance(x, np.ndarray) and x.dtype.kind not in "biu"


def as_double(x: Numbers) -> Numbers:
    """Convert to double, which is precise enough for errors and magnitudes of long doubles too."""
    return x if x.dtype is DOUBLE else x.astype(np.float64)


SINGLE_PRODUCTS = 2**24
"""Multiply-adds from which sums of magnitudes are computed in single precision."""

LEAST_SINGLE = 2.0**-126
"""Smallest normal number of single precision."""


def magnitudes_product(left: Numbers, right: Numbers) -> Numbers:
    """Return ``left @ right`` for numbers of at least 0, or slightly more.

    Large matrices are multiplied in single precision, three times as fast as in double. Rows of ``left`` and columns of
    ``right`` are first divided by their largest number, so that nothing overflows and what underflows is below 2⁻¹²⁶.
    Of n positive terms, the rounded sum is at least 1 − (n + 4)·2⁻²⁴ of the exact one, and is enlarged by as much.
    """
    terms = left.shape[-1]
    if not singly_multiplied(left, right):
        return left @ right
    row, column = (x.max(axis, keepdims=True) for x, axis in ((left, -1), (right, -2)))
    # False for NaN, too.
    if not (row.max() < np.inf and column.max() < np.inf):
        return left @ right
    row, column = np.where(row > 0, row, 1.0), np.where(column > 0, column, 1.0)
    result = (_single(left, 1 / row) @ _single(right, 1 / column)).astype(np.float64)
    result += 2 * terms * LEAST_SINGLE
    result *= (1 + (terms + 4) * SINGLE) * row
    result *= column
    return result


def singly_multiplied(left: Numbers, right: Numbers) -> bool:
    """Return True if :func:`magnitudes_product` multiplies in single precision."""
    # Narrow products gain no time. From 2²⁰ terms on, the result would be enlarged by more than a sixteenth.
    if left.ndim < 2 or right.ndim < 2 or min(left.shape[-2], right.shape[-1]) < 32:
        return False
    return bool(left.size * right.shape[-1] >= SINGLE_PRODUCTS and left.shape[-1] <= 2**20)


def _single(x: Numbers, factor: Numbers) -> Numbers:
    single = np.empty(x.shape, np.float32)
    np.multiply(x, factor, out=single, casting="same_kind")
    return single


def widened(x: Numbers, wide: np.dtype[Any]) -> Numbers:
    """Convert numbers to a wider dtype."""
    if x.dtype.name == "bfloat16":
        # The upper half of a float32; the cast of ml_dtypes converts numbers one by one.
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(wide, copy=False)


def attendable_softmax(scores: Numbers, mask: Numbers | None) -> Softmax:
    """Compute the softmax over attendable keys, leaving masked scores out."""
    if mask is None and scores.shape[-1]:
        attendable = np.ones(scores.shape, bool)
        maximum = scores.max(axis=-1, keepdims=True)
        shifted = scores - maximum
        exponentials = np.exp(shifted)
        total = exponentials.sum(-1, keepdims=True)
        summed = maximum + np.log(total)
    else:
        shape = scores.shape if mask is None else np.broadcast_shapes(mask.shape, scores.shape)
        attendable = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        has_keys = attendable.any(-1, keepdims=True)
        masked = np.where(attendable, scores, -np.inf)
        maximum = np.where(has_keys, masked.max(axis=-1, keepdims=True, initial=-np.inf), 0)
        shifted = np.where(attendable, masked - maximum, 0)
        exponentials = np.where(attendable, np.exp(shifted), 0)
        total = np.where(has_keys, exponentials.sum(-1, keepdims=True), 1)
        summed = np.where(has_keys, maximum + np.log(total), -np.inf)
    logarithm = np.where(as_double(total) == 1, 0.0, np.abs(as_double(summed)))
    return Softmax(exponentials / total, shifted, attendable, summed, logarithm, mask is not None)


def longest_runs(ordered: Numbers) -> Numbers:
    """Length of the longest run of equal numbers in every sorted row, shape (..., 1); NaN equals nothing."""
    position = np.arange(ordered.shape[-1], dtype=np.int32)
    start = np.zeros(ordered.shape, np.int32)
    np.multiply(ordered[..., 1:] != ordered[..., :-1], position[1:], out=start[..., 1:])
    np.maximum.accumulate(start, axis=-1, out=start)
    longest: Numbers = np.subtract(position, start, out=start).max(-1, keepdims=True) + 1.0
    return longest


def repeated_terms(x: Numbers, rows: int = 4) -> float:
    """Largest number of equal nonzero terms in a row, over a sample of rows."""
    if x.size == 0 or x.shape[-1] < 2:
        return 1.0
    # A few rows show that most arrays have no equal terms. Otherwise rows with nonzero terms are counted.
    flat = x.reshape(-1, x.shape[-1])
    ordered = flat[:: -(-len(flat) // rows)].copy()
    ordered.sort()
    if not np.count_nonzero(ordered[:, 1:] == ordered[:, :-1]):
        return 1.0
    sample = flat[:: -(-len(flat) // (16 * rows))]
    sample = sample[sample.any(-1)][:rows]
    if len(sample) == 0:
        return 1.0
    return float(longest_runs(np.sort(np.where(sample == 0, np.nan, sample))).max())


class EqualTerms:
    """Largest number of equal nonzero terms in a row of a product; equal terms have equal errors.

    ``count``, at least 1, is computed at first use. A sample of rows is enough, since hidden units with equal weights
    are equal in every row.
    """

    __slots__ = ("_product", "count")

    def __init__(self, product: Numbers) -> None:
        self._product = product

    def __getattr__(self, name: str) -> float:
        if name != "count":
            raise AttributeError(name)
        self.count = repeated_terms(self._product)
        return self.count


@lru_cache
def counting(precision: Precision) -> Precision:
    """Return the precision class of numbers computed from positions and other integers alone.

    No correct implementation stores a position, a frequency or an angle in 16 bits: from 256 on, bfloat16 has no odd
    integers. It may store numbers derived from them, such as cosines: see :meth:`Approximate.storage_rounding`.
    """
    accumulation = min(precision.accumulation, SINGLE)
    exact_class = replace(precision, operand=0.0, stored=0.0, accumulation=accumulation)
    # Callers compare classes by identity.
    return precision if exact_class == precision else exact_class
