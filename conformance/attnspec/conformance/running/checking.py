"""A run for the command line: pytest with workers, without the user's configuration."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.judging.results import INTERRUPTED, STOPPED
from attnspec.conformance.remote.description import described
from attnspec.conformance.remote.environment import ONE_THREAD, PYTEST_VARIABLES, SAFE_PATH, environment
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.folder import TemporaryFolder
from attnspec.conformance.remote.processes import children, end_children, new_mark
from attnspec.conformance.running.compiling import NoticeReader
from attnspec.conformance.running.contract_file import write_contract
from attnspec.conformance.running.interruption import INTERRUPTION
from attnspec.conformance.running.keys import CONTRACT_KEY
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.progress import ProgressDisplay, StartupMonitor
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import VERDICTS, Verdicts
from attnspec.conformance.running.waking import wake_workers


@dataclass(frozen=True)
class Run:
    """Plan and verdicts of a run; ``early_end`` is the reason if it ended early."""

    plan: Plan
    verdicts: Verdicts
    early_end: str | None


class PlanGate:
    """Pytest plugin: the workers start while the plan is made; tests wait for the plan.

    An interrupted run does not wait for the workers.
    """

    def __init__(self, make_plan: Callable[[], Plan], display: ProgressDisplay, folder: Path) -> None:
        self.make_plan, self.display, self.folder = make_plan, display, folder
        self._key = new_mark()
        self.plan: Plan | None = None
        self.error: BackendError | None = None
        self.verdicts: Verdicts | None = None
        self._workers: Any = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker the key that signs the contract, through the pipe that starts it."""
        node.workerinput[CONTRACT_KEY] = self._key
        self._workers = node.nodemanager

    def pytest_keyboard_interrupt(self) -> None:
        """Do not wait for workers after Ctrl-C, or when a plugin ends the run."""
        INTERRUPTION.acknowledge()
        if self._workers is not None:
            self._workers.EXIT_TIMEOUT = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Make the plan and send the contract to the workers, or end the run."""
        self.verdicts = session.config.stash[VERDICTS]
        try:
            self.plan = self.make_plan()
            write_contract(self.folder, described(self.plan.own_contract), self._key)
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

    ``make_plan`` is called while the workers start. ``shown`` prints the backend's output immediately; otherwise it is
    discarded. Raises :class:`BackendError` if ``make_plan`` does, or if the workers fail before any verdict.
    """
    display = ProgressDisplay(console, settings)
    startup = StartupMonitor(backend)
    children_before = children()
    wake_workers()
    with TemporaryFolder() as folder, environment(_worker_environment(folder)), display.bar:
        gate = PlanGate(make_plan, display, Path(folder))
        arguments = pytest_arguments(backend, settings, Path(folder), workers, shown=shown)
        notices = NoticeReader(Path(folder), display.compiling)
        try:
            status = pytest.main(arguments, plugins=[display, gate, startup])
        except KeyboardInterrupt:
            # pytest itself catches it only while tests run.
            status = pytest.ExitCode.INTERRUPTED
        finally:
            notices.close()
        INTERRUPTION.acknowledge()
        left = end_children(children_before)
    if gate.error is not None:
        raise gate.error
    if gate.plan is None and INTERRUPTION.reason is not None:
        raise KeyboardInterrupt
    if gate.plan is None or gate.verdicts is None or (startup.failure is not None and not display.done):
        reason = (startup.failure or f"pytest ended with {status}").removeprefix(f"backend {backend!r}: ")
        raise BackendError(f"backend {backend!r}: nothing was judged: {reason}")
    if startup.failure is not None:
        for case in gate.plan.cases:
            gate.verdicts.causes.setdefault(case.id, startup.failure)
    # After an early end, the children left are workers for which nobody waited.
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        gate.verdicts.left += [title for title in left if title not in gate.verdicts.left]
    interrupted = status == pytest.ExitCode.INTERRUPTED and startup.failure is None
    early_end = INTERRUPTION.reason or INTERRUPTED if interrupted else None
    return Run(gate.plan, gate.verdicts, STOPPED if display.stopped else early_end)


def _worker_environment(folder: str) -> dict[str, str | None]:
    """Return the workers' environment variables: no user settings, files in this folder."""
    storage = {"HYPOTHESIS_STORAGE_DIRECTORY": str(Path(folder, "hypothesis"))}
    return {**SAFE_PATH, **ONE_THREAD, **PYTEST_VARIABLES, **storage}


def pytest_arguments(backend: str, settings: Settings, folder: Path, workers: int, *, shown: bool = False) -> list[str]:
    """Return pytest's arguments, which ignore the current folder and the user's configuration."""
    return [
        # No configuration file: a backend could write it, and a restarted worker would read it.
        *("-c", os.devnull, "--rootdir", str(folder), f"--basetemp={folder / 'pytest'}"),
        *("--import-mode=importlib", "-o", "consider_namespace_packages=true"),
        *("--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler"),
        # Rewritten assertions would be written to compiled files.
        "--assert=plain",
        *("--disable-plugin-autoload", "-p", "xdist", "-p", "attnspec.conformance.plugin"),
        # Dead workers are always replaced: plugins count the deaths at startup and those of each case.
        *("-n", str(workers), "--dist=worksteal", "--max-worker-restart=1000000"),
        *("--pyargs", "attnspec.conformance.test_conformance"),
        f"--attn-backend={backend}",
        *replace(settings, shared_folder=str(folder)).arguments(),
        *(["--capture=no"] if shown else []),
    ]
