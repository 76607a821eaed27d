"""Crashes and hangs of a backend with its own process, kept in the judge's memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason

INPUT_CHARACTERS = 2000
"""Largest number of characters of an input in a message."""

AT = " at the input "
"""Separates the end of the process from its input in the message of an incident."""

STOP_AFTER = 3
"""Laws that may crash or hang per operation and dtype; then the remaining ones fail unchecked.

Other dtypes do not count: their order depends on the number of workers.
"""


def in_words(given: Any) -> str:
    """Describe an input on one line: sizes, options, masks, numbers that are not normal, and seed."""
    if not isinstance(given, Example):
        return str(given)
    kinds = {name: kind for name, kind in given.kinds.items() if kind != "normal"}
    chosen = {**given.sizes, **given.options, **given.masks, **kinds}
    words = [f"{name} = {value}" for name, value in chosen.items()]
    words += [f"batch {given.batch}"] if given.batch else []
    words += [f"without {', '.join(sorted(given.absent))}"] if given.absent else []
    return ", ".join([*words, f"seed {given.seed}"])


class Incidents:
    """Crashes and hangs of a backend with its own process, kept in the judge's memory."""

    def __init__(self, hang_after: float) -> None:
        self.hang_after = hang_after
        self._current: tuple[str, str, str, object] | None = None
        self._doubted: set[tuple[str, str, str]] = set()
        self._verdicts: dict[tuple[str, str], dict[str, Result]] = {}
        self._inputs: dict[tuple[str, str, str], object] = {}

    def begin(self, operation: str, dtype: str, law: str, given: object) -> None:
        """Store the check that begins."""
        self._current = operation, dtype, law, given

    def tried_again(self, operation: str, dtype: str) -> bool:
        """Return true at a law's first hang, which a busy machine may have caused: the case runs again.

        Call this after a hang. The second one counts.
        """
        law, _ = self._check_of(operation, dtype)
        if law is None or (operation, dtype, law) in self._doubted:
            return False
        self._doubted.add((operation, dtype, law))
        self._current = None
        return True

    def record(self, operation: str, dtype: str, *, hung: bool, left: Sequence[str] = ()) -> Result | None:
        """Record the law that ended or hung the backend's process, and return the verdict.

        ``left`` names processes that it left running. None if no law can be blamed: the process ended before its first
        check, or at a law that is recorded already.
        """
        law, given = self._check_of(operation, dtype)
        if law is None or law in self.verdicts(operation, dtype):
            return None
        what = f"did not answer within {self.hang_after:g} s" if hung else "ended the process"
        message = f"the backend {what}{AT}{in_words(given)[:INPUT_CHARACTERS]}"
        message += f"; left behind, and ended: {', '.join(left)}" if left else ""
        reason = Reason.HUNG if hung else Reason.CRASHED
        result = Result(operation, law, dtype, Status.FAILED, reason, message)
        self._store(result)
        self._inputs[operation, dtype, law] = given
        self._current = None
        return result

    def examined(self, operation: str, dtype: str, law: str, found: Mapping[str, Any]) -> None:
        """Add a message and a counterexample, or a note, to a recorded verdict."""
        self._store(replace(self.verdicts(operation, dtype)[law], **found))

    def given_up(self, operation: str, dtype: str) -> str | None:
        """Return why a case's remaining laws are skipped, ``crashed`` or ``hung``; None if they are checked."""
        recorded = [*self.verdicts(operation, dtype).values()]
        return recorded[-1].reason if len(recorded) >= STOP_AFTER else None

    def verdicts(self, operation: str, dtype: str) -> dict[str, Result]:
        """Return the verdicts of a case's laws that ended the process, by law."""
        return dict(self._verdicts.get((operation, dtype), {}))

    def input_of(self, operation: str, dtype: str, law: str) -> object:
        """Return the input of a blamed law once, then None."""
        return self._inputs.pop((operation, dtype, law), None)

    def _check_of(self, operation: str, dtype: str) -> tuple[str | None, object]:
        """Return the law that is being checked for a case, and its input."""
        if self._current is None or self._current[:2] != (operation, dtype):
            return None, None
        return self._current[2:]

    def _store(self, result: Result) -> None:
        self._verdicts.setdefault((result.operation, result.dtype), {})[result.law] = result


class Recorder:
    """Callable before every check that stores the check and starts its time."""

    def __init__(self, incidents: Incidents, operation: str, dtype: str, began: Callable[[], None]) -> None:
        self._incidents, self._case, self._began = incidents, (operation, dtype), began

    def __call__(self, law: str, given: Any) -> None:
        """Store the check, and start its time."""
        self._incidents.begin(*self._case, law, given)
        self._began()

    @contextmanager
    def during(self, law: str, given: Any) -> Iterator[None]:
        """Store a step as the current check, and start its time."""
        self(law, given)
        yield
