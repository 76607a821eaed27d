"""The suite as pytest sees it: one test for each operation and dtype, all of whose laws are judged together.

A third party writes, in a test file of its own::

    class TestMine(ConformanceSuite):
        backend = MyBackend()
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from attnspec.conformance.diagnosis.finding import Diagnosis, violated_by_numbers
from attnspec.conformance.diagnosis.watching import Watch, unwatched
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, Mark, judge
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.reporting.messages import failure_message
from attnspec.conformance.running.errors import BackendError
from attnspec.conformance.running.expectations import expectations, passing
from attnspec.conformance.running.explanation import explained
from attnspec.conformance.running.first_violation import judged_until_violation, unexpected
from attnspec.conformance.running.loading import contract_of, load
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.post_mortem import examined
from attnspec.conformance.running.refusals import refusals
from attnspec.conformance.running.settings import OPTIONS, Settings
from attnspec.conformance.running.verdicts import record, record_diagnosis
from attnspec.conformance.running.watchdog import STOP_AFTER, Incidents, Watchdog
from attnspec.spec.contract.operation import OPERATIONS


class ConformanceSuite:
    """Subclass it in a test file, as ``Test…``, and set ``backend`` to a backend or the name of one."""

    backend: ClassVar[Any] = None
    profile: ClassVar[str] = Settings.profile
    seed: ClassVar[int] = Settings.seed
    device: ClassVar[str] = Settings.device
    operations: ClassVar[Sequence[str]] = Settings.operations
    laws: ClassVar[Sequence[str]] = Settings.laws
    dtypes: ClassVar[Sequence[str]] = Settings.dtypes
    expect: ClassVar[str | None] = Settings.expect

    def test_conforms(self, attnspec_case: Case, record_property: Callable[[str, object], None]) -> None:
        """All laws of one operation at one dtype."""
        backend, contract = resolved(type(self).backend)
        run_case(backend, contract, attnspec_case, settings_of_suite(type(self)), record_property)


def settings_of_suite(suite: type[ConformanceSuite]) -> Settings:
    """The settings that a subclass chooses; :class:`BackendError` for a text where names are expected."""
    chosen: dict[str, Any] = {}
    for o in OPTIONS:
        if not o.isolated:
            value = getattr(suite, o.setting)
            if o.repeatable and isinstance(value, str):
                raise BackendError(f"{suite.__name__}.{o.setting}: expected a tuple of names; got {value!r}")
            chosen[o.setting] = tuple(value) if o.repeatable else value
    return Settings(**chosen)


_loaded: dict[str, tuple[Any, Contract]] = {}


def resolved(backend: Any) -> tuple[Any, Contract]:
    """A backend, loaded if it was named, and its contract; named ones are loaded once."""
    if backend is None:
        raise pytest.UsageError("ConformanceSuite: expected a class attribute `backend`; got None")
    if not isinstance(backend, str):
        return backend, contract_of(backend, _importable_name(backend))
    if backend not in _loaded:
        found = load(backend)
        _loaded[backend] = (found, contract_of(found, backend))
    return _loaded[backend]


def _importable_name(backend: Any) -> str:
    """How a snippet can name the backend: its class in its module."""
    kind = backend if isinstance(backend, type) else type(backend)
    return f"{kind.__module__}:{kind.__qualname__}" if kind.__module__ != "builtins" else str(backend.__name__)


def plan_for(backend: Any, settings: Settings) -> Plan:
    """The plan for a backend or the name of one; :class:`BackendError` if there is nothing to judge."""
    return Plan.of(resolved(backend)[1], settings)


def check_expectations(plan: Plan, settings: Settings) -> None:
    """Raise :class:`BackendError` for a known failure that the settings select, and that is of nothing to be judged."""
    for line in expectations(settings.expect):
        if line.selected(settings) and not any(
            line.concerns(case.operation, law, case.dtype) for case in plan.cases for law in case.laws
        ):
            raise BackendError(f"expect: {line}: nothing that is judged")


def run_case(
    backend: Any,
    contract: Contract,
    case: Case,
    settings: Settings,
    record_property: Callable[[str, object], None],
) -> None:
    """Judge a case, attach its verdicts to the test as a property, and fail the test if a law is violated.

    A violation that is expected does not fail it; a law that holds and is expected to fail does.
    """
    extent: Extent = {}
    explanation: dict[str, Any] = {}
    judging = partial(judge, backend, profile=PROFILES[settings.profile], seed=settings.seed, device=settings.device)
    if settings.crumbs is None:
        here = partial(judging, contract, extent=extent)
        results = judged_until_violation(here, case, settings) if settings.fail_fast else here(case)
    else:
        isolated = _Isolated(judging, backend, contract, case, settings)
        results, explanation = isolated.judged(extent)
    # Whatever becomes of the diagnosis, the verdicts are known.
    record(results, record_property, extent, explanation)
    lines = expectations(settings.expect)
    messages = [
        f"expected to fail, and holds: {r.law} by {case.id} ({line.place})" for line, r in passing(results, lines)
    ]
    failed = unexpected(results, lines)
    if failed:
        diagnosis = _diagnosis(backend, contract, case, settings, failed)
        if diagnosis is not None:
            record_diagnosis(diagnosis, record_property)
        messages.append(failure_message(failed, diagnosis))
    if messages:
        pytest.fail("\n".join(messages), pytrace=False)


def _diagnosis(
    backend: Any, contract: Contract, case: Case, settings: Settings, failed: Sequence[Result]
) -> Diagnosis | None:
    """The known defect that explains the violations of a case; None where a worker has died at it."""
    if not violated_by_numbers(failed):
        return None
    # It loads all mutants, which no run needs that finds nothing wrong.
    from attnspec.conformance.diagnosis.entry import diagnosis_of_case

    def found(watch: Watch) -> Diagnosis | None:
        profile = PROFILES[settings.profile]
        return diagnosis_of_case(
            backend, contract, case, profile, failed, seed=settings.seed, device=settings.device, watch=watch
        )

    if settings.crumbs is None:
        return found(unwatched)
    folder = Path(settings.crumbs)
    if Incidents(folder, settings.hang_after).verdicts(case.operation, case.dtype):
        return None
    watchdog = Watchdog(folder, case.id, settings.hang_after)
    try:
        return found(watchdog.during)
    finally:
        watchdog.close()


@dataclass(frozen=True)
class _Isolated:
    """A case in a worker process, under a watchdog."""

    judging: Callable[..., list[Result]]
    backend: Any
    contract: Contract
    case: Case
    settings: Settings

    def judged(self, extent: Extent) -> tuple[list[Result], dict[str, Any]]:
        """The verdicts of the case, but for laws at which a worker has died before, and what explains violations."""
        case, contract, settings = self.case, self.contract, self.settings
        folder = Path(settings.crumbs or "")
        incidents = Incidents(folder, settings.hang_after)
        recorded = incidents.verdicts(case.operation, case.dtype)
        reason = incidents.given_up(case.operation)
        if reason is not None:
            recorded = examined(incidents, contract.origin, case, settings)
            message = f"{UNJUDGED}the operation was stopped after it had {reason} {STOP_AFTER} times"
            return [
                recorded.get(law) or Result(case.operation, law, case.dtype, Status.FAILED, reason, message)
                for law in case.laws
            ], {}
        watchdog = Watchdog(folder, case.id, settings.hang_after)
        judging = partial(self.judging, mark=watchdog)
        try:
            here = partial(judging, contract, extent=extent)
            if settings.fail_fast:
                results = judged_until_violation(here, case, settings, recorded)
            else:
                results = here(case, skip=recorded)
            explanation = self._explanation(judging, results, watchdog)
        finally:
            watchdog.close()
        if recorded:
            recorded = examined(incidents, contract.origin, case, settings)
        return [recorded.get(r.law, r) for r in results], explanation

    def _explanation(self, judging: Callable[..., list[Result]], results: list[Result], mark: Mark) -> dict[str, Any]:
        """What only has to be declared; nothing in runs that are to end soon."""
        settings, case = self.settings, self.case
        failed = unexpected(results, expectations(settings.expect))
        if not failed or settings.fail_fast or settings.only is not None:
            return {}
        subject = Subject(self.backend, self.contract, OPERATIONS[case.operation], case.dtype, settings.device)
        under = partial(judging, stop_at_first=True)
        return explained(under, self.contract, case, failed, lambda: refusals(subject, mark)).as_json()
