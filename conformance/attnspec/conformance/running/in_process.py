"""Judging in the process that runs the backend, which a crash or hang ends."""

import faulthandler
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, Protocol

import numpy as np

from attnspec.conformance.explaining.explanations import Diagnosis, Explanation, violated_by_numbers
from attnspec.conformance.explaining.missing_declarations import (
    missing_declarations,
    unexplained,
    with_declared_choices,
)
from attnspec.conformance.explaining.refusals import refusals
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import Containment, contained, joined
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import INTERRUPTED, STOPPED, Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.remote.clock import COMPILING
from attnspec.conformance.running.expectations import expectations, unexpected
from attnspec.conformance.running.settings import Settings
from attnspec.spec.contract.operation import OPERATIONS

TOLERANCE = 0.1
"""Tolerance of a check's time limit: restarting the timer for every check would be slow."""


class Marker(Protocol):
    """Callback before every check, with its law and input."""

    def __call__(self, law: str, input_: Any) -> None:
        """Mark the beginning of a check."""

    def during(self, law: str, input_: Any) -> AbstractContextManager[None]:
        """Mark a check that lasts as long as the context."""


class HangTimer:
    """Timer that prints a traceback and ends this process if a check hangs.

    It allows ``seconds``, and up to a tenth more, since not every check restarts it; 0 disables it.
    """

    def __init__(self, seconds: float) -> None:
        # −∞ means that the timer does not run.
        self.seconds, self._started = seconds, -inf

    def __call__(self, law: str, input_: Any) -> None:
        """Restart the timer, unless it was restarted just before."""
        now = time.monotonic()
        if self.seconds and now - self._started >= TOLERANCE * self.seconds:
            self._started = now
            faulthandler.dump_traceback_later((1 + TOLERANCE) * self.seconds, exit=True, file=2)

    @contextmanager
    def during(self, law: str, input_: Any) -> Iterator[None]:
        """Time the body of the context, and nothing after it."""
        self(law, input_)
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop the timer if this object started it."""
        if self._started > -inf:
            faulthandler.cancel_dump_traceback_later()
            self._started = -inf


@dataclass(frozen=True)
class InProcess:
    """A case whose backend runs in this process; if that ends, there is no verdict."""

    backend: Any
    contract: Contract
    case: Case
    settings: Settings

    @property
    def device(self) -> str:
        """The device to run on."""
        return self.contract.limits.chosen_device(self.settings.device)

    def judged(self, extent: Extent) -> list[Result]:
        """Return the verdicts of the case."""
        return self.results({}, extent=extent)

    def results(self, recorded: Mapping[str, Result], **options: Any) -> list[Result]:
        """Return the verdicts of the case; laws with ``recorded`` verdicts are not judged again."""
        with self.marking() as mark:

            def judging(case: Case, **more: Any) -> list[Result]:
                return self._judge(mark, self.contract, case, contain=self.containment(), **options, **more)

            if self.settings.fail_fast:
                return judged_until_violation(judging, self.case, self.settings, recorded)
            return judging(self.case, skip=recorded)

    def _judge(self, mark: Marker, contract: Contract, case: Case, **options: Any) -> list[Result]:
        settings, profile = self.settings, PROFILES[self.settings.profile]
        return judge(
            self.backend, contract, case, profile, seed=settings.seed, device=self.device, mark=mark, **options
        )

    def containment(self) -> Containment:
        """Return the wrapper of steps whose errors must not cost a verdict.

        It takes a stage's name, a step and a default, and returns the step's result, or the default with a note.
        """
        return contained

    @contextmanager
    def marking(self) -> Iterator[Marker]:
        """Yield a timer for the checks; it runs only in workers of ``attnspec check``."""
        is_worker = self.settings.shared_folder is not None
        # A check may call with several new shapes, and this process cannot see which call compiles.
        times = COMPILING if self.contract.limits.new_shapes == "expensive" else 1
        timer = HangTimer(times * self.settings.hang_after if is_worker else 0)
        try:
            yield timer
        finally:
            timer.stop()

    def explanation(self, failed: Sequence[Result], *, diagnosable: bool = True) -> Explanation:
        """Explain violations: by declarations that would allow them, the others by a known defect.

        ``fail_fast`` and ``only`` skip the search for declarations; ``diagnosable=False`` skips that for a defect.
        """
        if self.contract.health.breaks or self.contract.health.broken:
            return Explanation({}, None)  # every further call may break the process again
        declared: Mapping[str, Any] = {}
        defect, declaration_note, diagnosis_note = None, "", ""
        brief, contain = self.settings.fail_fast or self.settings.only is not None, self.containment()
        with self.marking() as mark:
            if not brief:
                step = partial(self._undeclared, failed, mark)
                declared, declaration_note = contain(f"searching declarations for {self.case.id}", step, declared)
            if diagnosable:
                diagnose = partial(self._diagnosis, failed, declared, mark)
                defect, diagnosis_note = contain(f"diagnosing {self.case.id}", diagnose, None)
        return Explanation(declared, defect, joined(declaration_note, diagnosis_note))

    def shown_as_observed(self, failed: Sequence[Result], explanation: Explanation) -> Mapping[str, Result]:
        """Return violations, by law, with inputs that violate it even under the observed choices.

        A law may fail for an undeclared choice on one input and for a mistake on another; the latter is shown. Rows
        without keys are left out if no choice for them was observed.
        """
        if not violated_by_numbers(failed) or self.contract.health.breaks or self.contract.health.broken:
            return {}  # further calls might end the process
        shown: Mapping[str, Result] = {}
        with self.marking() as mark:
            step = partial(self._as_observed, failed, explanation.undeclared, mark)
            shown, _ = self.containment()(f"judging {self.case.id} under the observed choices", step, shown)
        return shown

    def _as_observed(
        self, failed: Sequence[Result], undeclared: Mapping[str, Any], mark: Marker
    ) -> Mapping[str, Result]:
        contract, violated = unexplained(self.contract, self.case, failed, undeclared)
        causes = [r for r in by_cause(violated)[0] if r.law in violated_by_numbers([r])]
        if contract.semantics[self.case.operation].fully_masked == "zero" and any(map(shows_empty_row, causes)):
            contract = with_declared_choices(contract, self.case.operation, {"fully_masked": "nan"})
        if not contract.assumed or not causes:
            return {}
        case = replace(self.case, laws=tuple(r.law for r in causes))
        results = self._judge(mark, contract, case, contain=self.containment())
        again = {r.law: r for r in results if r.law in violated_by_numbers([r]) and r.counterexample is not None}
        return {
            r.law: replace(
                r, message=again[r.law].message, counterexample=again[r.law].counterexample,
                error_ratio=max(r.error_ratio, again[r.law].error_ratio), note=joined(r.note, again[r.law].note),
            )
            for r in causes
            if r.law in again
        }  # fmt: skip

    def _undeclared(self, failed: Sequence[Result], mark: Marker) -> Mapping[str, Any]:
        case, device = self.case, self.device

        def subject_under(contract: Contract) -> Subject:
            return Subject(self.backend, contract, OPERATIONS[case.operation], case.dtype, device)

        judging, searched = partial(self._judge, mark, stop_at_first=True), subject_under(self.contract)
        # The search concerns no law alone: a hang is blamed on the first that failed.
        with mark.during(failed[0].law, "looking for what has to be declared"):
            return missing_declarations(
                judging, self.contract, case, failed, lambda: refusals(searched, mark), subject_under
            ).as_json()

    def _diagnosis(self, failed: Sequence[Result], declared: Mapping[str, Any], mark: Marker) -> Diagnosis | None:
        settings, profile = self.settings, PROFILES[self.settings.profile]
        contract, violations = unexplained(self.contract, self.case, failed, declared)
        if not violated_by_numbers(violations):
            return None
        # Imported here because it loads all mutants, which a run without violations does not need.
        from attnspec.conformance.explaining.inquiry import inquiry

        started = inquiry(
            self.backend, contract, self.case, profile, violations,
            seed=settings.seed, device=self.device, watch=mark.during,
        )  # fmt: skip
        return None if started is None else started.diagnosis()


def shows_empty_row(result: Result) -> bool:
    """Return True if a mask of the counterexample has a row without a True element."""
    shown = (result.counterexample or {}).get("arguments", {})
    masks = (shown.get(leaf.path) for leaf in OPERATIONS[result.operation].masks.values())
    return any(isinstance(mask, list) and not np.asarray(mask).any(-1).all() for mask in masks)


def judged_until_violation(
    judging: Callable[..., list[Result]], case: Case, settings: Settings, known: Mapping[str, Result] | None = None
) -> list[Result]:
    """Return verdicts up to the first unexpected violation, and ``lost`` for the remaining laws.

    ``judging`` judges a case; ``known`` are the verdicts of laws that ended the process before. Laws that are expected
    to fail are judged only if all others hold.
    """
    skip, lines = dict(known or {}), expectations(settings.expect)

    def first(results: Iterable[Result]) -> list[Result]:
        return by_cause(unexpected(results, lines))[0][:1]

    violations = unexpected(skip.values(), lines)
    if not violations:
        failing = {x for x in case.laws if any(e.concerns(case.operation, x, case.dtype) for e in lines)}
        others = replace(case, laws=tuple(x for x in case.laws if x not in failing))
        results = judging(others, skip=skip, stop_at_first=True, counterexamples_for=first)
        violations = first(results)
        if not violations:
            skip |= {r.law: r for r in results}
            return judging(case, skip=skip)
    seen = {r.law: r for r in violations}
    return [
        seen.get(law) or Result(case.operation, law, case.dtype, Status.LOST, INTERRUPTED, STOPPED) for law in case.laws
    ]
