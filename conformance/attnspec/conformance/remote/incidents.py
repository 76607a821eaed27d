"""Crashes and hangs of a backend's process, and the laws that they fail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason

INPUT_CHARACTERS = 2000
"""Most characters of an input in a message."""

AT_INPUT = " at the input "
"""Separator between crash and input in the message of an incident."""

STOP_AFTER = 3
"""Crashes and hangs of a case after which its remaining laws fail unchecked."""


def input_text(input_: Any) -> str:
    """Describe an input on one line: sizes, options, masks, unusual kinds of numbers, seed."""
    if not isinstance(input_, Example):
        return str(input_)
    numbers = {name: kind for name, kind in input_.kinds.items() if kind != "normal"}
    chosen = {**input_.sizes, **input_.options, **input_.masks, **numbers}
    parts = [f"{name} = {value}" for name, value in chosen.items()]
    parts += [f"batch {input_.batch}"] if input_.batch else []
    parts += [f"without {', '.join(sorted(input_.absent))}"] if input_.absent else []
    return ", ".join([*parts, f"seed {input_.seed}"])


class Incidents:
    """Crashes and hangs by case, in the judge's memory, out of the backend's reach."""

    def __init__(self) -> None:
        self._current: tuple[str, str, str, object] | None = None
        self._retried: set[tuple[str, str, str]] = set()
        self._verdicts: dict[tuple[str, str], dict[str, Result]] = {}
        self._inputs: dict[tuple[str, str, str], tuple[object, float | None]] = {}

    def begin(self, operation: str, dtype: str, law: str, input_: object) -> None:
        """Store the check that begins: it is blamed if the process ends."""
        self._current = operation, dtype, law, input_

    def retry_after_hang(self, operation: str, dtype: str) -> bool:
        """Return true, and forget the check, at a law's first hang: the case is judged again."""
        law, _ = self._check_of(operation, dtype)
        if law is None or (operation, dtype, law) in self._retried:
            return False
        self._retried.add((operation, dtype, law))
        self._current = None
        return True

    def record(
        self, operation: str, dtype: str, *, hung_after: float | None, left: Sequence[str] = ()
    ) -> Result | None:
        """Record the law at which the process ended or hung, and return its verdict.

        ``hung_after``: the time limit that it exceeded. ``left`` names processes that it left running. None if no law
        can be blamed: the process ended before the first check, or again at a recorded law.
        """
        law, input_ = self._check_of(operation, dtype)
        if law is None or law in self.verdicts(operation, dtype):
            return None
        hung = hung_after is not None
        what = f"did not answer within {hung_after:g} s" if hung else "ended the process"
        message = f"the backend {what}{AT_INPUT}{input_text(input_)[:INPUT_CHARACTERS]}"
        message += f"; left behind, and ended: {', '.join(left)}" if left else ""
        reason = Reason.HUNG if hung else Reason.CRASHED
        result = Result(operation, law, dtype, Status.FAILED, reason, message)
        self._store(result)
        self._inputs[operation, dtype, law] = input_, hung_after
        self._current = None
        return result

    def add_details(self, operation: str, dtype: str, law: str, fields: Mapping[str, Any]) -> None:
        """Add a message and a counterexample, or a note, to a recorded verdict."""
        self._store(replace(self.verdicts(operation, dtype)[law], **fields))

    def stop_reason(self, operation: str, dtype: str) -> str | None:
        """Return why a case's remaining laws are skipped; None if they are checked."""
        recorded = [*self.verdicts(operation, dtype).values()]
        return recorded[-1].reason if len(recorded) >= STOP_AFTER else None

    def verdicts(self, operation: str, dtype: str) -> dict[str, Result]:
        """Return the verdicts on those laws of a case that ended the process."""
        return dict(self._verdicts.get((operation, dtype), {}))

    def pop_input(self, operation: str, dtype: str, law: str) -> tuple[object, float | None]:
        """Return and forget the input of a blamed law, and the exceeded time limit."""
        return self._inputs.pop((operation, dtype, law), (None, None))

    def _check_of(self, operation: str, dtype: str) -> tuple[str | None, object]:
        """Return the law that is being checked for a case, and its input."""
        if self._current is None or self._current[:2] != (operation, dtype):
            return None, None
        return self._current[2:]

    def _store(self, result: Result) -> None:
        self._verdicts.setdefault((result.operation, result.dtype), {})[result.law] = result


class Recorder:
    """Callback before every check: it stores the check and starts its clock."""

    def __init__(self, incidents: Incidents, operation: str, dtype: str, began: Callable[[], None]) -> None:
        self._incidents, self._case, self._began = incidents, (operation, dtype), began

    def __call__(self, law: str, input_: Any) -> None:
        """Store the check and start its clock."""
        self._incidents.begin(*self._case, law, input_)
        self._began()

    @contextmanager
    def during(self, law: str, input_: Any) -> Iterator[None]:
        """Store a step as the current check, and start its clock."""
        self(law, input_)
        yield
