"""Comparisons of results within budgets or bit for bit, with a record of error ratios."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.inputs.dtypes import LARGEST, SMALLEST_NORMAL
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.reference.budget.error_array import UNKNOWN

INFORMATIVE = 0.03
"""An element whose budget exceeds this fraction of the largest expected magnitude is not judged."""

INFORMATIVE_WITH_FEW_BITS = 0.5
"""Limit of this fraction for weights in 8 bits or fewer.

Roundings of such weights alone exceed 3 %. The result is linear in them, so that the propagation of errors stays valid.
"""


class Comparisons:
    """Comparisons of arrays, with counters of their outcomes.

    ``ratio``: the largest error ratio since it was last set to 0. ``too_wide``: the number of elements whose budget is
    too wide to judge. ``not_judged``: their number, plus that of elements that a declared choice leaves open.
    ``informative``: the number of elements whose expected value exceeds its budget; only these prove anything.
    """

    ratio: float = 0.0
    not_judged: int = 0
    too_wide: int = 0
    informative: int = 0

    @property
    def within_budget(self) -> bool:
        """True if repeated calls may differ, by at most the sum of both budgets."""
        return False

    @property
    def widest_judged(self) -> float:
        """The largest budget that is judged, as a fraction of the largest expected magnitude."""
        return INFORMATIVE

    @property
    def shares_scales(self) -> bool:
        """True if stored numbers share scales, so that changing one number may round others differently."""
        return False

    def demand_match(
        self,
        got: Numbers,
        expected: Numbers,
        budget: Numbers | Callable[[], Numbers],
        arguments: Arguments,
        what: str = "the result",
    ) -> None:
        """Demand that every element of ``got`` is within its budget of ``expected``.

        Records the error ratio. ``what`` names the result in the message. A callable ``budget`` is called only if
        numbers differ, since budgets are expensive.
        """
        if got.size == 0:
            return
        if callable(budget):
            if not _differs(got, expected):
                self.informative += got.size if np.any(expected) else 0
                return
            budget = budget()
        if got.dtype == bool or expected.dtype == bool:
            # An infinite budget marks a choice that is open, as among equal numbers; their count in a row is not.
            open_ = np.broadcast_to(np.isinf(budget), got.shape)
            self.informative += got.size - int(open_.sum())
            self.not_judged += int(open_.sum())
            miscounted = np.count_nonzero(got, -1) != np.count_nonzero(expected, -1)
            wrong = np.asarray(got != expected) & ~(open_ & ~miscounted[..., None])
            if wrong.any():
                self.ratio = np.inf
                _raise(int(np.argmax(wrong)), got, expected, np.zeros(got.shape), arguments, what)
            return
        ratios = self._ratios(got, expected, budget)
        largest = float(ratios.max())
        self.ratio = max(self.ratio, largest)
        if largest > 1:
            _raise(int(np.argmax(ratios)), got, expected, budget, arguments, what)

    def _ratios(self, got: Numbers, expected: Numbers, budget: Numbers) -> Numbers:
        wide = np.result_type(expected.dtype, np.float64)
        wide_got = got.astype(wide)
        if budget.shape != got.shape:
            budget = np.broadcast_to(budget, got.shape)
        with np.errstate(all="ignore"):
            error = np.abs(wide_got - expected).astype(np.float64)
            finite = np.isfinite(expected)
            ratios = np.where(error == 0, 0.0, error / np.where(budget > 0, budget, np.nan))
            ratios = np.where((error > 0) & (budget == 0), np.inf, ratios)
            top = np.max(np.abs(expected), where=finite, initial=0.0)
            # Where all expected values are 0, there is no magnitude to compare with: any known budget judges. Written
            # as a negation, so that a budget of NaN is too wide.
            too_wide = ~(budget <= (self.widest_judged * float(top) if top > 0 else UNKNOWN / 2))
            ratios = np.where(too_wide, 0.0, ratios)
            may_overflow = too_wide & (np.abs(expected) + budget > LARGEST.get(got.dtype.name, np.inf))
            ratios = np.where(finite & ~may_overflow & ~np.isfinite(wide_got), np.inf, ratios)
            exact = exactly_infinite(expected, budget)
            ratios = np.where(finite, ratios, np.where(exact & (wide_got != expected), np.inf, 0.0))
        not_judged = int(np.where(finite, too_wide, ~exact).sum())
        self.not_judged += not_judged
        self.too_wide += int((finite & too_wide).sum())
        # Where 0 is within the budget, a backend that always returns 0 would match: such elements prove nothing.
        self.informative += int((finite & ~too_wide & (np.abs(expected) > budget)).sum())
        return ratios

    def demand_equal(
        self, got: Numbers, expected: Numbers, budget: Callable[[], Numbers], arguments: Arguments, what: str
    ) -> None:
        """Demand that two results of the backend are equal, bit for bit or within budgets.

        Budgets apply if the backend declares that calls may differ, or stores scales that numbers share; two results
        then differ by at most twice the budget. Subnormal numbers are not compared, since flushing them to zero is
        allowed. ``budget`` is called only if bits differ.
        """
        # A number differs from itself only if it is NaN; NaN equals NaN here.
        different = (got != expected) & ~((got != got) & (expected != expected))
        if not different.any():
            return
        if self.within_budget or self.shares_scales:
            self.demand_match(got, expected.astype(np.float64), 2 * budget(), arguments, what)
            return
        # An infinite budget marks elements that a declared choice leaves open.
        different &= np.isfinite(budget())
        if got.dtype != bool:
            smallest = SMALLEST_NORMAL.get(got.dtype.name, 0.0)
            subnormal = (np.abs(got.astype(np.float64)) < smallest) & (np.abs(expected.astype(np.float64)) < smallest)
            different &= ~subnormal
        if different.any():
            self.ratio = np.inf
            _raise(int(np.argmax(different)), got, expected, np.zeros(got.shape), arguments, what, exact=True)

    def demand(
        self, condition: bool, message: str, arguments: Arguments, *, reason: Reason = Reason.VALUE, **more: Any
    ) -> None:
        """Demand that the condition holds; ``more`` are arguments of the violation."""
        if not condition:
            raise Violation(message, reason=reason, arguments=arguments, **more)


def _raise(
    worst: int, got: Numbers, expected: Numbers, budget: Numbers, arguments: Arguments, what: str, exact: bool = False
) -> None:
    index = tuple(int(i) for i in np.unravel_index(worst, got.shape))
    position = f"[{', '.join(map(str, index))}]" if index else ""
    got_text, expected_text, difference = distinct_texts(got[index], expected[index])
    text = f"{what}{position} is {got_text}, expected {expected_text}"
    if exact:
        text += ", bit for bit"
    elif got.dtype != bool:
        text += f" ± {float(np.broadcast_to(budget, got.shape)[index]):.3g}"
    text += f": {difference}" if difference else ""
    raise Violation(text, arguments=arguments, expected=expected, got=got, budget=budget, index=index)


def exactly_infinite(expected: Numbers, budget: Numbers) -> Numbers:
    """Mask of expected infinities that no rounding can change: their budget is 0."""
    mask: Numbers = np.isinf(expected) & (budget == 0)
    return mask


def _differs(got: Numbers, expected: Numbers) -> bool:
    """Return whether any number differs from its expected value; an expected NaN matches anything."""
    if got.dtype == bool or expected.dtype == bool:
        return bool((got != expected).any())
    wide_got = got.astype(np.result_type(expected.dtype, np.float64))
    return bool(((wide_got != expected) & ~np.isnan(expected)).any())


DIGITS = (9, 17, 21)
"""Significant digits: for reading, then all of a double, then all of a long double."""


def distinct_texts(got: Any, expected: Any) -> tuple[str, str, str]:
    """Both numbers with enough digits to differ, and their difference if 9 digits look equal.

    >>> distinct_texts(0.5, 0.25)
    ('0.5', '0.25', '')
    >>> distinct_texts(1 + 2**-52, 1.0)
    ('1.0000000000000002', '1', '2.22e-16 too much')
    """
    texts = [(number_text(got, digits), number_text(expected, digits)) for digits in DIGITS]
    got_text, expected_text = next((pair for pair in texts if pair[0] != pair[1]), texts[-1])
    if texts[0][0] != texts[0][1] or np.asarray(got).dtype == bool:
        return got_text, expected_text, ""
    wide = np.result_type(np.asarray(got).dtype, np.asarray(expected).dtype, np.float64)
    difference = float(np.asarray(got).astype(wide) - np.asarray(expected).astype(wide))
    return got_text, expected_text, f"{abs(difference):.3g} too {'much' if difference > 0 else 'little'}"


def number_text(x: Any, digits: int = DIGITS[0]) -> str:
    """A number as text, rounded to ``digits`` significant digits."""
    if np.asarray(x).dtype == bool:
        return str(bool(x))
    if digits <= DIGITS[1] or float(x) == x or not np.isfinite(x):
        return f"{float(x):.{min(digits, DIGITS[1])}g}"
    return str(np.format_float_scientific(np.longdouble(x), digits - 1, unique=False, trim="-"))
