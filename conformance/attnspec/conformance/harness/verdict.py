"""The verdict on one result."""

from dataclasses import dataclass
from typing import Any

from attnspec.conformance.judging.comparison import told_apart


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

    ``ratio`` is the largest error over its budget, ``worst`` the number that shows most clearly what is wrong, None if
    nothing is. ``judged`` says in words how much was compared. ``untold`` is the share of the numbers whose budget is
    too large to tell anything. ``outside`` says why the numbers tell nothing, such as of inputs at which the class
    overflows.
    """

    operation: str
    dtype: str
    ratio: float
    worst: Worst | None
    judged: str
    untold: float = 0.0
    outside: str = ""

    def __bool__(self) -> bool:
        return self.worst is None and not self.outside

    def __str__(self) -> str:
        head = f"{self.operation} in {self.dtype}"
        if self.worst is not None:
            return f"{head} is wrong: {self.worst}\njudged: {self._extent}"
        if self.outside:
            return f"{head} cannot be judged: {self.outside}"
        return f"{head} is right: the largest error is {self.ratio:.3g} of its budget\njudged: {self._extent}"

    @property
    def _extent(self) -> str:
        few = f"; {self.untold:.0%} of the numbers have budgets too large to tell" if self.untold >= 0.005 else ""
        return self.judged + few

    __repr__ = __str__
