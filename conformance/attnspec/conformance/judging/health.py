"""Health of a backend: a raise after which calls that worked before raise, too.

After an illegal memory access, every later call of the same process to CUDA raises. Laws must not be blamed for that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.foreign_calls import Raised, call_safely

Call = Callable[[], object]

NO_RESTART = "this process cannot be restarted: run with --isolated"
STILL_RAISES = "a new process did not help"
"""Reasons for which no restart helps."""


@dataclass
class Health:
    """The health of a backend in its process.

    ``restart`` starts that process anew and returns why it failed, or nothing; None if that is impossible. ``raised``:
    message and arguments of the first call that raised since the last look. ``breaks`` counts lasting raises of a case.
    ``broken``: message of a lasting raise after which no later call can be judged; ``unmended`` says why no restart
    helps.
    """

    restart: Callable[[], str] | None = None
    raised: tuple[str, Arguments | None] | None = None
    breaks: int = 0
    broken: str = ""
    unmended: str = ""
    _call: Call | None = None
    _elements: float = inf
    _never_worked: set[str] = field(default_factory=set)
    _doubtful: bool = False  # a call raised, and no other has worked since

    def note(self, message: str, arguments: Arguments | None) -> None:
        """Store a call that raised, unless an earlier one is stored."""
        self.raised = self.raised or (message, arguments)

    def remember(self, elements: float, call: Call) -> None:
        """Store a call that worked, if it is the smallest so far."""
        if elements < self._elements:
            self._elements, self._call = elements, call

    def try_smallest(self, smallest: Call) -> None:
        """Store a call, if it works and no other is stored."""
        if self._call is None and _works(smallest):
            self.remember(0, smallest)

    def answers(self) -> bool:
        """Return whether a stored call still works."""
        return self._call is not None and _works(self._call)

    def renew(self) -> bool:
        """Restart the process; return whether the stored call works then, if there is one."""
        failure = NO_RESTART if self.restart is None else self.restart()
        works = not failure and (self._call is None or self.answers())
        self.unmended = "" if works else failure or STILL_RAISES
        return works

    def start_case(self) -> None:
        """Restart the process if a call has raised, and the stored call now raises, too."""
        if not self.broken and (self.raised is not None or self._doubtful) and not self.answers():
            self.broken = "" if self.renew() else self.unmended
        self.raised, self.breaks, self._doubtful = None, 0, False

    def distrust(self) -> None:
        """Forget the stored call: it raised after a raise that was not to blame."""
        self._call, self._elements, self.raised = None, inf, None
        self.breaks -= 1

    def broke(self, smallest: Call, operation: str) -> bool:
        """Return whether the stored raise was lasting; if so, restart the process, if possible.

        A call that worked before is repeated. If there is none, ``smallest``, a call of ``operation``, must raise here
        and work in a new process.
        """
        if self.raised is None:
            return False
        known = self._call is not None
        if not known and operation in self._never_worked:
            self._doubtful = True
            return False
        self.try_smallest(smallest)
        if self.answers():
            return False
        works = self.renew()
        if not known and (works or self.restart is None):
            if works:
                self.try_smallest(smallest)
            if self._call is None:
                self._never_worked.add(operation)
                self._doubtful = True
                return False
        self.breaks += 1
        if not works:
            self.broken = f"{self.raised[0]}; {self.unmended}"
        return True


def _works(call: Call) -> bool:
    return not isinstance(call_safely(call), Raised)
