"""The verdict on one result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnspec.conformance.harness.plotting import Compared, figure
from attnspec.conformance.judging.comparison import told_apart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = "NaN, an infinity or a query without keys"
"""Where numbers come from that the declared choices leave open."""


@dataclass(frozen=True)
class Worst:
    """The number that is the furthest beyond its budget; ``of`` is what it is a number of."""

    of: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    budget: float
    ratio: float

    def __str__(self) -> str:
        got, expected, difference = told_apart(self.got, self.expected)
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        told = f", {difference}" if difference else ""
        return f"{self.of}{place} is {got}, expected {expected} ± {self.budget:.3g}{told}: {self.times}"

    @property
    def times(self) -> str:
        """How far it is beyond its budget, in words."""
        return f"{self.ratio:.3g} times its budget" if self.ratio < 1e6 else "far beyond its budget"


@dataclass(frozen=True)
class Verdict:
    """Whether a result is that of the formula; true if it is, and printed with what is wrong if it is not.

    It is false, too, and printed as "cannot be judged", where the numbers do not tell; ``outside`` then says why.

    ``ratio`` is the largest error over its budget, ``worst`` the number that is the furthest beyond its budget, None if
    none is. ``judged`` says in words how much was compared. ``untold`` is the share of the numbers whose budget is
    too large to tell anything, ``left_open`` that of the numbers of which it is left open what they become, such as
    those of infinities. ``outside`` says why the numbers tell nothing: the class overflows at these inputs, most
    budgets are too large, or every number is left open. ``together`` is what is wrong over all rows where no single
    number shows it; ``ensemble`` says how many filters over all rows were asked, or why none.
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
        """Known defects, in words, with which a result would be judged right on these inputs; computed when asked for.

        Empty where there is none among those that are tried, or nothing was judged right.
        """
        return self.hidden() if self else ()

    @cached_property
    def diagnosis(self) -> str:
        """What a wrong result looks like, in a sentence: a known defect with the same numbers; empty if there is none.

        Computed when asked for, in some seconds at most.
        """
        return self.diagnose()

    @cached_property
    def explained_by(self) -> str:
        """The least precision class under which a wrong result is right; empty if there is none.

        Computed when asked for, in the time of a judgement for each class.
        """
        return self.propose()

    def plot(self) -> "Figure":
        """Heat maps of error over budget: of all judged rows, and of the worst element of the batch.

        Errors: ``ImportError`` without matplotlib, which the extra ``plot`` brings.
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
