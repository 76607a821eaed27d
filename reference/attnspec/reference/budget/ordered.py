"""Standard deviations from the actual partial sums, in the orders that kernels use.

:class:`~attnspec.reference.budget.statistical.Statistical` assumes terms with random signs. The partial sums of a ramp
grow and cancel, and those of equal terms all round in the same direction. To follow them takes several times as long as
the formula, so only numbers out of their budget are judged again by these deviations.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Self

import numpy as np

from attnspec.reference.budget.numbers import Numbers, Softmax, as_double
from attnspec.reference.budget.softmax import EQUAL, equal_sum
from attnspec.reference.budget.statistical import Statistical

BLOCKS = 64
"""Number of partial sums that stand for all of a longer sum."""

LANES = 2, 4, 8, 16, 32
"""Numbers of partial results of kernels with vector instructions or warps; of eight, each adds every eighth term."""

BLOCKS_PER_LANE = 8
"""Least number of partial sums that stand for those of a lane."""

PATTERN = 2.0
"""Multiple of the usual variance from which terms of a sum have a pattern.

Terms of random signs exceed it in 2 of 10,000 sums.
"""

SAME_SCORE = 2.0**-20
"""Difference up to which scores of several groups count as equal. Random scores hardly ever are."""

RESCALING = 2.0
"""Bound of two relative errors at every new maximum of a running softmax (unit roundoffs).

