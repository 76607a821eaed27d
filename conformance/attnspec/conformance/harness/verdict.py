"""The verdict on one result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from attnspec.conformance.explaining.precision_classes import ONLY_IF
from attnspec.conformance.harness.plotting import Compared, figure
from attnspec.conformance.judging.comparison import distinct_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = "NaN, an infinity or a query without keys"
"""Sources of numbers that the declared choices leave open."""


class RightIf(NamedTuple):
    """A reading of a call under which its result is right; ``precision`` is its class, if that is what differs."""

    reading: str = ""
    precision: str = ""


@dataclass(frozen=True)
class Worst:
    """The number whose error is the largest multiple of its budget; ``of`` names its array."""

    of: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    budget: float
    ratio: float

    def __str__(self) -> str:
        got, expected, difference = distinct_texts(self.got, self.expected)
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        steps = f", {difference}" if difference else ""
        # Where NaN is expected, any number is wrong.
        allowed = f" ± {self.budget:.3g}" if isfinite(self.budget) else ""
        return f"{self.of}{place} is {got}, expected {expected}{allowed}{steps}: the error is {self.times}"

    @property
    def times(self) -> str:
        """Error as a multiple of the budget, as text."""
        return f"{self.ratio:.3g} times its budget" if self.ratio < 1e6 else "far beyond its budget"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one result: true if it agrees with the formula; printed, it says what is wrong.

    It is also false if the numbers are no evidence. It is then printed as "cannot be judged", with the reason.

    Attributes:
        ratio: largest error divided by its budget.
        worst: the number whose error is the largest multiple of its budget; None if all are within their budgets.
        judged: how many numbers were compared, as text.
        untold: share of the numbers whose budgets are too wide to judge.
        left_open: share of the numbers that the declared choices leave open, such as results of infinities.
        outside: reason why there is no verdict: the precision class may overflow at these inputs, most budgets are too
            wide, every number is left open, or the call is declared to raise; else empty.
        together: an error that many rows share and no single number shows; else empty.
        ensemble: number of rows that were tested for such errors, or the reason why none were, as text.
        hidden, diagnose, propose: functions that compute ``cannot_see``, ``diagnosis``, and the reading under which a
            wrong result is right.
    """

    operation: str
    dtype: str
    ratio: float
    worst: Worst | None
    judged: str
    untold: float = 0.0
    left_open: float = 0.0
    outside: str = ""
    together: str = ""
    ensemble: str = ""
    hidden: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)
    diagnose: Callable[[], str] = field(default=str, repr=False, compare=False)
    propose: Callable[[], RightIf] = field(default=RightIf, repr=False, compare=False)
    compared: tuple[Compared, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def cannot_see(self) -> tuple[str, ...]:
        """Known defects whose results would be judged right on these inputs; computed on access.

        Empty if these inputs hide no tried defect, or if the result was not judged right.
        """
        return self.hidden() if self else ()

    @cached_property
    def diagnosis(self) -> str:
        """A sentence on the known defect that has the same wrong numbers; empty if there is none.

        Computed on access, which takes a few seconds.
        """
        return self.diagnose()

    @property
    def right_if(self) -> str:
        """Another reading of the call under which a wrong result is right; empty if there is none.

        Computed on access, by one more judgement per reading.
        """
        return self._right_reading.reading

    @property
    def explained_by(self) -> str:
        """The narrowest precision class under which a wrong result is right; empty if there is none.

        Computed on access, by one more judgement per class.
        """
        return self._right_reading.precision

    @cached_property
    def _right_reading(self) -> RightIf:
        return self.propose()

    def plot(self) -> "Figure":
        """Draw heat maps of error over budget: for all judged rows, and for the worst batch element.

        Errors: ``ImportError`` without matplotlib, which the extra ``plot`` installs.
        """
        return figure(self.compared, str(self).splitlines()[0])

    def __bool__(self) -> bool:
        return self.worst is None and not self.outside and not self.together

    def __str__(self) -> str:
        head = f"{self.operation} in {self.dtype}"
        if self.outside and self.worst is None:
            return f"{head} cannot be judged: {self.outside}"
        if self:
            outcome = f"right: the largest error is {self.ratio:.3g} of its budget"
        else:
            outcome = f"wrong: {self.together if self.worst is None else self.worst}"
        explanations = [f"diagnosis: {self.diagnosis}"] if self.diagnosis else []
        if self.explained_by:
            explanations.append(f"explained by precision {self.explained_by}; {ONLY_IF}")
        elif self.right_if.partition(",")[0] not in self.diagnosis:
            explanations.append(f"right if {self.right_if}")
        shared = [f"errors shared by many rows: {self.ensemble}"] if self.ensemble else []
        hides = [f"these inputs would hide: {', '.join(self.cannot_see)}"] if self.cannot_see else []
        extent = extent_text(self.judged, self.untold, self.left_open)
        return "\n".join([f"{head} is {outcome}", *explanations, f"judged: {extent}", *shared, *hides])

    __repr__ = __str__


def extent_text(judged: str, untold: float, left_open: float) -> str:
    """Return what was judged, and the shares of what was not, as text."""
    # Smaller shares would be printed as 0 %.
    too_wide = f"{untold:.0%} of the numbers have budgets too wide to judge" if untold >= 0.005 else ""
    share = f"{left_open:.0%}" if left_open >= 0.005 else "less than 1%"
    open_text = f"{share} are left open, because they come from {OPEN}" if left_open else ""
    return "; ".join(filter(None, (judged, too_wide, open_text)))
