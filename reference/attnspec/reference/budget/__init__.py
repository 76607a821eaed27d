"""The budget of every element of a result, derived from the precision class and the very inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnspec.reference.budget.error_array import Approximate, Numbers
from attnspec.reference.budget.hard import Hard
from attnspec.reference.budget.soft import WIDTH, Soft
from attnspec.reference.defining.arithmetic import arithmetic
from attnspec.spec.contract.precision import Precision

__all__ = ["WIDTH", "Approximate", "Hard", "Judged", "Soft", "judged", "oracle_dtype"]


@dataclass(frozen=True)
class Judged:
    """What a result must be: ``value``, the oracle, and ``budget``, how far from it each element may lie.

    ``sigma`` is the standard deviation of an honest error. ``peak`` is the largest magnitude that an intermediate may
    reach: above the class's ``largest``, the inputs are outside the domain. ``level`` is the standard deviation,
    relative to each, of what all weights of a row may err alike.
    """

    value: Numbers
    budget: Numbers
    sigma: Numbers
    peak: float = 0.0
    level: float = 0.0


def oracle_dtype(dtype: str) -> np.dtype[Any]:
    """The dtype that the oracle computes in: double, for doubles long double.

    Raises ``TypeError`` where long double is no wider than double; there doubles cannot be judged.
    """
    if dtype != "float64":
        return np.dtype(np.float64)
    if np.finfo(np.longdouble).nmant < 63:
        raise TypeError("float64 cannot be judged here: np.longdouble has fewer than 63 bits of mantissa")
    return np.dtype(np.longdouble)


def judged(
    formula: Callable[..., Any],
    arguments: Mapping[str, Any],
    precision: Precision,
    wide: np.dtype[Any] | None = None,
) -> Judged:
    """The oracle and the budget of ``formula(**arguments)``, computed in ``wide``: :func:`oracle_dtype` if not given.

    ``arguments`` are NumPy arrays of the tested dtype (exact in it), numbers, flags or None; results that are not
    floating point have a budget of 0.
    """
    wide = oracle_dtype(precision.dtype) if wide is None else wide
    with np.errstate(all="ignore"):
        level = [0.0]
        estimate = partial(Soft, error=0.0, precision=precision, given=True, peak=level)
        soft = _run(formula, estimate, arguments, wide)
        if not isinstance(soft, Soft):
            return Judged(np.asarray(soft), np.zeros(np.shape(soft)), np.zeros(np.shape(soft)))
        peak = [0.0]
        exact = partial(Hard, error=0.0, precision=precision, given=True, peak=peak)
        hard = _run(formula, lambda x: exact(x.astype(np.float64)), arguments, wide)
        magnitude = np.abs(soft.value).astype(np.float64)
        sigma = np.sqrt(soft.error**2 + (0.6 * precision.output * magnitude) ** 2) + precision.output_smallest
        bound = hard.error + precision.output * (magnitude + hard.error) + 4 * precision.output_smallest
        budget = np.fmin(WIDTH * sigma, np.where(np.isnan(bound), np.inf, bound))
    return Judged(soft.value, budget, sigma, peak[0], level[0])


def _run(
    formula: Callable[..., Any], wrap: Callable[[Numbers], Any], arguments: Mapping[str, Any], wide: np.dtype[Any]
) -> Any:
    """The formula on wrapped arrays; formulas without float arguments count in wrapped numbers."""
    with arithmetic(lambda numbers: wrap(numbers.astype(wide))):
        return formula(**{name: wrap(x.astype(wide)) if _is_float(x) else x for name, x in arguments.items()})


def _is_float(x: Any) -> bool:
    # bfloat16 is of no kind that NumPy knows.
    return isinstance(x, np.ndarray) and x.dtype.kind not in "biu"
