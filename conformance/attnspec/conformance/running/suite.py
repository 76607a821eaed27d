"""The suite for pytest: one test per operation and dtype, which judges all laws.

In a user's test file::

    class TestMine(ConformanceSuite):
        backend = MyBackend()
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import pytest

from attnspec.conformance.explaining.declaration import Declaration, declaration, judged_as_declared, with_attributes
from attnspec.conformance.explaining.explanations import Explanation
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.own_errors import contained, joined, own_error
from attnspec.conformance.judging.results import INTERRUPTED, OWN_ERROR, Result, Status
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import Redeclared
from attnspec.conformance.remote.command import PREFIX
from attnspec.conformance.remote.description import described
from attnspec.conformance.remote.errors import BackendError, RedeclaredError
from attnspec.conformance.remote.loading import contract_of
from attnspec.conformance.running.expectations import expectations, expected, unexpected, unexpected_passes
from attnspec.conformance.running.in_process import InProcess
from attnspec.conformance.running.isolated import Isolated
from attnspec.conformance.running.judged_backends import backends
from attnspec.conformance.running.keys import IN_PROCESS_SUITES
from attnspec.conformance.running.messages import JUDGED_AGAIN, PASTE, failure_message, proposal_lines
from attnspec.conformance.running.planning import Plan, judged_contract
from attnspec.conformance.running.settings import OPTIONS, Settings
from attnspec.conformance.running.verdicts import record, record_explanation


class ConformanceSuite:
    """Suite to subclass in a test file; set ``backend`` to a backend or its name."""

    backend: ClassVar[Any] = None
    profile: ClassVar[str] = Settings.profile
    seed: ClassVar[int] = Settings.seed
    device: ClassVar[str] = Settings.device
    operations: ClassVar[Sequence[str]] = Settings.operations
    laws: ClassVar[Sequence[str]] = Settings.laws
    dtypes: ClassVar[Sequence[str]] = Settings.dtypes
    expect: ClassVar[str | None] = Settings.expect
    in_process: ClassVar[bool] = Settings.in_process
    sandbox: ClassVar[str] = Settings.sandbox

    def test_conforms(
        self, attnspec_case: Case, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
    ) -> None:
        """Judge one operation at one dtype by all its laws."""
        backend, contract = backend_of_suite(pytestconfig, type(self))
        run_case(backend, contract, attnspec_case, settings_of_suite(type(self)), record_property)


def settings_of_suite(suite: type[ConformanceSuite]) -> Settings:
    """Return a suite's settings; :class:`BackendError` for a string instead of names."""
    chosen: dict[str, Any] = {}
    for o in OPTIONS:
        if not o.cli_only:
            value = getattr(suite, o.setting)
            if o.repeatable and isinstance(value, str):
                raise BackendError(f"{suite.__name__}.{o.setting}: expected a tuple of names; got {value!r}")
            chosen[o.setting] = tuple(value) if o.repeatable else value
    return Settings(**chosen)


def in_this_process(config: pytest.Config, backend: Any, device: str) -> tuple[Any, Contract]:
    """Return a backend in this process and its contract; ending the process is a failure."""
    if backend is None:
        raise pytest.UsageError("ConformanceSuite: expected a class attribute `backend`; got None")
    backends(config).guard(config)
    if not isinstance(backend, str):
        return backend, contract_of(backend, _importable_name(backend), device)
    return backends(config).load_here(backend, device)


def _importable_name(backend: Any) -> str:
    """Return the name by which a snippet imports the backend: its class in its module."""
    kind = backend if isinstance(backend, type) else type(backend)
    return f"{kind.__module__}:{kind.__qualname__}" if kind.__module__ != "builtins" else str(backend.__name__)


def backend_of(config: pytest.Config, backend: Any, settings: Settings) -> tuple[Any, Contract]:
    """Return a named backend and its contract; :class:`BackendError` if it cannot be used.

    It runs in its own process, or in this one with ``in_process``.
    """
    if settings.in_process:
        judged, contract = in_this_process(config, backend, settings.device)
    else:
        judged, contract = backends(config).await_ready(backend, settings)
    return judged, judged_contract(contract, settings)


def backend_of_suite(config: pytest.Config, suite: type[ConformanceSuite]) -> tuple[Any, Contract]:
    """Return a suite's backend and contract, in its own process if possible."""
    settings, backend = settings_of_suite(suite), suite.backend
    if settings.in_process or backend is None:
        return in_this_process(config, backend, settings.device)
    if isinstance(backend, str):
        return backends(config).await_ready(backend, settings)
    name = backend.__name__ if isinstance(backend, ModuleType) else f"{suite.__module__}:{suite.__qualname__}.backend"
    contract = contract_of(backend, _importable_name(backend), settings.device)
    try:
        if "<" in name:
            raise BackendError("its class is defined inside a function")
        remote, remote_contract = backends(config).await_ready(name, settings, tuple(sys.path))
        if described(remote_contract) != described(contract):
            raise BackendError("recreated in a process of its own, it declares something else")
    except BackendError as error:
        config.stash.setdefault(IN_PROCESS_SUITES, {})[suite.__name__] = str(error)
        return in_this_process(config, backend, settings.device)
    return remote, contract