One is that of the exponential by which it multiplies its sums, the other that of the multiplication and of the next
addition together.
"""

_DIRECTIONS = slice(None), slice(None, None, -1)


class Ordered(Statistical):
    """Numbers whose standard deviations include those of the partial sums behind them."""

    def _summing_variance(
        self, value: Numbers, squares: Numbers, terms: int, operands: Callable[[], tuple[Numbers, Numbers]]
    ) -> Numbers:
        u = self.precision.accumulation
        usual = super()._summing_variance(value, squares, terms, operands)
        left, right = map(as_double, operands())
        from_the_end = ((count, as_double(value) - partial) for count, partial in _partial_sums(left, right))
        equal, bound = _equal_terms(left, right, u), np.zeros(value.shape)
        variance = usual
        lanes = (_partial_sums_of_lanes(left, right, count) for count in LANES)
        for partial_sums in (_partial_sums(left, right), from_the_end, *lanes):
            total, sum_of_squares, largest = _moments(partial_sums)
            # A partial sum S has a rounding of at most u S, with variance (u S)²/3.
            independent = u**2 / 3 * sum_of_squares
            variance = np.maximum(variance, independent)
            # Terms that have a pattern, such as a ramp, may leave remainders that have one, too: all of one sign.
            # No sum errs by more than u Σ |S|, whatever its terms.
            aligned = np.where(independent > PATTERN * usual, total, np.minimum(equal * largest, total))
            bound = np.maximum(bound, aligned)
        result: Numbers = variance + (EQUAL * u * bound) ** 2
        return result

    def _softmax(self, softmax: Softmax) -> Self:
        result = super()._softmax(softmax)
        if not self.common_errors:
            return result
        equal = np.where(softmax.attendable, np.round(as_double(softmax.shifted) / SAME_SCORE), np.nan)
        repeats = np.maximum(result.weights, _repeats(equal))
        more = (EQUAL * self.precision.accumulation) ** 2 * (repeats**2 - result.weights**2)
        result.error = np.hypot(result.error, np.sqrt(more) * as_double(softmax.weights))
        result.weights, result.common = repeats, result.common + more
        return result

    def _matmul(self, value: Numbers, a: Self, b: Self) -> Self:
        result = super()._matmul(value, a, b)
        if a.weights is None or a.ndim < 2 or b.ndim < 2:
            return result
        p, alpha, v, pooled = self.precision, as_double(a.value), as_double(b.value), as_double(value)
        variance = np.zeros(result.shape)
        for direction in _DIRECTIONS:
            rescaled = alpha * _later_maxima(alpha[..., direction])[..., direction]
            times = rescaled.sum(-1, keepdims=True)
            # The exponential multiplies the sum of weights, too: its error cancels where both quotients are equal.
            error = np.abs(rescaled @ v - times * pooled) + times * np.abs(pooled)
            variance = np.maximum(variance, (EQUAL * RESCALING * p.accumulation * error) ** 2)
        if rounding := p.weights + b.operand_rounding:
            variance = variance + (0.6 * rounding) ** 2 * _squares_of_groups(alpha, v, rounding)
        result.error = np.hypot(result.error, np.sqrt(variance))
        return result

    def _summed(self, value: Numbers, softmax: Softmax) -> Self:
        result, alpha = super()._summed(value, softmax), as_double(softmax.weights)
        times = [(alpha[..., x] * _later_maxima(alpha[..., x])).sum(-1) for x in _DIRECTIONS]
        result.error = np.hypot(result.error, 2 * EQUAL * RESCALING * self.precision.accumulation * np.maximum(*times))
        return result


def _rows(right: Numbers, rows: slice) -> Numbers:
    """Rows of the second operand of a product: elements of a vector, rows of matrices."""
    return right[rows] if right.ndim < 2 else right[..., rows, :]


def _partial_sums(left: Numbers, right: Numbers, blocks: int = BLOCKS) -> Iterator[tuple[int, Numbers]]:
    """Yield partial sums of left @ right, each with the number it represents."""
    terms, partial = left.shape[-1], np.zeros(())
    size = max(-(-terms // blocks), 1)
    for start in range(0, terms, size):
        block = slice(start, start + size)
        partial = partial + left[..., block] @ _rows(right, block)
        yield min(size, terms - start), partial


def _partial_sums_of_lanes(left: Numbers, right: Numbers, count: int) -> Iterator[tuple[int, Numbers]]:
    for lane in (slice(i, None, count) for i in range(min(count, left.shape[-1]))):
        yield from _partial_sums(left[..., lane], _rows(right, lane), max(BLOCKS // count, BLOCKS_PER_LANE))


def _moments(partial_sums: Iterable[tuple[int, Numbers]]) -> tuple[Numbers, Numbers, Numbers]:
    """Sum of magnitudes, sum of squares and largest magnitude."""
    total = squares = largest = np.zeros(())
    for count, partial in partial_sums:
        magnitude = np.abs(partial)
        total, squares = total + count * magnitude, squares + count * magnitude**2
        largest = np.maximum(largest, magnitude)
    return total, squares, largest


def _equal_terms(left: Numbers, right: Numbers, u: float) -> Numbers:
    """Largest error that equal terms of left @ right cause, in units u of the largest partial sum.

    Zeros do not count. Partial sums up to S lie on a grid of up to 2uS. Terms whose standard deviation exceeds half of
    it have remainders that are evenly distributed, up to e^(−π²).
    """
    count = (left != 0).astype(np.float64) @ (right != 0).astype(np.float64)
    mean = left @ right / np.maximum(count, 1)
    spread = (left**2 @ right**2) / np.maximum(count, 1) - mean**2
    # Doubles cannot tell relative spreads below 2⁻²⁵ from 0.
    nearly_equal = spread <= np.maximum(u * count, 2.0**-25) ** 2 * mean**2
    columns = right if right.ndim < 2 else right.swapaxes(-1, -2)
    return np.where(nearly_equal, equal_sum(count), min(_repeats_in_sample(left), _repeats_in_sample(columns)))


def _repeats_in_sample(x: Numbers, rows: int = 4) -> float:
    """Largest :func:`_repeats` of nonzero terms, over a sample of rows."""
    if x.size == 0:
        return 1.0
    flat = x.reshape(-1, x.shape[-1])
    sample = flat[:: -(-len(flat) // rows)]
    return float(_repeats(np.where(sample == 0, np.nan, sample)).max())


def _repeats(x: Numbers) -> Numbers:
    """Number of equal terms that stands for all groups of equal terms in a row.

    The shape is (..., 1). A single group has the number of its terms. The roundings of several groups of n terms have
    independent signs: eight standard deviations of their sum are 8 √(Σ n²/3) units, and it is at most Σ n. NaN equals
    nothing.
    """
    ordered = np.sort(x, axis=-1)
    same = ordered[..., 1:] == ordered[..., :-1]
    ends = np.zeros((*x.shape[:-1], 1), bool)
    grouped = np.concatenate([ends, same], -1) | np.concatenate([same, ends], -1)
    position = np.arange(x.shape[-1])
    start = np.maximum.accumulate(np.where(np.concatenate([ends, same], -1), 0, position), axis=-1)
    # The odd numbers up to 2n − 1 sum up to n².
    squares = np.where(grouped, 2 * (position - start) + 1, 0).sum(-1, keepdims=True)
    repeats: Numbers = np.minimum(grouped.sum(-1, keepdims=True), np.sqrt(squares / 3) / EQUAL)
    return np.maximum(repeats, 1.0)


def _later_maxima(weights: Numbers) -> Numbers:
    """Number of new maxima after each weight of a row, in index order."""
    new = np.zeros(weights.shape)
    new[..., 1:] = weights[..., 1:] > np.maximum.accumulate(weights, axis=-1)[..., :-1]
    counted = np.cumsum(new, axis=-1)
    later: Numbers = counted[..., -1:] - counted
    return later


def _squares_of_groups(weights: Numbers, values: Numbers, unit: float) -> Numbers:
    """Sum the squares of sums over equal weights, which have equal roundings."""
    batch = np.broadcast_shapes(weights.shape[:-2], values.shape[:-2])
    weights = np.broadcast_to(weights, (*batch, *weights.shape[-2:]))
    values = np.broadcast_to(values, (*batch, *values.shape[-2:]))
    squares = np.zeros((*weights.shape[:-1], values.shape[-1]))
    for index in np.ndindex(*weights.shape[:-1]):
        row = weights[index]
        steps = np.round(np.log(row) * (4 / unit))
        order = np.argsort(steps)
        starts = np.flatnonzero(np.diff(steps[order], prepend=np.nan) != 0)
        alone = np.diff(starts, append=len(row)) == 1
        if len(row) and not alone.all():
            sums = np.add.reduceat(row[order, None] * values[index[:-1]][order], starts, axis=0)
            squares[index] = (sums[~alone] ** 2).sum(0)
    return squares
