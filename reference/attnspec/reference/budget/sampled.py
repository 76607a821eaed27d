"""Standard deviations from samples: the formula is computed again and again, each time with random rounding errors.

:class:`~attnspec.reference.budget.statistical.Statistical` takes the errors of different numbers as independent. In a
recurrent network they need not be: after a few steps they point in the direction that the network amplifies most, and
there they add linearly. Samples assume nothing of the kind: errors go where the formula takes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from attnspec.reference.budget.error_array import UNKNOWN, Extremes
from attnspec.reference.budget.numbers import Numbers
from attnspec.reference.budget.statistical import Statistical
from attnspec.spec.contract.precision import Precision

SAMPLES = 16
"""How many: eight standard deviations estimated from so many are exceeded less than once in a million times."""


@dataclass
class Draws(Extremes):
    """What all arrays of one sample share: where its rounding errors are drawn from."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)


class Sample(Statistical):
    """Numbers that are off by their rounding errors, drawn at random; ``error`` is 0."""

    extremes: Draws

    def _sigmoid(self) -> Self:
        """(1 + tanh(x/2))/2 with the errors of its steps."""
        half = self.dtype.type(0.5)
        through: Self = half * (1 + np.tanh(half * self))
        return through

    def _computed(self, value: Numbers, error: Numbers, **more: Any) -> Self:
        """The numbers with new rounding errors, of this standard deviation where it is known."""
        known = np.where(error < UNKNOWN, error, 0.0)
        drawn = (value + known * self.extremes.rng.standard_normal(np.shape(value))).astype(value.dtype)
        return super()._computed(drawn, np.zeros(drawn.shape), **more)


def deviations(
    compute: Callable[[Callable[[Numbers], Sample]], Mapping[str, Numbers]],
    exact: Mapping[str, Numbers],
    precision: Precision,
) -> dict[str, Numbers]:
    """The root mean square of the errors of samples, by path; NaN where the exact number is not finite.

    ``compute`` gives the numbers of one sample, from a function that makes samples of the inputs.
    """
    squares = {path: np.zeros(x.shape) for path, x in exact.items()}
    for seed in range(SAMPLES):
        draws = Draws(rng=np.random.default_rng(seed))
        found = compute(partial(Sample, error=0.0, precision=precision, given=True, extremes=draws))
        for path, x in exact.items():
            squares[path] += (found[path] - x).astype(np.float64) ** 2
    return {path: np.sqrt(x / SAMPLES) for path, x in squares.items()}
