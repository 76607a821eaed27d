"""After a crash or a hang: the smallest input that ends the process, found in a process of its own.

``python -m attnspec.conformance.running.post_mortem QUESTION ANSWER`` imports the backend and calls nothing of it.
Every candidate is tried in a copy of that process.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.isolation import POSSIBLE, end_of
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.reduction import Search, shrunk, simplified
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.snippet import counterexample
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import data_dtype
from attnspec.conformance.remote.processes import MARK, end_all, mark
from attnspec.conformance.running.loading import contract_of, load
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.watchdog import Incidents, example_path
from attnspec.spec.contract.operation import OPERATIONS

SECONDS = 15.0
"""After which a reduction ends."""

TRIAL_SECONDS = 2.0
"""After which a smaller input counts as one that does not crash."""


def examined(incidents: Incidents, backend: str, case: Case, settings: Settings) -> dict[str, Result]:
    """The verdicts on the laws of a case at which a worker died, with counterexamples as far as there are any."""
    for law, result in incidents.verdicts(case.operation, case.dtype).items():
        example = example_path(incidents.folder, case.id, law)
        if result.counterexample is None and example.exists():
            found = _examine(incidents, backend, case, law, result, settings)
            if found:
                incidents.examined(case.operation, case.dtype, law, found)
            example.unlink()
    return incidents.verdicts(case.operation, case.dtype)


def _examine(
    incidents: Incidents, backend: str, case: Case, law: str, result: Result, settings: Settings
) -> dict[str, Any]:
    """The message and the counterexample of one verdict; nothing if the process that looks for them fails."""
    question, answer = (incidents.folder / f"{case.id}.{law}.{name}.json" for name in ("question", "answer"))
    asked = {
        "backend": backend,
        "operation": case.operation,
        "dtype": case.dtype,
        "law": law,
        "device": settings.device,
        "hang_after": settings.hang_after,
        "reason": result.reason,
        "example": str(example_path(incidents.folder, case.id, law)),
    }
    question.write_text(json.dumps(asked), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.running.post_mortem", str(question), str(answer)]
    limit = IMPORT_SECONDS + SECONDS + settings.hang_after
    word = mark()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, MARK: word},
    )
    with suppress(subprocess.TimeoutExpired):
        process.wait(limit)
    end_all(process.pid, word)
    process.wait()
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else {}
    return found


class IsolatedSearch(Search):
    """A search for smaller inputs that crash: each is tried in a copy of this process."""

    def failure(self, candidate: Arguments) -> Violation | None:
        """The crash, if there is one."""
        end = end_of(lambda: Search.failure(self, candidate), TRIAL_SECONDS)
        if end is None or end.reason is not Reason.CRASHED:
            return None
        return Violation(end.words, reason=end.reason, arguments=candidate)


def found_by(asked: dict[str, Any]) -> dict[str, Any]:
    """The message and the counterexample; nothing if the input is not known, or does not crash by itself."""
    example = pickle.loads(Path(asked["example"]).read_bytes())
    if not isinstance(example, Example):
        return {}
    backend, check = load(asked["backend"]), CHECKS[asked["law"]]
    contract = contract_of(backend, asked["backend"])
    subject = Subject(backend, contract, OPERATIONS[asked["operation"]], asked["dtype"], asked["device"])
    arguments = example.arguments(subject.operation, data_dtype(subject))
    words = f"the backend did not answer within {asked['hang_after']:g} s"
    violation: Violation | None = Violation(words, reason=Reason.HUNG, arguments=arguments)
    if asked["reason"] == Reason.CRASHED:
        if not POSSIBLE:
            return {}
        first = Violation("", reason=Reason.CRASHED, arguments=arguments)
        search = IsolatedSearch(subject, check, arguments, first, example.seed, lambda law, what: None)
        search.deadline = time.monotonic() + SECONDS
        violation = search.failure(arguments)
        if violation is not None:
            search.violation = violation
            arguments, violation = simplified(search) if check.once else shrunk(search)
    if violation is None:
        return {}
    shown = counterexample(subject, check, arguments, violation, example.seed, hang_after=asked["hang_after"])
    return {"message": violation.message, "counterexample": shown}


def main() -> None:
    """Answer the question that is named on the command line."""
    question, answer = map(Path, sys.argv[1:3])
    asked = json.loads(question.read_text(encoding="utf-8"))
    nothing: dict[str, Any] = {}
    found, note = contained("looking for the smallest input that ends the process", lambda: found_by(asked), nothing)
    found |= {"note": note} if note else {}
    answer.write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main()
