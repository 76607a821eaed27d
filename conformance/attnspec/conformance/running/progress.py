"""What the command line's own process sees of its workers: that they start, and what they have judged."""

import _thread
import os
import threading
import time
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.plugin import Reporter

PATIENCE = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""Seconds that the import of a backend may take, the first one and those of the workers."""

MOST_DEATHS = 3
"""Worker processes that may end before they are ready."""


class Startup:
    """Ends the run if workers die, or hang, while they start: there would be nothing to judge with."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._deaths = 0
        self._starting: set[object] = set()
        self._clock: threading.Timer | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """A worker starts, for the first time or in place of another."""
        self._starting.add(node)
        self._stop()
        self._clock = threading.Timer(PATIENCE, self._too_late)
        self._clock.daemon = True
        self._clock.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object) -> None:
        """A worker is ready."""
        self._starting.discard(node)
        if not self._starting:
            self._stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """Workers that end before they are ready would be started anew for ever."""
        if node not in self._starting:
            return
        self._starting.discard(node)
        self._deaths += error is not None
        if self._deaths >= MOST_DEATHS:
            self.trouble = self.trouble or f"{self._deaths} worker processes ended while they imported the backend"
            raise pytest.exit.Exception(self.trouble)

    def pytest_sessionfinish(self) -> None:
        """No worker is waited for any more."""
        self._stop()

    def pytest_internalerror(self, excrepr: object) -> None:
        """Remember what broke the run itself."""
        self.trouble = self.trouble or str(excrepr).strip().splitlines()[-1]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember why a worker found no tests."""
        if report.failed:
            self.trouble = self.trouble or report.longreprtext.strip().splitlines()[-1]

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

    def _too_late(self) -> None:
        self.trouble = f"worker processes did not import the backend within {PATIENCE:g} s"
        _thread.interrupt_main()


class Live:
    """Progress, as the verdicts come in: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.console, self.total, self.done, self.violated = console, 0, 0, 0
        self.last = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self.task = self.bar.add_task("starting workers", total=None)

    def expect(self, total: int) -> None:
        """So many cases will be judged."""
        self.total = total
        self.bar.update(self.task, total=total)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One case has been judged."""
        if report.when != "call" and not report.failed:
            return
        case = Reporter.case(report.nodeid)
        results = next((v for name, v in report.user_properties if name == "attnspec"), None)
        if results is None:
            return
        self.done += 1
        failed = [r for r in results if r["status"] == "failed"]
        self.violated += len(failed)
        for r in failed:
            self.bar.console.print(f"[red]violated[/] {r['law']} by {r['operation']} ({r['dtype']})", highlight=False)
        self.bar.update(self.task, completed=self.done, description=case)
        if not self.console.is_terminal and time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            self.console.print(f"{self.done} of {self.total} cases judged, {self.violated} laws violated")
