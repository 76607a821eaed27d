"""The record of one judgement: every comparison, and its outcome."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.harness.choices import Expected
from attnspec.conformance.harness.parts import Part
from attnspec.conformance.harness.plotting import Compared
from attnspec.conformance.harness.verdict import OPEN, Verdict, Worst
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.comparison import exactly_infinite
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation
from attnspec.conformance.laws.common import wide

MOST_VAGUE = 0.5
"""Largest fraction of numbers with budgets too wide to judge; above it there is no verdict."""


class Record:
    """Outcome of all comparisons; ``outside`` says why some cannot be judged."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.worst: Worst | None = None
        self.together, self.ensemble = "", ""
        self.hidden: Callable[[], tuple[str, ...]] = tuple
        self.where: tuple[Part, tuple[int, ...], int | None] | None = None
        self.diagnose: Callable[[], str] = str
        self.propose: Callable[[], str] = str
        self.judged: list[str] = []
        self.compared: list[Compared] = []
        self.nonfinite = self.demanded = 0
        self.outside = ""

    def compare(self, got: Numbers, expected: Expected, part: Part, of: str, row: int | None = None) -> None:
        """Compare numbers with the expected ones, and store the number furthest beyond its budget.

        Where the class may overflow, a wrong number is no evidence.
        """
        value, budget, nan = expected
        self.compared.append(Compared(of, got, value, budget, part, row))
        if value.dtype.kind not in "biu":
            self.nonfinite += int((~np.isfinite(value) & ~exactly_infinite(value, budget)).sum())
        try:
            self.subject.matches(got, value, budget, part.arguments, of)
        except Violation as error:
            largest = self.subject.precision.largest
            # An infinite peak is unknown, not an overflow.
            if any(largest < x.peak < np.inf for x in self.subject.oracles(part.arguments).values()):
                self.outside = f"an intermediate may exceed {largest:.3g}, the largest number of its precision class"
            else:
                self._found(got, expected, part, of, row, error.index or ())
        if nan is not None:
            self.demanded += int(nan.sum())
            hidden = nan & ~np.isnan(wide(got))
            if hidden.any():
                self._found(got, expected, part, of, row, tuple(map(int, np.argwhere(hidden)[0])))

    def _found(
        self, got: Numbers, expected: Expected, part: Part, of: str, row: int | None, index: tuple[int, ...]
    ) -> None:
        """Store a wrong number if it is the worst so far."""
        found, wanted = got[index], expected.value[index]
        allowed = float(np.broadcast_to(expected.budget, got.shape)[index])
        with np.errstate(all="ignore"):
            ratio = float(np.abs(wanted - np.asarray(found, wanted.dtype)) / allowed) if allowed else np.inf
        ratio = ratio if np.isfinite(ratio) else np.inf
        if self.worst is None or ratio > self.worst.ratio:
            self.worst = Worst(of, part.place(index, row), found, wanted, allowed, ratio)
            self.where = part, index, row

    def verdict(self) -> Verdict:
        """Return the verdict on all comparisons."""
        subject, count = self.subject, max(sum(x.got.size for x in self.compared), 1)
        vague, left_open = (subject.not_judged - self.nonfinite) / count, (self.nonfinite - self.demanded) / count
        if not self.outside and vague > MOST_VAGUE * (1 - left_open):
            self.outside = (
                f"the budgets of {vague:.0%} of the numbers are too large to tell anything; try inputs to which the "
                "result is less sensitive, such as those of suggest_inputs, or a wider dtype"
            )
        if left_open and vague + left_open == 1:
            self.outside = self.outside or f"every number is left open: it comes from {OPEN}"
        return Verdict(
            operation=subject.operation.name,
            dtype=subject.dtype,
            ratio=max(subject.ratio, 0.0 if self.worst is None else self.worst.ratio),
            worst=self.worst,
            judged=", ".join(self.judged),
            untold=vague,
            left_open=left_open,
            outside=self.outside,
            together=self.together,
            ensemble=self.ensemble,
            hidden=self.hidden,
            diagnose=self.diagnose,
            propose=self.propose if self.worst is not None else str,
            compared=tuple(self.compared),
        )
