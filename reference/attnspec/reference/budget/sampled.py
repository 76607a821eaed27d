"""Standard deviations from repeated runs of a formula with random rounding errors.

:class:`~attnspec.reference.budget.statistical.Statistical` assumes independent errors. In a recurrent network they need
not be: after a few steps they point in the direction that the network amplifies most, and there they add linearly.
Samples need no such assumption: the formula itself propagates the errors.
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
"""Number of runs. Errors exceed 8 standard deviations estimated from 16 runs less than once in a million times."""


@dataclass
class Draws(Extremes):
    """State shared by all arrays of one run: also the generator of its rounding errors."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)


class Sample(Statistical):
    """Numbers that include random rounding errors, so that their ``error`` is 0."""

    extremes: Draws

    def _sigmoid(self) -> Self:
        """σ(x) as (1 + tanh(x/2))/2, with the errors of its steps."""
        half = self.dtype.type(0.5)
        by_tanh: Self = half * (1 + np.tanh(half * self))
        return by_tanh

    def _computed(self, value: Numbers, error: Numbers, **attributes: Any) -> Self:
        """Add random errors of the given standard deviation, where it is known."""
        known = np.where(error < UNKNOWN, error, 0.0)
        drawn = (value + known * self.extremes.rng.standard_normal(np.shape(value))).astype(value.dtype)
        return super()._computed(drawn, np.zeros(drawn.shape), **attributes)


def deviations(
    compute: Callable[[Callable[[Numbers], Sample]], Mapping[str, Numbers]],
    exact: Mapping[str, Numbers],
    precision: Precision,
) -> dict[str, Numbers]:
    """Root mean square of the errors of all runs, by path; NaN where the exact number is not finite.

    ``compute`` returns the numbers of one run; its argument turns each input into a :class:`Sample`.
    """
    squares = {path: np.zeros(x.shape) for path, x in exact.items()}
    for seed in range(SAMPLES):
        draws = Draws(rng=np.random.default_rng(seed))
        numbers = compute(partial(Sample, error=0.0, precision=precision, is_input=True, extremes=draws))
        for path, x in exact.items():
            squares[path] += (numbers[path] - x).astype(np.float64) ** 2
    return {path: np.sqrt(x / SAMPLES) for path, x in squares.items()}
