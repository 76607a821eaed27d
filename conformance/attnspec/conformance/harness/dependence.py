"""Selection of rows that err independently: of rows that round alike, only one is evidence.

A rounding depends on where a number lies between two numbers of its format. Two rows round alike if the rounded numbers
differ by less than a step. Exponentials and their sums do so in rows with nearly equal weights, whatever the mask
hides; results do so in rows with nearly equal results. Examples are rows of equal queries, and all rows if scores are
so small that every weight is nearly 1/m.
"""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.precision import Precision

MOST = 2**14
"""Largest number of rows compared with each other; excess rows are left out."""

NUMBERS = 16
"""Smallest number of random-sign sums of weights by which rows are compared."""

RESOLVED = 2.0**-20
"""Relative difference below which rows count as alike in every class: it is computed as a difference of sums."""

AT_ONCE = 1024
"""Rows per block of comparisons."""


def step_of_weights(precision: Precision, keys: int) -> float:
    """Return the relative rounding step of exponentials, or of their sums, up to ``keys`` as large."""
    return 2 * (precision.weights + max(keys, 1) * precision.accumulation)


def step_of_results(precision: Precision) -> float:
    """Return the relative rounding step of results."""
    return 2 * max(precision.output, precision.accumulation)


def probed(given: Arguments, seed: int) -> Arguments:
    """Replace values by random signs, equal for all heads and batch elements: results then reveal weights.

    The weights of two rows differ as much as their random-sign sums do, on average.
    """
    rng = np.random.default_rng(seed)

    def signs(x: Numbers) -> Numbers:
        return np.broadcast_to(rng.choice([-1.0, 1.0], x.shape[-2:]), x.shape)

    return given.replaced({path: signs(given.array(path)) for path in valued(given.operation)})


def valued(operation: Operation) -> list[str]:
    """Return the paths of value arrays, in which results are linear."""
    return [leaf.path for leaf in operation.attended if leaf.path in operation.linear]


def independent(rows: Numbers, step: float) -> Numbers:
    """Return the indices of rows that differ by more than a step of their size from all earlier kept rows."""
    found = np.nan_to_num(rows.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    first = np.sort(np.unique(found, axis=0, return_index=True)[1])
    if len(first) > MOST:
        first = np.sort(np.random.default_rng(0).permutation(first)[:MOST])
    kept = first[:0]
    for chosen in np.array_split(first, -(-len(first) // AT_ONCE) or 1):
        new = chosen[~_alike(found[chosen], found[kept], step).any(-1)]
        kept = np.concatenate([kept, new[_first_of_alike(_alike(found[new], found[new], step))]])
    return kept


def _alike(a: Numbers, b: Numbers, step: float) -> Numbers:
    """Return which rows differ by at most a step of their size, (rows, rows)."""
    of_a, of_b = (a**2).sum(-1)[:, None], (b**2).sum(-1)
    return np.asarray(of_a + of_b - 2 * (a @ b.T) <= max(step, RESOLVED) ** 2 * np.maximum(of_a, of_b))


def _first_of_alike(alike: Numbers) -> Numbers:
    """Return which rows are unlike all earlier kept rows."""
    kept = np.ones(len(alike), bool)
    for i in np.flatnonzero(alike.sum(-1) > 1):
        if kept[i]:
            kept[i + 1 :] &= ~alike[i, i + 1 :]
    return kept
