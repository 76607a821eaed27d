"""Smallest input that crashes the backend, searched in a separate process after a crash or hang.

``python -m attnspec.conformance.running.post_mortem`` reads a request and writes the answer. It imports the backend,
and tries every candidate in a forked copy of itself. Since the backend runs there, the answer may only say how the
process ended and at what input; it cannot change the verdict.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.isolation import POSSIBLE, end_of
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.reduction import Search, shrunk, simplified
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.snippet import counterexample
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.incidents import Incidents
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.sandbox import files_of, launch, resolved
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

SECONDS = 15.0
"""Seconds after which a reduction ends."""

MAX_ANSWER = 1 << 24
"""Largest answer, in bytes."""

KEYS = {"arguments", "expected", "got", "budget", "index", "snippet"}
"""Keys of a counterexample."""

TRIAL_SECONDS = 2.0
"""Seconds after which a smaller input counts as not crashing."""


def examined(incidents: Incidents, backend: str, case: Case, settings: Settings) -> dict[str, Result]:
    """Return verdicts on the laws that ended a process, with counterexamples where the search succeeds."""
    for law, result in incidents.verdicts(case.operation, case.dtype).items():
        given = incidents.input_of(case.operation, case.dtype, law)
        if result.counterexample is None and isinstance(given, Example):
            found = _examine(backend, case, law, given, result, settings)
            if found is not None:
                incidents.examined(case.operation, case.dtype, law, found)
    return incidents.verdicts(case.operation, case.dtype)


def _examine(
    backend: str, case: Case, law: str, example: Example, result: Result, settings: Settings
) -> dict[str, Any] | None:
    """Return message and counterexample of one verdict, or a note; None if the searching process fails."""
    asked = {
        "backend": backend,
        "operation": case.operation,
        "dtype": case.dtype,
        "law": law,
        "device": settings.device,
        "hang_after": settings.hang_after,
        "reason": result.reason,
        "example": example,
    }
    limit = IMPORT_SECONDS + SECONDS + settings.hang_after
    process = launch(
        "attnspec.conformance.running.post_mortem",
        sandbox=resolved(settings.sandbox),
        readable=files_of(backend),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    answer = b""
    with suppress(subprocess.TimeoutExpired, BrokenPipeError):
        answer, _ = process.communicate(pickle.dumps(asked), limit)
    process.end()
    return checked(answer)


def checked(answer: bytes) -> dict[str, Any] | None:
    """Return a backend process's answer, message and counterexample or a note; None if malformed."""
    try:
        found = json.loads(answer[:MAX_ANSWER])
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    said = {name: printable(x) for name, x in found.items() if name in ("message", "note") and isinstance(x, str)}
    if found.keys() == {"note"} == said.keys():
        return said
    shown = found.get("counterexample")
    if found.keys() != {"message", "counterexample"} or "message" not in said or not isinstance(shown, dict):
        return None
    return {**said, "counterexample": shown} if shown.keys() == KEYS and isinstance(shown["snippet"], str) else None


class IsolatedSearch(Search):
    """Search for smaller inputs that crash, each tried in a forked copy of this process."""

    def failure(self, candidate: Arguments) -> Violation | None:
        """Return the crash of a candidate, None if it does not crash."""
        end = end_of(lambda: Search.failure(self, candidate), TRIAL_SECONDS)
        if end is None or end.reason is not Reason.CRASHED:
            return None
        return Violation(end.words, reason=end.reason, arguments=candidate)


def found_by(asked: dict[str, Any]) -> dict[str, Any]:
    """Return message and counterexample; an empty dict if the input does not crash by itself."""
    example: Example = asked["example"]
    backend = load(asked["backend"])
    contract = contract_of(backend, asked["backend"])
    subject = Subject(backend, contract, OPERATIONS[asked["operation"]], asked["dtype"], asked["device"])
    arguments = subject.arguments(example)
    words = f"the backend did not answer within {asked['hang_after']:g} s"
    violation: Violation | None = Violation(words, reason=Reason.HUNG, arguments=arguments)
    law_checks = [check for check in CHECKS[asked["law"]] if check.concerns(subject.operation)]
    check = law_checks[0]
    if asked["reason"] == Reason.CRASHED:
        if not POSSIBLE:
            return {}
        first = Violation("", reason=Reason.CRASHED, arguments=arguments)
        deadline = time.monotonic() + SECONDS
        for check in law_checks:
            search = IsolatedSearch(subject, check, arguments, first, example.seed, lambda law, what: None)
            search.deadline = deadline
            violation = search.failure(arguments)
            if violation is not None:
                search.violation = violation
                arguments, violation = simplified(search) if check.once else shrunk(search)
                break
    if violation is None:
        return {}
    shown = counterexample(subject, check, arguments, violation, example.seed, hang_after=asked["hang_after"])
    return {"message": violation.message, "counterexample": shown}


def main() -> None:
    """Answer the request on standard input."""
    answer = os.dup(1)
    os.dup2(2, 1)
    asked = pickle.load(sys.stdin.buffer)
    nothing: dict[str, Any] = {}
    found, note = contained("looking for the smallest input that ends the process", lambda: found_by(asked), nothing)
    with open(answer, "w", encoding="utf-8") as pipe:
        json.dump(found | ({"note": note} if note else {}), pipe)
    os._exit(0)


if __name__ == "__main__":
    main()
