"""Attention with one weight that is wrong by a power of two: how small an error of one weight is convicted.

They are no mutants that must be killed: some are too small to be found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnspec.conformance.mutants.correct import Formulas, Numbers
from attnspec.conformance.mutants.correct.altered import names_of
from attnspec.conformance.mutants.registry import Mutant
from attnspec.spec.attention import ScaledDotProductAttention

OPERATIONS = names_of((ScaledDotProductAttention,))

POWERS: Mapping[str, range] = {
    "float64": range(44, 53),
    "float32": range(16, 24),
    "bfloat16": range(5, 12),
    "float16": range(8, 15),
}
"""The powers of 1/2 by which a weight is wrong, from one that is plain to one that rounding hides."""


@dataclass(frozen=True)
class OneWeight(Mutant):
    """The weight of the last key is too large by this power of 1/2, in every row, relative to what it should be."""

    power: int = 0

    @property
    def error(self) -> float:
        """The relative error of the weight."""
        return 0.5**self.power

    def __reduce__(self) -> Any:
        return one_weight, (self.dtype, self.power)


def one_weight(dtype: str, power: int) -> OneWeight:
    """A backend with such an error at a dtype; it has no gradients."""

    def wrong(correct: Formulas, scores: Numbers, *, mask: Numbers = None) -> Numbers:
        """The last weight of every row is too large."""
        weights = Formulas.softmax(correct, scores, mask=mask)
        factors = np.ones(weights.shape[-1:], weights.dtype)
        factors[-1:] += weights.dtype.type(0.5**power)
        return weights * factors

    name = f"one weight 2^-{power} off in {dtype}"
    step = Formulas.softmax.__name__
    return OneWeight(name, OPERATIONS, wrong, step, (dtype,), differentiable=False, power=power)


ONE_WEIGHT = [one_weight(dtype, power) for dtype, powers in POWERS.items() for power in powers]
