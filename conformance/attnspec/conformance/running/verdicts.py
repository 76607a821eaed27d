"""How verdicts come from the tests of a run to the process that controls it: as a property of each test."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from attnspec.conformance.explaining.finding import Explanation
from attnspec.conformance.judging.extent import Extent
from attnspec.conformance.judging.foreign_calls import printable
from attnspec.conformance.judging.results import Result
from attnspec.conformance.running.keys import LEFT

PROPERTY = "attnspec"
"""The property of a test that holds its verdicts, as JSON; pytest-xdist hands it on from a worker."""

EXTENT = "attnspec-extent"
"""The property that holds the largest sizes of its calls."""

EXPLANATION = "attnspec-explanation"
"""The property that holds what explains its violations."""


def record(
    results: Iterable[Result],
    record_property: Callable[[str, object], None],
    extent: Extent | None = None,
) -> None:
    """Attach the verdicts of a case to its test, and the extent of its calls; the last time counts."""
    record_property(PROPERTY, [r.as_json() for r in results])
    record_property(EXTENT, extent or {})


def record_explanation(explanation: Explanation, record_property: Callable[[str, object], None]) -> None:
    """Attach what explains the violations of a case to its test."""
    record_property(EXPLANATION, explanation.as_json())


def recorded(report: pytest.TestReport) -> list[Result] | None:
    """The verdicts that were last attached to a test; None if there are none yet."""
    for name, value in reversed(report.user_properties):
        if name == PROPERTY and isinstance(value, list):
            return [Result.from_json(r) for r in value]
    return None


def case_of(nodeid: str) -> str:
    """The case that a test judges: what stands in brackets in its node id."""
    return nodeid.rpartition("[")[2].removesuffix("]")


@dataclass
class Verdicts:
    """The verdicts of a run so far, the extent of its calls, and what explains violations, by case.

    ``causes`` says why a case has no verdicts. ``left`` are the processes that the backend has left behind.
    ``repeated`` says which cases were judged again because the process that judged them ended.
    """

    results: dict[str, list[Result]] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    extents: dict[str, Extent] = field(default_factory=dict)
    explanations: dict[str, Explanation] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)


VERDICTS = pytest.StashKey[Verdicts]()
"""Where a pytest configuration holds the verdicts of its run."""


class Collector:
    """A plugin of the process that controls the run: it collects the verdicts of all workers."""

    def __init__(self, verdicts: Verdicts) -> None:
        self.verdicts = verdicts

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Keep what a worker says of processes that the backend has left behind."""
        self.verdicts.left += getattr(node, "workeroutput", {}).get(LEFT, ())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdicts of a case, or the last line that says why it has none."""
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