def check_expectations(plan: Plan, settings: Settings) -> None:
    """Raise :class:`BackendError` for an expected failure that matches nothing in the plan."""
    planned = [(case.operation, law, case.dtype) for case in plan.cases for law in case.laws]
    for line in expectations(settings.expect):
        if line.selected(settings) and not any(line.concerns(*check) for check in planned):
            raise BackendError(f"expect: {line}: matches nothing that is judged")


def run_case(
    backend: Any, contract: Contract, case: Case, settings: Settings, record_property: Callable[[str, object], None]
) -> None:
    """Judge a case, attach its verdicts to the test, and fail on a violation.

    If all violations are expected, the test is an ``xfail``. A law that holds although it is expected to fail fails the
    test.
    """
    extent: Extent = {}
    kind = Isolated if type(backend) is RemoteBackend else InProcess
    run = kind(backend, contract, case, settings)
    try:
        results = run.judged(extent)
    except (Redeclared, RedeclaredError) as error:
        results = [Result(case.operation, x, case.dtype, Status.LOST, INTERRUPTED, str(error)) for x in case.laws]
    except BackendError:
        raise
    except Exception as error:  # noqa: BLE001 - an error of attnspec is not one of the backend
        message = own_error(f"judging {case.id}", error)
        results = [Result(case.operation, law, case.dtype, Status.LOST, OWN_ERROR, message) for law in case.laws]
    # Recorded before the explanation, which may fail or be killed.
    record(results, record_property, extent)
    lines = expectations(settings.expect)
    messages = [
        f"expected to fail, but holds: {r.law} by {case.id} ({line.place})"
        for line, r in unexpected_passes(results, lines)
    ]
    messages += [f"{r.law} by {case.id}: no verdict: {r.message}" for r in results if r.unchecked]
    failed = unexpected(results, lines)
    if failed:
        explanation = run.explanation(failed)
        record_explanation(explanation, record_property)
        shown = run.shown_as_observed(failed, explanation)
        results = [shown.get(r.law, r) for r in results]
        if explanation.note or shown:
            shown_first = by_cause(failed)[0][0]
            results = [
                replace(r, note=joined(r.note, explanation.note)) if r.law == shown_first.law else r for r in results
            ]
            record(results, record_property, extent)
        plain = "\n".join(f"{r.law} is violated by {case.id}: {r.message}" for r in failed)
        failed = unexpected(results, lines)
        text, note = contained("writing the message", lambda: _message(run, results, failed, explanation), plain)
        messages += [text, *filter(None, [note])]
    if messages:
        pytest.fail("\n".join(messages), pytrace=False)
    known = [(r, line) for r in results if (line := expected(r, lines)) is not None]
    if known:
        pytest.xfail("; ".join(f"{r.law}: {line.reason or line.place}" for r, line in known))


@dataclass(frozen=True)
class _Judged:
    """A judged case, with what its backend could declare; ``failed`` are the unexpected failures."""

    results: Sequence[Result]
    failed: Sequence[Result]
    declaration: Declaration

    @property
    def is_explained(self) -> bool:
        """True if there are unexpected failures, and the declaration explains all of them."""
        return bool(self.failed) and self._has_verdicts and all(map(self.declaration.explains, self.failed))

    @property
    def conforms(self) -> bool:
        """True if laws were judged, and none has failed unexpectedly."""
        return not self.failed and self._has_verdicts and any(r.judged for r in self.results)

    @property
    def _has_verdicts(self) -> bool:
        return not any(r.unchecked or r.interrupted for r in self.results)


def _message(run: InProcess, results: Sequence[Result], failed: Sequence[Result], explanation: Explanation) -> str:
    """Describe the violations of a case, judged again as if it declared what was observed.

    Processes of ``attnspec check`` do not judge again: that command does, with all cases together.
    """
    case, settings = run.case, run.settings

    def judged(contract: Contract, results: Sequence[Result], failed: Sequence[Result], x: Explanation) -> _Judged:
        proposed = declaration(contract, results, {case.id: x.undeclared} if x.undeclared else {})
        return _Judged(results, failed, proposed)

    def judged_again(attributes: Mapping[str, Any]) -> _Judged:
        again = replace(run, contract=with_attributes(run.contract, attributes))
        results = again.judged({})
        failed = unexpected(results, expectations(settings.expect))
        explanation = again.explanation(failed, diagnosable=False) if failed else Explanation()
        return judged(again.contract, results, failed, explanation)

    first = judged(run.contract, results, failed, explanation)
    proposed, last = first.declaration, first
    if settings.shared_folder is None:
        proposed, last = judged_as_declared(first, judged_again)
    heading = f"{JUDGED_AGAIN}:" if last.conforms else PASTE
    heading = heading.format(place=run.contract.place, judged=case.id)
    text = proposed.json_text if run.contract.origin.startswith(PREFIX) else proposed.text
    proposal = proposal_lines(proposed, conforms=last.conforms) + ([heading, text] if proposed else [])
    unexplained = [r for r in failed if not proposed.explains(r)]
    text = failure_message(unexplained, None if last.conforms else explanation.diagnosis, proposal)
    return text if explanation.note in text else f"{text}\n\n{explanation.note}"
