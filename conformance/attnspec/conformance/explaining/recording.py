"""Calls that a violated law made itself, with sizes, memory layouts and numbers that no example has."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from attnspec.conformance.explaining.candidates import Candidate, computed_by, copied, roundings
from attnspec.conformance.explaining.probes import Probe
from attnspec.conformance.inputs.arguments import Arguments
from attnspec.conformance.inputs.dtypes import is_float
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.attempt import attempt_once
from attnspec.conformance.judging.checks import Check
from attnspec.conformance.judging.subject import Results, Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.mutants.correct import Library
from attnspec.spec.contract.semantics import QUESTIONS, Semantics
from attnspec.spec.contract.tree import mapped

Watch = Callable[[str, Any], AbstractContextManager[None]]
"""Context around calls of the backend, entered with law and input to attribute a crash."""

LAWS = 2
"""Number of violated laws whose calls are examined."""

CALLS = 16
"""Number of a law's last calls that are examined."""


class Recorder(Subject):
    """A subject that records its calls; each is a probe that has yet to be judged."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject.backend, subject.contract, subject.operation, subject.dtype, subject.device)
        self.effort, self.leading, self.default_dtype = subject.effort, subject.leading, subject.default_dtype
        self.calls: list[Probe] = []

    def outcome(self, inputs: Mapping[str, Any]) -> Any:
        """Return the outcome, and record it with the arrays as they lie in memory."""
        views = {name: mapped(x, lambda _, y: self._seen(y)) for name, x in inputs.items()}
        copies = {name: mapped(x, lambda _, y: copied(y)) for name, x in views.items()}
        found = super().outcome(inputs)
        if isinstance(found, dict) and all(map(_is_numbers, found.values())):
            got = {path: np.array(x) for path, x in found.items()}
            self.calls.append(Probe(Arguments(self.operation, copies), got, {}, {}, views=views))
        return found

    def vjp(self, arguments: Arguments, cotangents: Results, inputs: Mapping[str, Any] | None = None) -> Results:
        """Return the gradients, and record them."""
        found = super().vjp(arguments, cotangents, inputs)
        got = {path: np.array(x) for path, x in found.items() if path in dict(arguments.arrays)}
        self.calls.append(Probe(arguments, got, {}, {}, dict(cotangents)))
        return found

    def _seen(self, x: Any) -> Any:
        """Return a backend's array as a NumPy array, sharing its memory where possible."""
        return x if x is None or isinstance(x, bool | int | float | str) else self.numbers(x)


def recorded(
    subject: Subject, laws: Iterable[str], examples: Sequence[Example], watch: Watch, until: float
) -> list[Probe]:
    """Return the calls of violated laws, with the correct formulas' numbers.

    Empty if the backend declares choices that these formulas do not make.
    """
    normative: dict[str, Any] = {
        question: QUESTIONS[question].normative for question in (*subject.choices, "rejection")
    }
    if replace(subject.semantics, **normative) != Semantics():
        return []
    found: list[Probe] = []
    for law in [*laws][:LAWS]:
        each = (
            _calls(subject, check, examples, watch, until) for check in CHECKS[law] if check.concerns(subject.operation)
        )
        calls = next(filter(None, each), [])
        found += [probe for probe in (_judged(subject, call, until) for call in calls[-CALLS:]) if probe is not None]
    return found


def _calls(subject: Subject, check: Check, examples: Sequence[Example], watch: Watch, until: float) -> list[Probe]:
    """Return the calls of a law on the first example that violates it."""
    for example in examples[:1] if check.once else examples:
        if time.process_time() > until:
            break
        recorder = Recorder(subject)
        arguments = subject.arguments(example)
        with watch(check.law.id, example):
            violation, *_ = attempt_once(recorder, check, arguments, example.seed)
        if violation is not None:
            return recorder.calls
    return []


def _judged(subject: Subject, call: Probe, until: float) -> Probe | None:
    """Return a call with the correct formulas' numbers, and their change by roundings as the budget."""
    if time.process_time() > until:
        return None
    right = Candidate("", "", computed_by(subject, lambda: Library("correct")))
    expected, allowed = right.numbers(call), roundings(right, call, subject)
    if expected is None or allowed is None or _shapes(expected) != _shapes(call.got):
        return None
    # NaN and infinities here are the formula's results: nothing is left open.
    budgets = {path: np.where(np.isfinite(x), allowed[path], 0.0) for path, x in expected.items()}
    return Probe(call.arguments, call.got, expected, budgets, call.cotangents, call.views)


def _is_numbers(x: Any) -> bool:
    return isinstance(x, np.ndarray) and (x.dtype.kind in "biuf" or is_float(x))


def _shapes(found: Results) -> dict[str, tuple[int, ...]]:
    return {path: x.shape for path, x in found.items()}
