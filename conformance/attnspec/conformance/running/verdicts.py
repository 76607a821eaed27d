"""Verdicts on their way to the controlling process, and cases whose worker died."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from attnspec.conformance.explaining.explanations import Explanation
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.foreign_calls import printable, signal_name
from attnspec.conformance.judging.results import JUDGE_LOST, Result
from attnspec.conformance.running.keys import LEFT_PROPERTY

PROPERTY = "attnspec"
"""Property of a test with its verdicts as JSON, which pytest-xdist transports."""

EXTENT = "attnspec-extent"
"""Property of a test with the largest sizes of its calls."""

EXPLANATION = "attnspec-explanation"
"""Property of a test with the explanation of its violations."""


def record(
    results: Iterable[Result], record_property: Callable[[str, object], None], extent: Extent | None = None
) -> None:
    """Attach a case's verdicts and extent to its test; the last call counts."""
    record_property(PROPERTY, [r.as_json() for r in results])
    record_property(EXTENT, extent or {})


def record_explanation(explanation: Explanation, record_property: Callable[[str, object], None]) -> None:
    """Attach the explanation of a case's violations to its test."""
    record_property(EXPLANATION, explanation.as_json())


def recorded(report: pytest.TestReport) -> list[Result] | None:
    """Return the verdicts last attached to a test; None if there are none yet."""
    for name, value in reversed(report.user_properties):
        if name == PROPERTY and isinstance(value, list):
            return [Result.from_json(r) for r in value]
    return None


def case_of(nodeid: str) -> str:
    """Return the case that a test judges: the brackets in its node id."""
    return nodeid.rpartition("[")[2].removesuffix("]")


@dataclass
class Verdicts:
    """Verdicts, extents and explanations of a run so far, by case.

    ``causes``: why a case has no verdicts. ``left``: the processes that the backend left running. ``repeated``: cases
    that were judged again because the process that judged them ended. ``started``: when the run began.
    """

    results: dict[str, list[Result]] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    extents: dict[str, Extent] = field(default_factory=dict)
    explanations: dict[str, Explanation] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)


VERDICTS = pytest.StashKey[Verdicts]()
"""Key of a run's verdicts in pytest's configuration."""


class Collector:
    """Plugin of the controlling process that collects the verdicts of all workers."""

    def __init__(self, verdicts: Verdicts) -> None:
        self.verdicts = verdicts

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Store the processes that a worker reports as left running by the backend."""
        self.verdicts.left += getattr(node, "workeroutput", {}).get(LEFT_PROPERTY, ())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the verdicts of a case, or else the last line of its error."""
        case, results = case_of(report.nodeid), recorded(report)
        if results is not None:
            self.verdicts.results[case] = results
            for name, x in report.user_properties:
                if name == EXTENT and isinstance(x, dict):
                    self.verdicts.extents[case] = x
                if name == EXPLANATION and isinstance(x, dict):
                    self.verdicts.explanations[case] = Explanation.from_json(x)
        if report.failed and case not in self.verdicts.results:
            lines = report.longreprtext.strip().splitlines() or ["its process ended"]
            raised = [line[2:].strip() for line in lines if line.startswith("E ")]
            self.verdicts.causes[case] = printable((raised or lines)[-1])


MAX_RETRIES = 2
"""Most times that a case is judged again after its judge was killed."""

BACKEND_ENDED = (
    "the process that runs the backend {how} (status 1 can mean that a check took more than {seconds:g} s): "
    "run with --isolated, which names the law and its input"
)
"""Message of a case judged in the backend's process: if a check hangs, a timer ends that with status 1."""


class CrashHandler:
    """Plugin of the controlling process for cases whose worker died.

    The death of a worker that only judges is not the backend's fault: its case is judged again, at most twice, and
    listed in ``repeated``. With ``--in-process`` the worker ran the backend, too: its case has no verdict.
    """

    def __init__(self, hang_after: float, *, in_process: bool, repeated: list[str]) -> None:
        self.hang_after, self.in_process = hang_after, in_process
        self._repeated = repeated
        self._deaths: dict[str, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Schedule the case of a dead worker again, or record why it has no verdict."""
        how = _how_it_ended(getattr(report, "node", None))
        if self.in_process:
            report.longrepr = BACKEND_ENDED.format(how=how, seconds=self.hang_after)
            return
        deaths = self._deaths[crashitem] = self._deaths.get(crashitem, 0) + 1
        # Reported only after the last death: below, an earlier one becomes a repetition.
        report.longrepr = f"{JUDGE_LOST} {how}, each of {MAX_RETRIES + 1} times: nothing is known about the backend"
        if deaths <= MAX_RETRIES:
            self._repeated.append(f"{case_of(crashitem)} was judged again: {JUDGE_LOST} {how}")
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"  # type: ignore[assignment]  # as xdist's documentation says


def _how_it_ended(node: Any) -> str:
    status = None if node is None else node.gateway._io.wait()
    if status is None or status >= 0:
        return f"ended with status {status}"
    name = signal_name(-status)
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
