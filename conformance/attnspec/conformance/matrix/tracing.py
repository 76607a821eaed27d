"""Search for the call that shows a violation: replay the law and record its calls.

``python -m attnspec.conformance.matrix.tracing QUESTION ANSWER`` reads a violation from the file QUESTION. It writes a
program that shows it, or the reason why there is none, to the file ANSWER.

The question's ``snippet`` is the report's script for a violation, a crash included. A crash may also lack one: then
``last`` names a file to store each call in before it is made, ``called`` the file with the call that ended such a
replay.
"""

import json
import pickle
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.corners import corners
from attnspec.conformance.judging.attempt import first_violated, stable_seed
from attnspec.conformance.judging.foreign_calls import Raised, call_safely
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.snippet import readable
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.judging.violation import Reason, Violation
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.matrix.messages import without_places
from attnspec.conformance.matrix.program import Call, program
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.spec.contract.law import LAWS
from attnspec.spec.contract.operation import OPERATIONS
from attnspec.spec.contract.tree import flatten, map_tree

SEVERAL_CALLS = "the law compares numbers that it computes from the results of several calls"
NOT_THE_LIBRARY = "the law concerns declarations or checks of the row's adapter, which is part of attnspec"


class SnippetCall(NamedTuple):
    """The call that a report's snippet makes."""

    origin: str
    arguments: dict[str, Any]
    seed: int


