"""Calls made by violated laws, with sizes, layouts and numbers that no example has."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate, computation_by, copy_of, roundings
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.attendance import live_rows
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.attempt import attempt_once
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.laws.common import wide
from attnspec.conformance.mutants.correct import Library
from attnspec.spec.contract.semantics import QUESTIONS
from attnspec.spec.contract.tree import map_tree

Watch = Callable[[str, Any], AbstractContextManager[None]]
"""Context of the backend's calls, entered with the law and input blamed for a crash."""

MAX_LAWS = 2
"""Largest number of violated laws whose calls are examined."""

ABOUT_NONFINITE = {"masked_nonfinite", "attendable_nan", "nan_queries", "minus_infinity"}
"""Questions about inputs that are NaN or infinite."""

MAX_CALLS = 16
"""Largest number of a law's last calls that are examined."""


class CallRecorder(Subject):
    """A subject that records its calls as probes, still without expected numbers."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.effort, self.default_dtype = subject.effort, subject.default_dtype
        self.is_leading_dtype = subject.is_leading_dtype
        self.calls: list[Probe] = []

    def result_or_raised(self, inputs: Mapping[str, Any]) -> Any:
        """Return the outcome of a call, and record it with the arguments' memory layout."""
        arguments, views = self._recorded(inputs)
        outcome = super().result_or_raised(inputs)
        if isinstance(outcome, dict) and all(map(_is_numbers, outcome.values())):
            results = {path: np.array(x) for path, x in outcome.items()}
            self.calls.append(Probe(arguments, results, expected={}, allowed={}, views=views))
        return outcome

    def _recorded(self, inputs: Mapping[str, Any]) -> tuple[Arguments, Mapping[str, Any] | None]:
        """Return copies of a call's arguments, and views of them; no views of quantised operands."""
        if self.passed is not None and self.passed.quantized:
            return self.passed, None
        views = {name: map_tree(x, lambda _, y: self._as_numpy(y)) for name, x in inputs.items()}
        copies = {name: map_tree(x, lambda _, y: copy_of(y)) for name, x in views.items()}
        return Arguments(self.operation, copies), views

    def vjp(self, arguments: Arguments, cotangents: Results, inputs: Mapping[str, Any] | None = None) -> Results:
        """Return the gradients, and record them."""
        gradients = super().vjp(arguments, cotangents, inputs)
        recorded_gradients = {path: np.array(x) for path, x in gradients.items() if path in dict(arguments.arrays)}
        probe = Probe(arguments, recorded_gradients, expected={}, allowed={}, cotangents=dict(cotangents))
        self.calls.append(probe)
        return gradients

    def _as_numpy(self, x: Any) -> Any:
        return x if x is None or isinstance(x, bool | int | float | str) else self.numbers(x)


def calls_of_violated_laws(
    subject: Subject, laws: Iterable[str], examples: Sequence[Example], watch: Watch, deadline: float
) -> list[Probe]:
    """Return the calls of violated laws, with the correct formulas' numbers.

    These formulas follow the choices in ``subject.choices``, such as ``causal_alignment``. Calls on which any other
    declared deviation may show are left out.
    """
    probes: list[Probe] = []
    for law in [*laws][:MAX_LAWS]:
        law_checks = (check for check in CHECKS[law] if check.concerns(subject.operation))
        calls = next(filter(None, (_calls(subject, check, examples, watch, deadline) for check in law_checks)), [])
        judged = (_judged_probe(subject, call, deadline) for call in calls[-MAX_CALLS:])
        probes += [probe for probe in judged if probe is not None]
    return probes


def _calls(subject: Subject, check: Check, examples: Sequence[Example], watch: Watch, deadline: float) -> list[Probe]:
    """Return the calls that a check makes on the first example that violates its law."""
    for example in examples[:1] if check.once else examples:
        if time.process_time() > deadline:
            break
        recorder = CallRecorder(subject)
        arguments = subject.arguments(example)
        with watch(check.law.id, example):
            violation, *_ = attempt_once(recorder, check, arguments, example.seed)
        if violation is not None:
            return recorder.calls
    return []


def _judged_probe(subject: Subject, call: Probe, deadline: float) -> Probe | None:
    """Return a call with the correct formulas' numbers, and with budgets for their roundings."""
    if time.process_time() > deadline or _shows_deviation(subject, call.arguments):
        return None
    correct = Candidate(name="", sentence="", compute=computation_by(subject, lambda: Library("correct")))
    expected, allowed = correct.numbers(call), roundings(correct, call, subject)
    if expected is None or allowed is None or _shapes(expected) != _shapes(call.got):
        return None
    # NaN and infinities are results of the correct formulas here, so that the backend must have them, too.
    budgets = {path: np.where(np.isfinite(x), allowed[path], 0.0) for path, x in expected.items()}
    return Probe(call.arguments, call.got, expected, budgets, call.cotangents, call.views)


def _shows_deviation(subject: Subject, arguments: Arguments) -> bool:
    """Return True if a deviation that no formula follows may change a call's numbers."""
    semantics, operation = subject.semantics, arguments.operation
    deviating = {q for q in QUESTIONS if getattr(semantics, q) != QUESTIONS[q].normative} - {*subject.choices}
    if deviating & ABOUT_NONFINITE and not all(np.isfinite(wide(x)).all() for _, x in arguments.floats):
        return True
    if "no_keys" in deviating and not arguments.keys_count:
        return True
    live = live_rows(arguments, semantics=semantics) if operation.masks else np.ones(1, bool)
    return "fully_masked" in deviating and not live.all()


def _is_numbers(x: Any) -> bool:
    return isinstance(x, np.ndarray) and (x.dtype.kind in "biuf" or is_float(x))


def _shapes(results: Results) -> dict[str, tuple[int, ...]]:
    return {path: x.shape for path, x in results.items()}
