"""One run of the suite for the command line: pytest workers with a configuration of their own."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.judging.results import INTERRUPTED, STOPPED
from attnspec.conformance.remote.description import described
from attnspec.conformance.remote.environment import OF_PYTEST, ONE_THREAD, SAFE_PATH, environment
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.folder import TemporaryFolder
from attnspec.conformance.remote.processes import children, end_children, mark
from attnspec.conformance.running.contract_file import write_contract
from attnspec.conformance.running.interruption import INTERRUPTION
from attnspec.conformance.running.keys import KEY
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.progress import ProgressDisplay, StartupMonitor
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import VERDICTS, Verdicts
from attnspec.conformance.running.waking import wake_workers


@dataclass(frozen=True)
class Run:
    """Outcome of a run: plan, verdicts, and the reason if it ended early."""

    plan: Plan
    verdicts: Verdicts
    broken_off: str | None


class Gate:
    """Pytest plugin that starts the workers early but no test before there is a plan.

    If the run breaks off, it does not wait for the workers.
    """

    def __init__(self, make_plan: Callable[[], Plan], display: ProgressDisplay, folder: Path) -> None:
        self.make_plan, self.display, self.folder = make_plan, display, folder
        self._key = mark()
        self.plan: Plan | None = None
        self.error: BackendError | None = None
        self.verdicts: Verdicts | None = None
        self._workers: Any = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker the key of the contract through the pipe that starts it."""
        node.workerinput[KEY] = self._key
        self._workers = node.nodemanager

    def pytest_keyboard_interrupt(self) -> None:
        """End the workers immediately after Ctrl-C, or when a plugin ends the run."""
        INTERRUPTION.heard()
        if self._workers is not None:
            self._workers.EXIT_TIMEOUT = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Make the plan and send the contract to the workers, or end the run."""
        self.verdicts = session.config.stash[VERDICTS]
        try:
            self.plan = self.make_plan()
            write_contract(self.folder, described(self.plan.contract), self._key)
        except BackendError as error:
            self.error = error
            write_contract(self.folder, {"error": str(error)}, self._key)
            raise pytest.exit.Exception("nothing to judge") from error
        self.display.expect(len(self.plan.cases))
        return (yield)


def run(
    backend: str,
    settings: Settings,
    *,
    workers: int,
    console: Console,
    make_plan: Callable[[], Plan],
    shown: bool = False,
) -> Run:
    """Judge a backend in worker processes.

    ``make_plan`` is called while the workers start. With ``shown`` the backend's output is printed immediately;
    otherwise it is discarded. Raises :class:`BackendError` if ``make_plan`` does, or if the workers fail.
    """
    display = ProgressDisplay(console, settings)
    startup = StartupMonitor()
    before = children()
    wake_workers()
    with TemporaryFolder() as folder, environment(_variables(folder)), display.bar:
        gate = Gate(make_plan, display, Path(folder))
        arguments = pytest_arguments(backend, settings, Path(folder), workers, shown=shown)
        try:
            status = pytest.main(arguments, plugins=[display, gate, startup])
        except KeyboardInterrupt:
            # pytest catches it only while tests run.
            status = pytest.ExitCode.INTERRUPTED
        INTERRUPTION.heard()
        left = end_children(before)
    if gate.error is not None:
        raise gate.error
    if gate.plan is None and INTERRUPTION.reason is not None:
        raise KeyboardInterrupt
    if gate.plan is None or gate.verdicts is None or (startup.trouble is not None and not display.done):
        reason = (startup.trouble or f"pytest ended with {status}").removeprefix(f"backend {backend!r}: ")
        raise BackendError(f"backend {backend!r}: nothing was judged: {reason}")
    if startup.trouble is not None:
        for case in gate.plan.cases:
            gate.verdicts.causes.setdefault(case.id, startup.trouble)
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        gate.verdicts.left += [title for title in left if title not in gate.verdicts.left]
    interrupted = status == pytest.ExitCode.INTERRUPTED and startup.trouble is None
    broken_off = INTERRUPTION.reason or INTERRUPTED if interrupted else None
    return Run(gate.plan, gate.verdicts, STOPPED if display.stopped else broken_off)


def _variables(folder: str) -> dict[str, str | None]:
    """Return the workers' environment: no settings from outside, and all files in this folder."""
    kept = {"HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder, "hypothesis"))}
    return {**SAFE_PATH, **ONE_THREAD, **OF_PYTEST, **kept}


def pytest_arguments(backend: str, settings: Settings, folder: Path, workers: int, *, shown: bool = False) -> list[str]:
    """Return pytest's arguments; they ignore the current folder and the user's configuration."""
    return [
        *(
            # A restarted worker rereads its configuration, which must not be a file that a backend can write.
            "-c",
            os.devnull,
            "--rootdir",
            str(folder),
            f"--basetemp={folder / 'pytest'}",
            "--import-mode=importlib",
            "-o",
            "consider_namespace_packages=true",
        ),
        *("--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler"),
        # Rewriting assertions would write compiled files.
        "--assert=plain",
        *("--disable-plugin-autoload", "-p", "xdist", "-p", "attnspec.conformance.plugin"),
        *("-n", str(workers), "--dist=worksteal", "--max-worker-restart=1000000"),
        *("--pyargs", "attnspec.conformance.test_conformance"),
        f"--attn-backend={backend}",
        *replace(settings, shared_folder=str(folder)).arguments(),
        *(["--capture=no"] if shown else []),
    ]
