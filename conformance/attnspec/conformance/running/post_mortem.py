"""Search for the smallest input that crashes a backend, after a crash or hang.

``python -m attnspec.conformance.running.post_mortem`` reads a request and writes the answer. It imports the backend,
and tries every candidate in a fork; on a device that forks cannot use, in a new process. The backend could falsify the
answer, which therefore has only a message and a counterexample, and never changes a verdict.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.isolation import abnormal_end, forks
from attnspec.conformance.judging.own_errors import contained
from attnspec.conformance.judging.reduction import Search, reduce_search, reduce_search_to_zeros
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.snippet import counterexample
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.clock import COMPILING
from attnspec.conformance.remote.incidents import Incidents
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.sandbox import files_of, launch, use_sandbox
from attnspec.conformance.running.probe import IMPORT_SECONDS, json_object
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.trial_call import end_in_new_process
from attnspec.spec.contract.operation import OPERATIONS

MAX_SECONDS, MAX_SECONDS_ANEW = 15.0, 60.0
"""Time limits of the search, in seconds: with forks, and with new processes, which import the backend."""

MAX_ANSWER = 1 << 24
"""Largest answer, in bytes."""

KEYS = {"arguments", "expected", "got", "budget", "index", "snippet"}
"""Keys of a counterexample."""

TRIAL_SECONDS = 2.0
"""Seconds after which a smaller input counts as not crashing; more where new shapes are expensive."""


def with_crashing_inputs(incidents: Incidents, backend: str, case: Case, settings: Settings) -> dict[str, Result]:
    """Return verdicts on laws that ended the process, with the counterexamples that were found."""
    for law, result in incidents.verdicts(case.operation, case.dtype).items():
        input_, hung_after = incidents.pop_input(case.operation, case.dtype, law)
        if result.counterexample is None and isinstance(input_, Example):
            seconds = settings.hang_after if hung_after is None else hung_after
            details = _crash_details(backend, case, law, input_, result, replace(settings, hang_after=seconds))
            if details is not None:
                incidents.add_details(case.operation, case.dtype, law, details)
    return incidents.verdicts(case.operation, case.dtype)


def _crash_details(
    backend: str, case: Case, law: str, example: Example, result: Result, settings: Settings
) -> dict[str, Any] | None:
    """Return message and counterexample of a verdict, or a note; None if the search itself fails."""
    request = {
        "backend": backend,
        "operation": case.operation,
        "dtype": case.dtype,
        "law": law,
        "device": settings.device,
        "hang_after": settings.hang_after,
        "reason": result.reason,
        "example": example,
    }
    limit = IMPORT_SECONDS + MAX_SECONDS_ANEW + settings.hang_after
    process = launch(
        "attnspec.conformance.running.post_mortem",
        sandbox=use_sandbox(settings.sandbox),
        readable=files_of(backend),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    answer = b""
    with suppress(subprocess.TimeoutExpired, BrokenPipeError):
        answer, _ = process.communicate(pickle.dumps(request), limit)
    process.end()
    return valid_answer(answer)


def valid_answer(answer: bytes) -> dict[str, Any] | None:
    """Parse the answer of a backend's process; return None if it is malformed."""
    content = json_object(answer[:MAX_ANSWER])
    if content is None:
        return None
    texts = {name: printable(x) for name, x in content.items() if name in ("message", "note") and isinstance(x, str)}
    if content.keys() == {"note"} == texts.keys():
        return texts
    shown = content.get("counterexample")
    if content.keys() != {"message", "counterexample"} or "message" not in texts or not isinstance(shown, dict):
        return None
    return {**texts, "counterexample": shown} if shown.keys() == KEYS and isinstance(shown["snippet"], str) else None


class IsolatedSearch(Search):
    """Search for smaller inputs that crash, each tried in another process."""

    def failure(self, candidate: Arguments) -> Violation | None:
        """Return the crash by a candidate; None if it does not crash."""
        # Every process compiles anew.
        seconds = TRIAL_SECONDS * (COMPILING if self.subject.limits.new_shapes == "expensive" else 1)
        if forks(self.subject.device):
            end = abnormal_end(lambda: Search.failure(self, candidate), seconds)
        else:
            end = end_in_new_process(self.subject, [self.check], candidate, self.seed, seconds)
        if end is None or end.reason is not Reason.CRASHED:
            return None
        return Violation(end.description, reason=end.reason, arguments=candidate)


def smallest_crash(request: dict[str, Any]) -> dict[str, Any]:
    """Return message and counterexample; an empty dict if the input alone does not crash."""
    example: Example = request["example"]
    backend = load(request["backend"])
    contract = contract_of(backend, request["backend"], request["device"])
    device = contract.limits.chosen_device(request["device"])
    subject = Subject(backend, contract, OPERATIONS[request["operation"]], request["dtype"], device)
    arguments = subject.arguments(example)
    message = f"the backend did not answer within {request['hang_after']:g} s"
    violation: Violation | None = Violation(message, reason=Reason.HUNG, arguments=arguments)
    law_checks = [check for check in CHECKS[request["law"]] if check.concerns(subject.operation)]
    # After a hang nothing is reduced, as each candidate may hang, too: any of the law's checks describes the input.
    check = law_checks[0]
    if request["reason"] == Reason.CRASHED:
        # A placeholder, of which the search compares only the reason.
        first = Violation("", reason=Reason.CRASHED, arguments=arguments)
        deadline = time.monotonic() + (MAX_SECONDS if forks(device) else MAX_SECONDS_ANEW)
        for check in law_checks:
            search = IsolatedSearch(subject, check, arguments, first, example.seed, lambda law, what: None)
            search.deadline = deadline
            violation = search.failure(arguments)
            if violation is not None:
                search.violation = violation
                arguments, violation = reduce_search_to_zeros(search) if check.once else reduce_search(search)
                break
    if violation is None:
        return {}
    shown = counterexample(subject, check, arguments, violation, example.seed, hang_after=request["hang_after"])
    return {"message": violation.message, "counterexample": shown}


def main() -> None:
    """Answer the request on standard input."""
    answer = os.dup(1)
    os.dup2(2, 1)
    request = pickle.load(sys.stdin.buffer)
    empty: dict[str, Any] = {}
    step = partial(smallest_crash, request)
    details, note = contained("searching the smallest input that ends the process", step, empty)
    with open(answer, "w", encoding="utf-8") as pipe:
        json.dump(details | ({"note": note} if note else {}), pipe)
    os._exit(0)


if __name__ == "__main__":
    main()
