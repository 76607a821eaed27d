"""The verdict on one result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnspec.conformance.harness.plotting import Compared, figure
from attnspec.conformance.judging.comparison import distinct_texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = "NaN, an infinity or a query without keys"
"""Sources of numbers that the declared choices leave open."""


@dataclass(frozen=True)
class Worst:
    """The number furthest beyond its budget; ``of`` names its array."""

    of: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    budget: float
    ratio: float

    def __str__(self) -> str:
        got, expected, difference = distinct_texts(self.got, self.expected)
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        told = f", {difference}" if difference else ""
        return f"{self.of}{place} is {got}, expected {expected} ± {self.budget:.3g}{told}: {self.times}"

    @property
    def times(self) -> str:
        """Its error as a multiple of the budget, as text."""
        return f"{self.ratio:.3g} times its budget" if self.ratio < 1e6 else "far beyond its budget"


@dataclass(frozen=True)
class Verdict:
    """Verdict on one result: true if it agrees with the formula, else printed with what is wrong.

    It is also false, and printed as "cannot be judged", if the numbers are no evidence; ``outside`` then says why.

    ``ratio`` is the largest error over its budget, ``worst`` the number furthest beyond its budget, or None. ``judged``
    says how much was compared. ``untold`` is the share of numbers whose budget is too wide to judge, ``left_open`` that
    of numbers whose value is left open, such as those of infinities. ``outside`` names the reason for no verdict: the
    class overflows at these inputs, most budgets are too wide, or every number is left open. ``together`` is an error
    over all rows that no single number shows; ``ensemble`` says how many groups were judged together, or why none.
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
    propose: Callable[[], str] = field(default=str, repr=False, compare=False)
    compared: tuple[Compared, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def cannot_see(self) -> tuple[str, ...]:
        """Known defects whose results would be judged right on these inputs; computed on access.

        Empty if these inputs hide no tried defect, or if the result was not judged right.
        """
        return self.hidden() if self else ()

    @cached_property
    def diagnosis(self) -> str:
        """A sentence on a known defect with the same wrong numbers; empty if there is none.

        Computed on access, in some seconds at most.
        """
        return self.diagnose()

    @cached_property
    def explained_by(self) -> str:
        """The narrowest precision class under which a wrong result is right; empty if there is none.

        Computed on access, in the time of a judgement for each class.
        """
        return self.propose()

    def plot(self) -> "Figure":
        """Draw heat maps of error over budget: of all judged rows, and of the worst batch element.

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
            said = f"right: the largest error is {self.ratio:.3g} of its budget"
        else:
            said = f"wrong: {self.together if self.worst is None else self.worst}"
        guess = [f"diagnosis: {self.diagnosis}"] if self.diagnosis else []
        guess += [f"explained by precision {self.explained_by}"] if self.explained_by else []
        hides = [f"these inputs cannot show: {', '.join(self.cannot_see)}"] if self.cannot_see else []
        return "\n".join([f"{head} is {said}", *guess, f"judged: {self._extent}", *self._together, *hides])

    @property
    def _extent(self) -> str:
        few = f"{self.untold:.0%} of the numbers have budgets too large to tell" if self.untold >= 0.005 else ""
        some = f"{self.left_open:.0%} are left open: they come from {OPEN}" if self.left_open else ""
        return "; ".join(filter(None, (self.judged, few, some)))

    @property
    def _together(self) -> list[str]:
        return [f"together: {self.ensemble}"] if self.ensemble else []

    __repr__ = __str__