class CallRecorder:
    """A backend whose calls are recorded.

    Each call is first written to the file ``last``, so that it is known if it ends the process.
    """

    def __init__(self, backend: Any, last: Path | None = None) -> None:
        self._backend, self._last = backend, last
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)
        return self._recorded(name, attribute) if name in OPERATIONS else attribute

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        names = OPERATIONS[name].call.names

        def call(*positional: Any, **keywords: Any) -> Any:
            arguments = {**dict(zip(names, positional, strict=False)), **keywords}
            return self._record(arguments, lambda: function(*positional, **keywords), None)

        return call

    def vjp(self, operation: str, arguments: Mapping[str, Any], cotangent: Any) -> Any:
        """Compute the gradients, and record the call."""
        return self._record(arguments, lambda: self._backend.vjp(operation, arguments, cotangent), cotangent)

    def pullback(
        self, operation: str, arguments: Mapping[str, Any], argument_paths: Collection[str]
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Compute the result, and return it with a backward pass; both are recorded as calls."""
        passes: list[Callable[[Any], Any]] = []

        def forward() -> Any:
            result, backward = self._backend.pullback(operation, arguments, argument_paths)
            passes.append(backward)
            return result

        result = self._record(arguments, forward, None)
        return result, lambda cotangent: self._record(arguments, lambda: passes[0](cotangent), cotangent)

    def _record(self, arguments: Mapping[str, Any], call: Callable[[], Any], cotangent: Any) -> Any:
        copies = {name: map_tree(x, lambda _, leaf: self._array(leaf), name) for name, x in arguments.items()}
        cotangents = None if cotangent is None else tuple(map(self._array, flatten(cotangent).values()))
        if self._last is not None:
            self._last.write_bytes(pickle.dumps(Call(copies, arrays={}, cotangents=cotangents)))
        outcome = call_safely(call)
        if isinstance(outcome, Raised):
            self.calls.append(Call(copies, arrays={}, cotangents=cotangents, error=outcome.message))
            raise outcome.error
        arrays = outcome if isinstance(outcome, dict) else flatten(outcome)
        self.calls.append(Call(copies, {path: self._array(x) for path, x in arrays.items()}, cotangents))
        return outcome

    def _array(self, x: Any) -> Any:
        if x is None or isinstance(x, bool | int | float | str):
            return x
        array = call_safely(lambda: np.asarray(self._backend.to_numpy(x)))
        return x if isinstance(array, Raised) else array


def call_of_snippet(snippet: str) -> SnippetCall:
    """Return the call that a snippet would make, without making it."""
    calls: list[SnippetCall] = []

    def replay(origin: str, law: str, name: str, dtype: str, arguments: dict[str, Any], **how: Any) -> int:
        calls.append(SnippetCall(origin, arguments, how["seed"]))
        return 1

    def call(origin: str, name: str, **arguments: Any) -> Any:
        arguments.pop("device", None)
        calls.append(SnippetCall(origin, arguments, 0))
        raise SystemExit(1)

    with patch.multiple("attnspec.conformance", create=True, replay=replay, call=call, load=str):
        call_safely(lambda: exec(snippet, {}))
    return calls[0]


def answer_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program that shows a violation, or the reason why there is none."""
    name, dtype, law, reason = question["operation"], question["dtype"], LAWS[question["law"]], question["reason"]
    backend = load(question["origin"])
    contract = contract_of(backend, question["origin"], question["device"])
    heading = f"{question['title']}, {contract.name}, {name} ({dtype})\n{law.id}: {law.statement}"
    # source of a program without attnspec that defines ``call``
    plain = backend.plain(name, device=question["device"])
    if "called" in question:
        ending_call: Call = pickle.loads(Path(question["called"]).read_bytes())
        shown = {path: readable(x) for path, x in Arguments(OPERATIONS[name], dict(ending_call.arguments)).items()}
        return {"program": program(heading, plain, ending_call), "arguments": shown}
    recorder = CallRecorder(backend, Path(question["last"]) if "last" in question else None)
    subject = Subject(recorder, contract, OPERATIONS[name], dtype, question["device"])
    if "last" in question:
        return _repeat_first_inputs(subject, law.id, question)
    replay = call_of_snippet(question["snippet"])
    if reason in (Reason.CRASHED, Reason.HUNG):
        return {"program": program(heading, plain, Call(Arguments(OPERATIONS[name], replay.arguments).passed, {}))}
    violated = first_violated(subject, CHECKS[law.id], Arguments(OPERATIONS[name], replay.arguments), replay.seed)
    if violated is None:
        return {"why": "the law holds when it is replayed"}
    _, violation = violated
    if reason == Reason.RAISED:
        raised = next((c for c in reversed(recorder.calls) if c.error), None)
        return {"why": NOT_THE_LIBRARY} if raised is None else {"program": program(heading, plain, raised)}
    if reason == Reason.DECLARED:
        return _against_formula(heading, plain, recorder.calls, violation, subject)
    if reason != Reason.VALUE or violation.expected is None:
        return {"why": NOT_THE_LIBRARY}
    return _compared(heading, plain, recorder.calls, violation)


def _repeat_first_inputs(subject: Subject, law: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Check a law on the run's first inputs, one of which should end this process."""
    seed = stable_seed(question["seed"], subject.operation.name, subject.dtype)
    effort = PROFILES[question["profile"]].at(subject.dtype)
    for example in corners(subject.operation, subject.limits, seed=seed, most=effort.corners, work=effort.work):
        arguments = subject.arguments(example)
        first_violated(subject, CHECKS[law], arguments, example.seed)
    return {"why": "the process does not end when the law is checked again"}


def _compared(heading: str, plain: str, calls: list[Call], violation: Violation) -> dict[str, str]:
    """Return the program of the last call that returned the violation's numbers."""
    got = np.asarray(violation.got)
    for call in reversed(calls):
        for path, array in call.arrays.items():
            if isinstance(array, np.ndarray) and array.shape == got.shape and _equal(array, got):
                budget = 0.0 if violation.budget is None else violation.budget
                title = f"{heading}\n{without_places(violation.message)}"
                return {"program": program(title, plain, call, path=path, expected=violation.expected, budget=budget)}
    return {"why": SEVERAL_CALLS}


def _against_formula(
    heading: str, plain: str, calls: list[Call], violation: Violation, subject: Subject
) -> dict[str, str]:
    """Return the program of the last call whose numbers contradict a declared choice.

    They are compared with the formula under the declared choices, except where these leave the result open.
    """
    arguments = violation.arguments
    if arguments is None:
        return {"why": NOT_THE_LIBRARY}
    oracles = call_safely(lambda: subject.oracles(arguments))
    if isinstance(oracles, Raised):
        return {"why": NOT_THE_LIBRARY}
    for call in reversed(calls):
        arrays = Arguments(subject.operation, dict(call.arguments)).arrays
        if call.cotangents is not None or arrays.keys() != arguments.arrays.keys():
            continue
        if not all(x.shape == arrays[path].shape and _equal(x, arrays[path]) for path, x in arguments.arrays.items()):
            continue
        for (path, array), oracle in zip(call.arrays.items(), oracles.values(), strict=False):
            got = np.asarray(array).astype(np.float64)
            known = np.isfinite(oracle.value) & np.isfinite(oracle.budget)
            expected = np.where(known, oracle.value.astype(np.float64), got)
            budget = np.where(known, oracle.budget, 0.0)
            with np.errstate(all="ignore"):
                wrong = known & ~(np.abs(got - expected) <= budget)
            if wrong.any():
                title = f"{heading}\n{without_places(violation.message)}"
                return {"program": program(title, plain, call, path=path, expected=expected, budget=budget)}
    return {"why": NOT_THE_LIBRARY}


def _equal(a: Any, b: Any) -> bool:
    first, second = (np.asarray(x).astype(np.float64) for x in (a, b))
    return np.array_equal(first, second, equal_nan=True)


def main() -> None:
    """Answer the question in a file."""
    question, answer = map(Path, sys.argv[1:3])
    program_or_reason = answer_of(json.loads(question.read_text(encoding="utf-8")))
    answer.write_text(json.dumps(program_or_reason), encoding="utf-8")


if __name__ == "__main__":
    main()
