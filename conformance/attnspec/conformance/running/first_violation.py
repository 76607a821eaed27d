"""A run that ends at its first violation: the rest of the case that shows it is not judged, and no other case is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.results import INTERRUPTED, Result, Status
from attnspec.conformance.running.expectations import Expectations, expectations, expected
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import recorded

STOPPED = "stopped at the first violation"
"""Why a law has no verdict behind a violation."""


def unexpected(results: Iterable[Result], lines: Expectations) -> list[Result]:
    """The failures that no line names."""
    return [r for r in results if r.status is Status.FAILED and expected(r, lines) is None]


def judged_until_violation(
    judging: Callable[..., list[Result]], case: Case, settings: Settings, known: Mapping[str, Result] | None = None
) -> list[Result]:
    """The verdicts of a case up to its first violation that is not expected, and ``lost`` for the rest.

    ``judging`` judges a case; ``known`` are the verdicts of laws that ended the process before. The violation that is
    found is the verdict: nothing is judged again for it.
    """
    skip, lines = dict(known or {}), expectations(settings.expect)

    def first(results: Iterable[Result]) -> list[Result]:
        return by_cause(unexpected(results, lines))[0][:1]

    found = unexpected(skip.values(), lines)
    if not found:
        failing = {x for x in case.laws if any(e.concerns(case.operation, x, case.dtype) for e in lines)}
        hopeful = replace(case, laws=tuple(x for x in case.laws if x not in failing))
        results = judging(hopeful, skip=skip, stop_at_first=True, described=first)
        found = first(results)
        if not found:
            skip |= {r.law: r for r in results}
            return judging(case, skip=skip)
    seen = {r.law: r for r in found}
    return [
        seen.get(law) or Result(case.operation, law, case.dtype, Status.LOST, INTERRUPTED, STOPPED) for law in case.laws
    ]


class FirstViolation:
    """A plugin of the controlling process: it ends the run, and its workers, at the first violation not expected."""

    def __init__(self, settings: Settings) -> None:
        self.lines = expectations(settings.expect)
        self.seen = False
        self._workers: Any = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Remember who ends the workers."""
        self._workers = node.nodemanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the run; workers that judge another case are not waited for."""
        if not self.seen and unexpected(recorded(report) or (), self.lines):
            self.seen = True
            if self._workers is not None:
                self._workers.EXIT_TIMEOUT = 0
            raise pytest.exit.Exception(STOPPED)
