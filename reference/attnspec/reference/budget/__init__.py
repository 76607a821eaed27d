"""The budget of every element of a result, derived from the precision class and from the inputs themselves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnspec.reference.budget.error_array import WIDTH, Approximate, Extremes
from attnspec.reference.budget.joint import Joint
from attnspec.reference.budget.numbers import Numbers
from attnspec.reference.budget.rigorous import Rigorous
from attnspec.reference.budget.sampled import deviations
from attnspec.reference.budget.statistical import Statistical
from attnspec.reference.defining.arithmetic import arithmetic
from attnspec.spec.contract.precision import Precision
from attnspec.spec.contract.tree import flatten, mapped

__all__ = ["WIDTH", "Approximate", "Judged", "Rigorous", "Statistical", "is_real", "judged", "oracle_dtype"]


@dataclass(frozen=True)
class Judged:
    """What a result must be: ``value``, the oracle, and ``budget``, how far from it each element may lie.

    ``sigma`` is the standard deviation of the error of a correct implementation. ``peak`` is the largest magnitude that
    an intermediate may reach: above the class's ``largest``, the inputs are outside the domain. ``level`` is the
    standard deviation, relative to each weight, of the error that all weights of a row have in common.
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
    *,
    sampled: bool = False,
) -> Any:
    """The oracle and the budget of ``formula(**arguments)``, computed in ``wide``: :func:`oracle_dtype` if not given.

    ``arguments`` are NumPy arrays of the tested dtype (exact in it), numbers, flags or None, and trees of these.
    ``sampled`` takes the standard deviations from samples where these are larger: 16 times the work.

    Returns a :class:`Judged`, or a tree of them where the formula gives a tree; results that are not of floating point
    have a budget of 0.
    """
    wide = oracle_dtype(precision.dtype) if wide is None else wide
    with np.errstate(all="ignore"):
        extremes = Extremes()
        estimate = partial(Statistical, error=0.0, precision=precision, given=True, extremes=extremes)
        bound = partial(Rigorous, error=0.0, precision=precision, given=True, extremes=extremes)
        if wide == np.float64:
            both = _run(formula, lambda x: Joint(estimate(x), bound(x)), arguments, wide)
            estimated = mapped(both, lambda _, x: x.estimate if isinstance(x, Joint) else x)
            bounded = {path: x.bound for path, x in flatten(both).items() if isinstance(x, Joint)}
        else:
            # Bounds are computed in double, whatever the oracle is computed in.
            estimated = _run(formula, estimate, arguments, wide)
            bounded = flatten(_run(formula, lambda x: bound(x.astype(np.float64)), arguments, wide))
        found = {path: x for path, x in flatten(estimated).items() if isinstance(x, Statistical)}
        errors = {path: x.error for path, x in found.items()}
        if sampled:
            exact = {path: x.value for path, x in found.items()}
            more = deviations(lambda make: _numbers(_run(formula, make, arguments, wide)), exact, precision)
            errors = {path: np.fmax(error, more[path]) for path, error in errors.items()}

        def join(path: str, x: Any) -> Judged:
            if not isinstance(x, Statistical):
                return _without_budget(x)
            return _joined(x, errors[path], bounded[path], precision, extremes)

        return mapped(estimated, join)


def _numbers(result: Any) -> dict[str, Numbers]:
    return {path: x.value for path, x in flatten(result).items() if isinstance(x, Statistical)}


def _joined(
    estimated: Statistical, error: Numbers, bounded: Rigorous, precision: Precision, extremes: Extremes
) -> Judged:
    """The budget of one array: the smaller of 8 standard deviations and the rigorous bound."""
    magnitude = np.abs(estimated.value).astype(np.float64)
    sigma = np.hypot(error, 0.6 * precision.output * magnitude) + precision.output_smallest
    bound = bounded.error + precision.output * (magnitude + bounded.error) + 4 * precision.output_smallest
    budget = np.fmin(WIDTH * sigma, np.where(np.isnan(bound), np.inf, bound))
    return Judged(estimated.value, budget, sigma, extremes.peak, extremes.level)


def _without_budget(x: Any) -> Judged:
    value = np.asarray(x)
    return Judged(value, np.zeros(value.shape), np.zeros(value.shape))


def _run(
    formula: Callable[..., Any], wrap: Callable[[Numbers], Any], arguments: Mapping[str, Any], wide: np.dtype[Any]
) -> Any:
    """The formula on wrapped arrays; one without float arguments makes its own numbers of wrapped integers."""
    with arithmetic(lambda numbers: wrap(np.zeros(0, wide))._counted(numbers.astype(wide))):
        return formula(**mapped(dict(arguments), lambda _, x: wrap(x.astype(wide)) if is_real(x) else x))


def is_real(x: Any) -> bool:
    """Whether an argument is an array of real numbers: one that carries errors and has a gradient."""
    # bfloat16 is of no kind that NumPy knows.
    return isinstance(x, np.ndarray) and x.dtype.kind not in "biu"
