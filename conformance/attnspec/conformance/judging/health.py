"""Health of a backend: a raise after which calls that worked before raise, too.

After an illegal memory access, every later call of the same process to CUDA raises. Laws must not be blamed for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.judging.foreign_calls import Raised, call_safely

Call = Callable[[], object]

FORWARD, BACKWARD = "forward pass", "backward pass"
"""Kinds of calls: of operations, and of their gradients. One kind may break alone."""

NO_RESTART = "this process cannot be restarted: run with --isolated"
STILL_RAISES = "a new process did not help"
"""Reasons for which no restart helps."""


class NotedRaise(NamedTuple):
    """A call that raised: message, arguments, kind."""

    message: str
    arguments: Arguments | None
    kind: str


@dataclass
class Health:
    """The health of a backend in its process.

    ``restart`` starts that process anew and returns why it failed, or nothing; None if that is impossible. ``ended``:
    exceptions of calls that ended the process. ``raised``: the first call that raised since the last look. ``breaks``
    counts lasting raises of a case. ``broken``: message of a lasting raise after which no later call can be judged;
    ``unmended`` says why no restart helps.
    """

    restart: Callable[[], str] | None = None
    ended: tuple[type[BaseException], ...] = ()
    raised: NotedRaise | None = None
    breaks: int = 0
    broken: str = ""
    unmended: str = ""
    _calls: dict[str, tuple[float, Call]] = field(default_factory=dict)
    _never_worked: set[tuple[str, str]] = field(default_factory=set)
    _doubtful: set[str] = field(default_factory=set)  # kinds of calls of which one raised, and none is stored

    def note(self, message: str, arguments: Arguments | None, kind: str = FORWARD) -> None:
        """Store a call that raised, unless an earlier one is stored."""
        self.raised = self.raised or NotedRaise(message, arguments, kind)

    def remember(self, elements: float, call: Call, kind: str = FORWARD) -> None:
        """Store a call that worked, if it is the smallest of its kind so far."""
        if kind not in self._calls or elements < self._calls[kind][0]:
            self._calls[kind] = elements, call

    def try_smallest(self, smallest: Mapping[str, Call]) -> None:
        """Store calls that work, by kind, where no other is stored."""
        for kind, call in smallest.items():
            if kind not in self._calls and self._works(call):
                self.remember(0, call, kind)

    def answers(self) -> bool:
        """Return whether there are stored calls, and all of them still work."""
        return bool(self._calls) and all(self._works(call) for _, call in self._calls.values())

    def renew(self) -> bool:
        """Restart the process; return whether the stored calls work then."""
        failure = NO_RESTART if self.restart is None else self.restart()
        works = not failure and (not self._calls or self.answers())
        self.unmended = "" if works else failure or STILL_RAISES
        return works

    def start_case(self) -> None:
        """Restart the process if a call has raised that may have broken it."""
        suspected = self.raised is not None or self._doubtful
        if not self.broken and suspected and (self._doubtful - self._calls.keys() or not self.answers()):
            self.broken = "" if self.renew() else self.unmended
        self.raised, self.breaks, self._doubtful = None, 0, set()

    def distrust(self) -> None:
        """Forget the stored calls: one raised after a raise that was not to blame."""
        self._calls, self.raised = {}, None
        self.breaks -= 1

    def broke(self, smallest: Mapping[str, Call], operation: str, *, expected: bool = False) -> bool:
        """Return whether the stored raise was lasting; if so, restart the process, if possible.

        Calls that worked before are repeated: one of them must raise. If no call of the kind that raised has worked,
        the call of this kind in ``smallest``, of ``operation``, must raise here and work in a new process. Where no
        restart is possible, a raise that a law ``expected`` is lasting only if this smallest call raises, too: a stored
        call may have begun to raise by itself.
        """
        if self.raised is None:
            return False
        kind = self.raised.kind
        first, tried = {kind: smallest[kind]}, (operation, kind) in self._never_worked
        if not tried:
            self.try_smallest(first)
        if kind not in self._calls:
            self._doubtful.add(kind)
        lasts = bool(self._calls) and not self.answers()
        if lasts and expected and self.restart is None and self._works(smallest[kind]):
            self._calls = {}
            return False
        if not lasts and (kind in self._calls or tried):
            return False
        works = self.renew()
        if not lasts and (works or self.restart is None):
            if works:
                self.try_smallest(first)
            if kind not in self._calls:
                self._never_worked.add((operation, kind))
                return False
        self.breaks += 1
        if not works:
            self.broken = f"{self.raised.message}; {self.unmended}"
        return True

    def _works(self, call: Call) -> bool:
        """Return whether a call works, at once or when repeated: some backends raise now and then."""
        try:
            return any(not isinstance(call_safely(call), Raised) for _ in range(2))
        except self.ended:
            return False
