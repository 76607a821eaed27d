"""The record of one judgement: every comparison, and what is to be said of them."""

from collections.abc import Callable

import numpy as np

from attnspec.conformance.harness.parts import Part
from attnspec.conformance.harness.plotting import Compared
from attnspec.conformance.harness.verdict import Verdict, Worst
from attnspec.conformance.inputs.arguments import Numbers
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Violation


class Record:
    """What became of all comparisons; ``outside`` says why some could tell nothing."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.worst: Worst | None = None
        self.together, self.ensemble = "", ""
        self.hidden: Callable[[], tuple[str, ...]] = tuple
        self.judged: list[str] = []
        self.compared: list[Compared] = []
        self.outside = ""

    def compare(
        self, got: Numbers, expected: Numbers, budget: Numbers, part: Part, of: str, row: int | None = None
    ) -> None:
        """Compare numbers with those expected, and remember the one that is the furthest beyond its budget.

        Where the class may overflow, numbers that are not those expected tell nothing.
        """
        self.compared.append(Compared(of, got, expected, budget, part, row))
        try:
            self.subject.matches(got, expected, budget, part.arguments, of)
        except Violation as error:
            largest = self.subject.precision.largest
            # An infinite bound tells that it is not known, and not that anything overflows.
            if any(largest < x.peak < np.inf for x in self.subject.oracles(part.arguments).values()):
                self.outside = f"an intermediate may exceed {largest:.3g}, the largest number of its precision class"
                return
            index = error.index or ()
            allowed = float(np.broadcast_to(budget, got.shape)[index])
            found, wanted = got[index], expected[index]
            with np.errstate(all="ignore"):
                ratio = float(np.abs(wanted - np.asarray(found, wanted.dtype)) / allowed) if allowed else np.inf
            ratio = ratio if np.isfinite(ratio) else np.inf
            if self.worst is None or ratio > self.worst.ratio:
                self.worst = Worst(of, part.place(index, row), found, wanted, allowed, ratio)

    def verdict(self) -> Verdict:
        """The verdict on all that was compared."""
        subject, untold = self.subject, self.subject.not_judged / max(sum(x.got.size for x in self.compared), 1)
        if untold == 1:
            self.outside = self.outside or "the budget of every number is too large to tell anything"
        return Verdict(
            subject.operation.name,
            subject.dtype,
            subject.ratio,
            self.worst,
            ", ".join(self.judged),
            untold,
            self.outside,
            self.together,
            self.ensemble,
            self.hidden,
            tuple(self.compared),
        )
