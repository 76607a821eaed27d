"""Record of all comparisons of one judgement, from which its verdict is made."""

from collections.abc import Callable
from copy import copy

import numpy as np

from attnspec.conformance.harness.expected import Expected
from attnspec.conformance.harness.parts import Part
from attnspec.conformance.harness.plotting import Compared
from attnspec.conformance.harness.verdict import OPEN, RightIf, Verdict, Worst
from attnspec.conformance.inputs.arguments import Arguments, Numbers
from attnspec.conformance.judging.comparison import exactly_infinite
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.common import wide

MAX_NOT_JUDGED = 0.5
"""Fraction of numbers with budgets too wide to judge, above which there is no verdict."""


def overflow(subject: Subject, arguments: Arguments, *, untold: bool = False) -> str:
    """Return a sentence if an intermediate may overflow in the precision class; else an empty one.

    An infinite peak means that the largest intermediate is unknown. It counts as an overflow if ``untold``: where NaN
    or an infinity is compared with a number that is smaller than its budget.
    """
    largest = subject.precision.largest
    if any(largest < x.peak and (untold or x.peak < np.inf) for x in subject.oracles(arguments).values()):
        return f"an intermediate may exceed {largest:.3g}, the largest number of its precision class"
    return ""


def declared_to_raise(subject: Subject, arguments: Arguments) -> str:
    """Return a sentence if this call is declared to raise; else an empty one."""
    return "the call is declared to raise, so that no result is right" if subject.refuses(arguments) else ""


def _untold(got: Numbers, expected: Expected, index: tuple[int, ...]) -> bool:
    """Return True if a number is not finite and its budget exceeds the expected one."""
    allowed = np.broadcast_to(expected.budget, got.shape)[index]
    return bool(not np.isfinite(wide(got)[index]) and abs(expected.value[index]) < allowed)


class Record:
    """Comparisons of one judgement, and the worst number so far.

    ``where`` is the worst number's part, its index in that part, and its axis of rows after the batch. ``nonfinite``
    counts expected numbers that are not finite; in ``required_nan`` of them the result must be NaN.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.worst: Worst | None = None
        self.together, self.ensemble = "", ""
        self.hidden: Callable[[], tuple[str, ...]] = tuple
        self.where: tuple[Part, tuple[int, ...], int | None] | None = None
        self.diagnose: Callable[[], str] = str
        self.propose: Callable[[], RightIf] = RightIf
        self.judged: list[str] = []
        self.compared: list[Compared] = []
        self.nonfinite = self.required_nan = 0
        self.outside = ""

    def compare(
        self,
        got: Numbers,
        expected: Expected,
        part: Part,
        of: str,
        row: int | None = None,
        ordered: Callable[[Subject], Expected] | None = None,
    ) -> None:
        """Compare an array with the expected one, and remember its worst number.

        ``of`` names the array, ``row`` is its axis of rows. A wrong number is no evidence if the class may overflow.
        ``ordered`` computes budgets that follow partial sums. By these, an array out of its budget is judged, until one
        is wrong.
        """
        uncounted = copy(self.subject)
        violation = self._violation(got, expected, part, of)
        if violation is not None and ordered is not None and self.worst is None:
            # This comparison does not count: the next one replaces it.
            self.subject = uncounted
            expected = ordered(self.subject.by_partial_sums())
            violation = self._violation(got, expected, part, of)
        value, budget, nan = expected
        self.compared.append(Compared(of, got, value, budget, part, row))
        if value.dtype.kind not in "biu":
            self.nonfinite += int((~np.isfinite(value) & ~exactly_infinite(value, budget)).sum())
        if violation is not None:
            outside = overflow(self.subject, part.arguments, untold=_untold(got, expected, violation.index or ()))
            self.outside = outside or self.outside
            if not outside:
                self._store_if_worst(got, expected, part, of, row, violation.index or ())
        if nan is not None:
            self.required_nan += int(nan.sum())
            not_nan = nan & ~np.isnan(wide(got))
            if not_nan.any():
                self._store_if_worst(got, expected, part, of, row, tuple(map(int, np.argwhere(not_nan)[0])))

    def _violation(self, got: Numbers, expected: Expected, part: Part, of: str) -> Violation | None:
        """Compare, and return the violation; None if every number is within its budget."""
        try:
            self.subject.demand_match(got, expected.value, expected.budget, part.arguments, of)
        except Violation as violation:
            return violation
        return None

    def _store_if_worst(
        self, got: Numbers, expected: Expected, part: Part, of: str, row: int | None, index: tuple[int, ...]
    ) -> None:
        actual, right = got[index], expected.value[index]
        allowed = 0.0 if right.dtype == bool else float(np.broadcast_to(expected.budget, got.shape)[index])
        with np.errstate(all="ignore"):
            ratio = float(np.abs(right - np.asarray(actual, right.dtype)) / allowed) if allowed else np.inf
        ratio = ratio if np.isfinite(ratio) else np.inf
        if self.worst is None or ratio > self.worst.ratio:
            self.worst = Worst(of, part.place(index, row), actual, right, allowed, ratio)
            self.where = part, index, row

    def verdict(self) -> Verdict:
        """Return the verdict on all comparisons."""
        subject, count = self.subject, max(sum(x.got.size for x in self.compared), 1)
        # ``not_judged`` counts too wide budgets and, like ``nonfinite``, numbers without a finite expectation.
        too_wide = (subject.not_judged - self.nonfinite) / count
        left_open = (self.nonfinite - self.required_nan) / count
        if not self.outside and too_wide > MAX_NOT_JUDGED * (1 - left_open):
            self.outside = (
                f"the budgets of {too_wide:.0%} of the numbers are too wide to tell right from wrong; try inputs to "
                "which the result is less sensitive, such as those of suggest_inputs, or a wider dtype"
            )
        if left_open and too_wide + left_open == 1:
            self.outside = self.outside or f"every number is left open, because it comes from {OPEN}"
        return Verdict(
            operation=subject.operation.name,
            dtype=subject.dtype,
            ratio=max(subject.ratio, 0.0 if self.worst is None else self.worst.ratio),
            worst=self.worst,
            judged=", ".join(self.judged),
            untold=too_wide,
            left_open=left_open,
            outside=self.outside,
            together=self.together,
            ensemble=self.ensemble,
            hidden=self.hidden,
            diagnose=self.diagnose,
            propose=self.propose if self.worst is not None else RightIf,
            compared=tuple(self.compared),
        )
