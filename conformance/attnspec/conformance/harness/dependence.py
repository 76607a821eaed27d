"""Which rows err independently: of those whose roundings are the same, only one tells anything.

A rounding depends on where a number lies between two of its format. Two rows round alike where what is rounded differs
by less than a step: the exponentials, and the sums of them, where weights are nearly those of another row, whatever
mask hides some of them; and the result, where it is nearly that of another row. Such are rows of equal queries, and all
rows where scores are so small that every weight is nearly 1/m.
"""

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.spec.contract.operation import Operation
from attnspec.spec.contract.precision import Precision

MOST = 2**14
"""Rows that are compared with one another; of more, some are left out."""

NUMBERS = 16
"""Sums of weights with random signs at least, by which those of rows are compared."""

RESOLVED = 2.0**-20
"""Rows that differ by less than this are not told apart, whatever the class: their distance is a difference of sums."""

AT_ONCE = 1024
"""Rows that are compared at once."""


def step_of_weights(precision: Precision, keys: int) -> float:
    """The relative step in which exponentials are rounded, or sums of them, which are up to ``keys`` as large."""
    return 2 * (precision.weights + max(keys, 1) * precision.accumulation)


def step_of_results(precision: Precision) -> float:
    """The relative step in which results are rounded."""
    return 2 * max(precision.output, precision.accumulation)


def probed(given: Arguments, seed: int) -> Arguments:
    """Arguments with signs for values, the same for all heads and elements of the batch: results tell the weights.

    Weights of two rows differ as much as their sums with random signs do, on the average of some.
    """
    rng = np.random.default_rng(seed)

    def signs(x: Numbers) -> Numbers:
        return np.broadcast_to(rng.choice([-1.0, 1.0], x.shape[-2:]), x.shape)

    return given.replaced({path: signs(given.array(path)) for path in valued(given.operation)})


def valued(operation: Operation) -> list[str]:
    """The arrays of values, in which results are linear."""
    return [leaf.path for leaf in operation.attended if leaf.path in operation.linear]


def independent(rows: Numbers, step: float) -> Numbers:
    """The indices of rows that differ by more than a step of their size from all before them that are among these."""
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
    """Which rows differ by no more than a step of their size, (rows, rows)."""
    of_a, of_b = (a**2).sum(-1)[:, None], (b**2).sum(-1)
    return np.asarray(of_a + of_b - 2 * (a @ b.T) <= max(step, RESOLVED) ** 2 * np.maximum(of_a, of_b))


def _first_of_alike(alike: Numbers) -> Numbers:
    """Which rows are like none of those before them that are."""
    kept = np.ones(len(alike), bool)
    for i in np.flatnonzero(alike.sum(-1) > 1):
        if kept[i]:
            kept[i + 1 :] &= ~alike[i, i + 1 :]
    return kept
