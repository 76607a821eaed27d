"""Error budgets of results, derived from the precision class and from the actual inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attnspec.reference.budget.error_array import WIDTH, Approximate, Extremes
from attnspec.reference.budget.joint import Joint
from attnspec.reference.budget.numbers import SINGLE, Numbers, is_real, widened
from attnspec.reference.budget.ordered import Ordered
from attnspec.reference.budget.rigorous import Rigorous
from attnspec.reference.budget.sampled import deviations
from attnspec.reference.budget.statistical import Statistical
from attnspec.reference.defining.arithmetic import arithmetic
from attnspec.spec.contract.precision import Precision
from attnspec.spec.contract.tree import flatten, map_tree

__all__ = ["WIDTH", "Approximate", "Judged", "Rigorous", "Statistical", "is_real", "judged", "oracle_dtype"]


@dataclass(frozen=True)
class Judged:
    """The oracle (``value``) of one result and the largest permitted error of each element (``budget``).

    ``sigma`` is the standard deviation of the error of a correct implementation. ``peak`` is the largest magnitude that
    an intermediate may reach; above the class's ``largest``, the inputs lie outside the domain. ``level`` is the
    standard deviation of the relative error that all attention weights of a row share.
    """

    value: Numbers
    budget: Numbers
    sigma: Numbers
    peak: float = 0.0
    level: float = 0.0


def oracle_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype of the oracle: long double for float64, double for every other dtype.

    ``TypeError`` where long double is no wider than double: float64 results cannot be judged on such a machine.
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
    ordered: bool = False,
    sampled: bool = False,
) -> Any:
    """Return the oracle and the budget of ``formula(**arguments)`` as a :class:`Judged`.

    If the formula returns a tree, so does this function, with a :class:`Judged` for each array. Integers and booleans
    have a budget of 0, or ∞ where a choice between equal numbers is open. ``arguments`` are NumPy arrays of the tested
    dtype (exact in it), or of doubles for quantised operands, numbers, flags or None, and trees of these. ``wide`` is
    the dtype to compute in, :func:`oracle_dtype` by default. ``ordered`` widens standard deviations where partial sums,
    followed in several orders, exceed the usual estimate: several times the work. ``sampled`` does so too, and widens
    them where random samples deviate more: 16 times the work.
    """
    wide = oracle_dtype(precision.dtype) if wide is None else wide
    with np.errstate(all="ignore"):
        extremes = Extremes()
        kind = Ordered if ordered or sampled else Statistical
        estimate = partial(kind, error=0.0, precision=precision, is_input=True, extremes=extremes)

        def bound(x: Numbers) -> Rigorous:
            return Rigorous(x, _conversion_error(x, precision), precision, is_input=True, extremes=extremes)

        joint = _run(formula, lambda x: Joint(estimate(x), bound(x)), arguments, wide)
        estimated = map_tree(joint, lambda _, x: x.estimate if isinstance(x, Joint) else x)
        bounded = {path: x.bound for path, x in flatten(joint).items() if isinstance(x, Joint)}
        computed = [(path, x) for path, x in flatten(estimated).items() if isinstance(x, Statistical)]
        statistical = {path: x for path, x in computed if x.value.dtype != bool}
        errors = {path: x.error for path, x in statistical.items()}
        if sampled:
            exact = {path: x.value for path, x in statistical.items()}
            sample_errors = deviations(lambda make: _numbers(_run(formula, make, arguments, wide)), exact, precision)
            errors = {path: np.fmax(error, sample_errors[path]) for path, error in errors.items()}

        def join(path: str, x: Any) -> Judged:
            if not isinstance(x, Statistical):
                return Judged(np.asarray(x), np.zeros(np.shape(x)), np.zeros(np.shape(x)))
            if x.value.dtype == bool:
                return Judged(x.value, np.where(np.isfinite(x.error), 0.0, np.inf), np.zeros(x.value.shape))
            return _joined(x, errors[path], bounded[path], precision, extremes)

        return map_tree(estimated, join)


def _conversion_error(x: Numbers, precision: Precision) -> Numbers | float:
    """Error bound of operands with more bits than the accumulation, such as codes times scales.

    They are exact, but a kernel rounds the product of code and scale. Standard deviations have room for it: they count
    as many roundings as a sum has terms.
    """
    if precision.accumulation < SINGLE or precision.inputs:
        return 0.0
    inexact = x != x.astype(np.float32)
    return np.where(inexact, precision.accumulation * np.abs(x), 0.0) if inexact.any() else 0.0


def _numbers(result: Any) -> dict[str, Numbers]:
    return {path: x.value for path, x in flatten(result).items() if isinstance(x, Statistical)}


def _joined(
    estimated: Statistical, error: Numbers, bounded: Rigorous, precision: Precision, extremes: Extremes
) -> Judged:
    """Return the budget of one array: the smaller of 8 standard deviations and the rigorous bound."""
    magnitude = np.abs(estimated.value).astype(np.float64)
    sigma = np.hypot(error, 0.6 * precision.output * magnitude) + precision.output_smallest
    bound = bounded.error + precision.output * (magnitude + bounded.error) + 4 * precision.output_smallest
    budget = np.fmin(WIDTH * sigma, np.where(np.isnan(bound), np.inf, bound))
    return Judged(estimated.value, budget, sigma, extremes.peak, extremes.level)


def _run(
    formula: Callable[..., Any], wrap: Callable[[Numbers], Any], arguments: Mapping[str, Any], wide: np.dtype[Any]
) -> Any:
    """Run the formula on wrapped float arrays; the integers it counts with are wrapped too."""
    with arithmetic(lambda numbers: wrap(np.zeros(0, wide))._counted(numbers.astype(wide))):
        return formula(**map_tree(dict(arguments), lambda _, x: wrap(widened(x, wide)) if is_real(x) else x))
