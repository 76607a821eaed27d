"""Progress on the command line, and detection of workers that fail to start."""

import signal
import threading
import time

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnspec.conformance.judging.results import STOPPED
from attnspec.conformance.remote.command import late_line
from attnspec.conformance.running.expectations import expectations, unexpected
from attnspec.conformance.running.probe import IMPORT_SECONDS
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import case_of, recorded

MAX_DEATHS = 3
"""Number of worker processes lost during startup at which the run ends."""

WAKE = getattr(signal, "SIGUSR1", signal.SIGINT)
"""Signal that ends the wait for workers; jobs of scripts may ignore SIGINT."""

LINE_SECONDS = 10
"""Seconds between two lines of progress without a terminal."""


class StartupMonitor:
    """Pytest plugin that ends the run if workers die or hang before they are ready.

    ``failure`` is the reason; None if all is well.
    """

    def __init__(self, backend: str) -> None:
        self.failure: str | None = None
        self._backend, self._deaths = backend, 0
        self._starting: set[object] = set()
        self._clock: threading.Timer | None = None
        self._handled = signal.signal(WAKE, signal.default_int_handler)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: object) -> None:
        """Restart the timer for a worker that starts or replaces another."""
        self._starting.add(node)
        self._stop()
        self._clock = threading.Timer(IMPORT_SECONDS, self._too_late)
        self._clock.daemon = True
        self._clock.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object) -> None:
        """Stop the timer once all workers are ready."""
        self._starting.discard(node)
        if not self._starting:
            self._stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """End the run after :data:`MAX_DEATHS`; pytest-xdist would replace the workers for ever."""
        if node not in self._starting:
            return
        self._starting.discard(node)
        self._deaths += error is not None
        if self._deaths >= MAX_DEATHS:
            self.failure = self.failure or f"{self._deaths} worker processes ended while they imported the backend"
            raise pytest.exit.Exception(self.failure)

    def pytest_sessionfinish(self) -> None:
        """Stop waiting for workers."""
        self._stop()
        signal.signal(WAKE, self._handled)

    def pytest_internalerror(self, excrepr: object) -> None:
        """Store the error that broke the run itself."""
        self.failure = self.failure or str(excrepr).strip().splitlines()[-1]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Store the reason why a worker collected no tests."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message if crash else report.longreprtext.strip().splitlines()[-1])
            self.failure = self.failure or reason.removeprefix("pytest.UsageError: ")

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()

    def _too_late(self) -> None:
        slow = f"worker processes did not import the backend within {IMPORT_SECONDS:g} s"
        self.failure = late_line(self._backend, IMPORT_SECONDS) or slow
        signal.raise_signal(WAKE)


class Bar(Progress):
    """Progress bar on a terminal; otherwise a line every ten seconds, and a last one if there were others."""

    def __init__(self, console: Console, description: str, total: int | None = None, limit: str = "") -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, TextColumn(limit), console=console, disable=not console.is_terminal, transient=True)
        self._last, self._printed = time.monotonic(), False
        self.task = self.add_task(description, total=total)

    def count(self, line: str, description: str | None = None) -> None:
        """Advance by one; without a terminal, print ``line`` when it is due."""
        self.update(self.task, advance=1, description=description)
        self._print_when_due(line)

    def show(self, line: str, description: str) -> None:
        """Change the description; without a terminal, print ``line`` when it is due."""
        self.update(self.task, description=description)
        self._print_when_due(line)

    def _print_when_due(self, line: str) -> None:
        last = self._printed and self.tasks[0].finished
        if not self.console.is_terminal and (last or time.monotonic() - self._last > LINE_SECONDS):
            self._last, self._printed = time.monotonic(), True
            self.console.print(line)


class ProgressDisplay:
    """Pytest plugin that shows the progress of a run.

    ``done`` is the number of judged cases. With ``fail_fast`` it ends the run at the first unexpected violation and
    sets ``stopped``.
    """

    def __init__(self, console: Console, settings: Settings) -> None:
        self.lines, self.fail_fast, self.stopped = expectations(settings.expect), settings.fail_fast, False
        self._limit = f" of {settings.time_limit:g} s" if settings.time_limit else ""
        self.total, self.done, self.violated = 0, 0, 0
        self._began = time.monotonic()
        self.bar = Bar(console, "starting workers", limit=self._limit)

    def expect(self, total: int) -> None:
        """Set the number of cases."""
        self.total = total
        self.bar.update(self.bar.task, total=total)

    def compiling(self, operations: list[str]) -> None:
        """Show that the backend may be compiling these operations."""
        names = ", ".join(operations)
        self.bar.show(f"{self.done} of {self.total} cases judged, compiling {names}", f"compiling {names}")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a judged case, and print its unexpected violations."""
        results = recorded(report)
        # The report on a test's teardown carries its verdicts again.
        if results is None or (report.when != "call" and not report.failed):
            return
        self.done += 1
        failed = unexpected(results, self.lines)
        self.violated += len(failed)
        for r in failed:
            self.bar.console.print(f"[red]violated[/] {r.law} by {r.operation} ({r.dtype})", highlight=False)
        time_used = f", {time.monotonic() - self._began:.0f}{self._limit}" if self._limit else ""
        judged = f"{self.done} of {self.total} cases judged, {self.violated} laws violated{time_used}"
        self.bar.count(judged, case_of(report.nodeid))
        if failed and self.fail_fast and not self.stopped:
            self.stopped = True
            raise pytest.exit.Exception(STOPPED)
