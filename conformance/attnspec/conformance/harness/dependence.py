"""Selection of rows with independent rounding errors.

Two rows have the same rounding errors if the numbers that are rounded differ by less than one step of the format. This
holds for exponentials and their sums if weights are nearly equal, even under different masks, and for results that are
nearly equal. Examples: rows with equal queries; all rows, if scores are so small that every weight is nearly 1/m. Of
such rows only one is kept, since the others are no further evidence.
"""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.precision import Precision

MAX_ROWS = 2**14
"""Largest number of rows compared with each other; of more rows, a random sample is compared."""

SIGN_SUMS = 16
"""Smallest number of random-sign sums per row.

One call of :func:`probed` gives as many as values have features.
"""

MIN_STEP = 2.0**-20
"""Smallest step: below it, cancellation in :func:`_alike` hides the difference of two rows."""

BLOCK_ROWS = 1024
"""Rows per block of comparisons."""


def step_of_weights(precision: Precision, keys: int) -> float:
    """Return the relative rounding step of exponentials, and of sums of ``keys`` exponentials."""
    return 2 * (max(precision.weights, precision.weights_scaled) + max(keys, 1) * precision.accumulation)


def step_of_results(precision: Precision) -> float:
    """Return the relative rounding step of results."""
    return 2 * max(precision.output, precision.accumulation)


def probed(arguments: Arguments, seed: int) -> Arguments:
    """Remove masks, causal ones too; replace values by random signs, equal for all heads and batch elements.

    Results are then random-sign sums of weights. On average they differ between two rows as much as the weights do.
    """
    rng, unmasked = np.random.default_rng(seed), arguments.without_masks().unordered()

    def signs(x: Numbers) -> Numbers:
        return np.broadcast_to(rng.choice([-1.0, 1.0], x.shape[-2:]), x.shape)

    return unmasked.replaced({path: signs(arguments.array(path)) for path in value_paths(arguments.operation)})


def value_paths(operation: Operation) -> list[str]:
    """Return the paths of the value arrays: those in which results are linear."""
    return [leaf.path for leaf in operation.attended if leaf.path in operation.linear]


def independent(rows: Numbers, step: float) -> Numbers:
    """Return the indices of rows that :func:`_alike` tells from all earlier kept rows."""
    finite = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    distinct = np.sort(np.unique(finite, axis=0, return_index=True)[1])
    if len(distinct) > MAX_ROWS:
        distinct = np.sort(np.random.default_rng(0).permutation(distinct)[:MAX_ROWS])
    suspects = _suspects(finite[distinct], step)
    if not suspects.any():
        return distinct
    # Rows that may be like others are compared with each other, in double precision.
    compared, chosen = distinct[suspects], distinct[:0]
    for block in np.array_split(compared, -(-len(compared) // BLOCK_ROWS) or 1):
        new = block[~_alike(finite[block], finite[chosen], step).any(-1)]
        chosen = np.concatenate([chosen, new[_first_of_alike(_alike(finite[new], finite[new], step))]])
    return np.sort(np.concatenate([distinct[~suspects], chosen]))


def _suspects(rows: Numbers, step: float) -> Numbers:
    """Return True for rows that may be like another row, by products in single precision.

    |a − b|² ≤ s² max(|a|², |b|²) implies 2 ab ≥ (1 − s²) (|a|² + |b|²); the right-hand side is lowered by more than the
    product's rounding error. All terms are one product, of rows with two more columns.
    """
    largest = np.sqrt((rows**2).sum(-1).max(initial=0.0)) or 1.0
    scaled = (rows / largest).astype(np.float32)
    squares = (scaled**2).sum(-1, keepdims=True) * np.float32(1 - max(step, MIN_STEP) ** 2 - rows.shape[-1] * 2.0**-20)
    ones = np.ones_like(squares)
    left, right = np.concatenate([scaled, squares, ones], -1), np.concatenate([2 * scaled, -ones, -squares], -1)
    suspects = np.zeros(len(rows), bool)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        product = left[block] @ right.T
        product[np.arange(len(product)), np.arange(start, start + len(product))] = -np.inf  # a row with itself
        suspects[block] = product.max(-1) >= 0
    return suspects


def _alike(a: Numbers, b: Numbers, step: float) -> Numbers:
    """Return (rows, rows) booleans: True if two rows differ by at most ``step`` times the larger norm."""
    square_a, square_b = (a**2).sum(-1)[:, None], (b**2).sum(-1)
    return np.asarray(square_a + square_b - 2 * (a @ b.T) <= max(step, MIN_STEP) ** 2 * np.maximum(square_a, square_b))


def _first_of_alike(alike: Numbers) -> Numbers:
    """Return True for rows that are unlike all earlier kept rows."""
    unlike_earlier = np.ones(len(alike), bool)
    for i in np.flatnonzero(alike.sum(-1) > 1):
        if unlike_earlier[i]:
            unlike_earlier[i + 1 :] &= ~alike[i, i + 1 :]
    return unlike_earlier
