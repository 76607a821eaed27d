"""Cases whose worker process ended: they are judged again, or have no verdict."""

import signal
from typing import Any

import pytest

from attnspec.conformance.judging.results import JUDGE_LOST
from attnspec.conformance.running.verdicts import case_of

MAX_AGAIN = 2
"""Times that a case is judged again after its judge was killed."""

KILLED = f"{JUDGE_LOST} {{how}}, each time of {MAX_AGAIN + 1}: nothing is known of the backend"
"""Message of a case whose judge was killed each time."""

ENDED = (
    "the process that runs the backend {how} (status 1 can mean that a check took more than {seconds:g} s): "
    "run with --isolated, which names the law and its input"
)
"""Message of a case that was judged in the process of the backend."""


class CrashHandler:
    """Plugin of the controlling process for cases whose worker died.

    A worker that only judges is no fault of the backend: its case is judged again, twice at most, and ``repeated``
    names it. With ``--in-process`` the worker ran the backend too: the case is not tried again and has no verdict.
    """

    def __init__(self, hang_after: float, *, in_process: bool, repeated: list[str]) -> None:
        self.hang_after, self.in_process = hang_after, in_process
        self._repeated = repeated
        self._again: dict[str, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Run a case again whose worker died, or say why it has no verdict."""
        how = _how_it_ended(getattr(report, "node", None))
        if self.in_process:
            report.longrepr = ENDED.format(how=how, seconds=self.hang_after)
            return
        self._again[crashitem] = self._again.get(crashitem, 0) + 1
        report.longrepr = KILLED.format(how=how)
        if self._again[crashitem] <= MAX_AGAIN:
            self._repeated.append(f"{case_of(crashitem)} was judged again: {JUDGE_LOST} {how}")
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"  # type: ignore[assignment]  # as xdist's documentation says


def _how_it_ended(node: Any) -> str:
    """How the process of a worker of pytest-xdist ended."""
    status = None if node is None else node.gateway._io.wait()
    if status is None or status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
