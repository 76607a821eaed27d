"""Standard deviations from the actual partial sums, in the orders that kernels use.

:class:`~attnspec.reference.budget.statistical.Statistical` assumes terms with random signs. The partial sums of a ramp
grow and cancel, and those of equal terms all round in the same direction. To follow them takes several times as long as
the formula, so only numbers out of their budget are judged again by these deviations.
"""

from collections.abc import Callable, Iterator
from typing import Self

import numpy as np

from attnspec.reference.budget.numbers import Numbers, Softmax, as_double
from attnspec.reference.budget.softmax import EQUAL, equal_sum
from attnspec.reference.budget.statistical import Statistical

BLOCKS = 64
"""Number of partial sums that stand for all of a longer sum."""

LANES = 2, 4, 8, 16, 32
"""Numbers of partial results of kernels with vector instructions or warps; of eight, each adds every eighth term."""

BLOCKS_OF_LANE = 4
"""Number of partial sums that stand for those of a lane."""

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

DOUBLE_ERROR = 2.0**-25
"""Relative differences whose squares doubles cannot tell from 0."""

_DIRECTIONS = slice(None), slice(None, None, -1)


class Ordered(Statistical):
    """Numbers whose standard deviations include those of the partial sums behind them."""

    def _summing_variance(
        self, value: Numbers, squares: Numbers, terms: int, operands: Callable[[], tuple[Numbers, Numbers]]
    ) -> Numbers:
        u = self.precision.accumulation
        usual = super()._summing_variance(value, squares, terms, operands)
        left, right = map(as_double, operands())
        alone, equal = _equal_terms(left, right, u)
        variance, bound = usual, np.zeros(value.shape)
        for sums in _orders(left, right, as_double(value), u):
            # A partial sum S has a rounding of at most u S, with variance (u S)²/3.
            independent = u**2 / 3 * sums.squares
            variance = np.maximum(variance, independent)
            # Terms that have a pattern, such as a ramp, may leave remainders that have one, too: all of one sign. No
            # sum errs by more than u Σ |S|.
            aligned = np.maximum(np.minimum(equal * sums.largest, sums.total), sums.smooth)
            aligned = np.where(alone, equal_sum(equal) * sums.largest, aligned)
            bound = np.maximum(bound, np.where(independent > PATTERN * usual, sums.total, aligned))
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
        result = super()._summed(value, softmax)
        variance = _variance_of_running_sums(as_double(softmax.weights), self.precision.accumulation)
        result.error = np.sqrt(result.error**2 + variance[..., 0])
        return result

    @property
    def variance_of_running_sums(self) -> Numbers:
        """Relative variance that a running maximum adds to the sums of exponentials."""
        return _variance_of_running_sums(as_double(self.value), self.precision.accumulation)


def _rows(right: Numbers, rows: slice) -> Numbers:
    """Rows of the second operand of a product: elements of a vector, rows of matrices."""
    return right[rows] if right.ndim < 2 else right[..., rows, :]


class _Order:
    """Partial sums in one order: the sum of their magnitudes, that of their squares, and the largest magnitude.

    Partial sums up to S lie on a grid of up to 2uS. Terms that change by equal steps may change by a multiple of it,
    and terms below it are lost. ``smooth`` is the sum of the magnitudes to which such terms are added.
    """

    def __init__(self, shape: tuple[int, ...], u: float) -> None:
        self.u = u
        self.total, self.squares, self.largest, self.smooth = (np.zeros(shape) for _ in range(4))

    def add(self, count: int, partial: Numbers, bends: Numbers | None = None) -> None:
        """Add a partial sum that stands for ``count`` ones. ``bends``: mean squared second difference of its terms."""
        magnitude = np.abs(partial)
        np.maximum(self.largest, magnitude, out=self.largest)
        times = count * magnitude
        self.total += times
        if bends is not None:
            self.smooth += np.where(bends <= (self.u * magnitude) ** 2, times, 0.0)
        times *= magnitude
        self.squares += times


def _orders(left: Numbers, right: Numbers, value: Numbers, u: float) -> Iterator[_Order]:
    """Partial sums of left @ right from the front, from the end, and in lanes."""
    front, end = _Order(value.shape, u), _Order(value.shape, u)
    for block, partial in _partial_sums(left, right, BLOCKS):
        count, bends = block.stop - block.start, _second_differences(left[..., block], _rows(right, block))
        front.add(count, partial, bends)
        end.add(count, value - partial, bends)
    yield from (front, end)
    for lanes in LANES:
        order = _Order(value.shape, u)
        for lane in (slice(i, None, lanes) for i in range(min(lanes, left.shape[-1]))):
            for block, partial in _partial_sums(left[..., lane], _rows(right, lane), BLOCKS_OF_LANE):
                order.add(block.stop - block.start, partial)
        yield order


def _partial_sums(left: Numbers, right: Numbers, blocks: int) -> Iterator[tuple[slice, Numbers]]:
    """Yield partial sums of left @ right, each with the terms since the one before."""
    terms, partial = left.shape[-1], np.zeros(())
    size = max(-(-terms // blocks), 1)
    for start in range(0, terms, size):
        block = slice(start, min(start + size, terms))
        partial = partial + left[..., block] @ _rows(right, block)
        yield block, partial


def _second_differences(left: Numbers, right: Numbers) -> Numbers | None:
    """Mean square of the second differences of the terms of left @ right; None for fewer than three."""
    terms = left.shape[-1]
    if terms < 3:
        return None

    def summed(first: int, second: int) -> Numbers:
        """Σ of products of terms so many places apart; of second differences there are two less than terms."""
        one, two = slice(first, first + terms - 2), slice(second, second + terms - 2)
        products: Numbers = (left[..., one] * left[..., two]) @ (_rows(right, one) * _rows(right, two))
        return products

    squares = summed(0, 0) + 4 * summed(1, 1) + summed(2, 2)
    bent = np.maximum(squares - 4 * (summed(0, 1) + summed(1, 2)) + 2 * summed(0, 2), 0.0)
    # Doubles cannot tell smaller differences from 0.
    return np.asarray((bent + DOUBLE_ERROR**2 * squares) / (terms - 2))


def _equal_terms(left: Numbers, right: Numbers, u: float) -> tuple[Numbers, Numbers]:
    """Return whether all terms of left @ right are nearly equal, and how many are.

    Zeros do not count. Terms whose standard deviation exceeds half of the grid have remainders that are evenly
    distributed, up to e^(−π²).
    """
    count = (left != 0).astype(np.float64) @ (right != 0).astype(np.float64)
    mean = left @ right / np.maximum(count, 1)
    spread = (left**2 @ right**2) / np.maximum(count, 1) - mean**2
    nearly_equal = spread <= np.maximum(u * count, DOUBLE_ERROR) ** 2 * mean**2
    columns = right if right.ndim < 2 else right.swapaxes(-1, -2)
    return nearly_equal, np.where(nearly_equal, count, min(_repeats_in_sample(left), _repeats_in_sample(columns)))


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


def _variance_of_running_sums(weights: Numbers, u: float) -> Numbers:
    times = [(weights[..., x] * _later_maxima(weights[..., x])).sum(-1, keepdims=True) for x in _DIRECTIONS]
    variance: Numbers = (2 * EQUAL * RESCALING * u * np.maximum(*times)) ** 2
    return variance


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
