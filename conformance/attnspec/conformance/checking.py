"""Running the suite for the command line: probe, workers, live progress, report."""

import _thread
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.engine import Case
from attnspec.conformance.loading import BackendError
from attnspec.conformance.plugin import REPORTER, Reporter
from attnspec.conformance.results import Result
from attnspec.conformance.subject import Contract
from attnspec.conformance.suite import Settings

PROBE_SECONDS = float(os.environ.get("ATTNSPEC_IMPORT_SECONDS", "120"))
"""How long the first import of a backend may take, and how long workers may."""

MOST_DEATHS = 3
"""Worker processes that may end before they are ready."""

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class Probe:
    """The first import of a backend, under way in another process while this one makes its own imports."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backend
        self._folder = tempfile.TemporaryDirectory(prefix="attnspec-probe-")
        self._answer, self._printed = (Path(self._folder.name, name) for name in ("answer.json", "printed.txt"))
        command = [sys.executable, "-m", "attnspec.conformance.probe", backend, device, str(self._answer)]
        with self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env=_safe_path()
            )

    def close(self) -> None:
        """End the import if it is still under way."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._folder.cleanup()

    def answer(self) -> dict[str, Any]:
        """The contract; :class:`BackendError` in one line if there is none."""
        try:
            status = self.process.wait(PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"backend {self.backend!r}: expected its import to end within {PROBE_SECONDS:g} s; it did not"
            ) from None
        if not self._answer.exists():
            printed = self._printed.read_text(errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process with status {status}: {last}")
        answer: dict[str, Any] = json.loads(self._answer.read_text())
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        return answer


def _safe_path() -> dict[str, str]:
    """The environment of processes that do not look for modules in the current folder first.

    A file there may have the name of a standard module; backends there are found all the same, after everything else.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Admission:
    """A backend that can be judged: its contract, and the cases to judge."""

    contract: Contract
    cases: Sequence[Case]


@dataclass(frozen=True)
class Run:
    """What became of a run: verdicts by case, why cases have none, and whether it was broken off by the user."""

    admission: Admission
    results: Mapping[str, list[Result]]
    causes: Mapping[str, str]
    interrupted: bool


class Gate:
    """Holds the verdicts back until the backend is admitted. Workers start meanwhile, since that takes long."""

    def __init__(self, admitted: Callable[[], Admission], live: "Live") -> None:
        self.admitted, self.live = admitted, live
        self.admission: Admission | None = None
        self.refusal: BackendError | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Nothing is judged if the backend is refused."""
        try:
            self.admission = self.admitted()
            self.live.expect(len(self.admission.cases))
        except BackendError as error:
            self.refusal = error
            raise pytest.exit.Exception("refused") from error
        return (yield)


class Startup:
    """Ends the run if workers die, or hang, before they have found the tests: then there is nothing to judge with."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self._deaths = 0
        self._collected: set[object] = set()
        self._clock = threading.Timer(PROBE_SECONDS, self._too_late)
        self._clock.daemon = True

    def pytest_sessionstart(self) -> None:
        """Start the clock."""
        self._clock.start()

    def pytest_sessionfinish(self) -> None:
        """Stop it."""
        self._clock.cancel()

    def pytest_internalerror(self, excrepr: object) -> None:
        """Remember what broke the run itself."""
        self.trouble = self.trouble or str(excrepr).strip().splitlines()[-1]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember why a worker found no tests."""
        if report.failed:
            self.trouble = self.trouble or report.longreprtext.strip().splitlines()[-1]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object) -> None:
        """One worker is ready."""
        self._clock.cancel()
        self._collected.add(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """Workers that end before they are ready would be started anew for ever."""
        if node in self._collected or error is None:
            return
        self._deaths += 1
        if self._deaths >= MOST_DEATHS:
            self.trouble = self.trouble or f"{self._deaths} worker processes ended while they imported the backend"
            raise pytest.exit.Exception(self.trouble)

    def _too_late(self) -> None:
        self.trouble = f"worker processes did not import the backend within {PROBE_SECONDS:g} s"
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


def run(
    backend: str,
    settings: Settings,
    *,
    workers: int,
    junit: Path | None,
    console: Console,
    admitted: Callable[[], Admission],
) -> Run:
    """Judge in worker processes.

    ``admitted`` is called when the workers have been started; it may raise :class:`BackendError`, and then nothing is
    judged. So does this function where the workers cannot work.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(_safe_path(), **dict.fromkeys(ONE_THREAD, "1"))
    live, startup = Live(console), Startup()
    gate = Gate(admitted, live)
    grabbed: list[pytest.Config] = []

    class Grab:
        def pytest_configure(self, config: pytest.Config) -> None:
            grabbed.append(config)

    with tempfile.TemporaryDirectory(prefix="attnspec-") as folder, live.bar:
        page = None if junit is None else Path(folder, "junit.xml")
        arguments = _arguments(backend, settings, folder, workers, page)
        status = pytest.main(arguments, plugins=[Grab(), live, gate, startup])
        if junit is not None and page is not None and page.exists():
            junit.write_bytes(page.read_bytes())
    if gate.refusal is not None:
        raise gate.refusal
    reporter: Any = grabbed[0].pluginmanager.getplugin(REPORTER) if grabbed else None
    if gate.admission is None or reporter is None or (startup.trouble is not None and not live.done):
        raise BackendError(
            f"backend {backend!r}: nothing was judged: {startup.trouble or f'pytest ended with {status}'}"
        )
    results = {case: [Result.from_json(r) for r in rs] for case, rs in reporter.results.items()}
    return Run(gate.admission, results, reporter.causes, status == pytest.ExitCode.INTERRUPTED)


def _arguments(backend: str, settings: Settings, folder: str, workers: int, junit: Path | None) -> list[str]:
    ini = Path(folder, "pytest.ini")
    ini.write_text("[pytest]\n")
    chosen = [f"--attn-operation={o}" for o in settings.operations]
    chosen += [f"--attn-law={x}" for x in settings.laws] + [f"--attn-dtype={d}" for d in settings.dtypes]
    return [
        *("-c", str(ini), "--rootdir", folder, "--import-mode=importlib", "-o", "consider_namespace_packages=true"),
        *("--noconftest", "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler"),
        *("--disable-plugin-autoload", "-p", "xdist", "-p", "attnspec.conformance.plugin"),
        *("-n", str(workers), "--dist=worksteal", "--max-worker-restart=1000000"),
        *("--pyargs", "attnspec.conformance.test_conformance"),
        f"--attn-backend={backend}",
        f"--attn-profile={settings.profile}",
        f"--attn-seed={settings.seed}",
        f"--attn-device={settings.device}",
        f"--attn-hang-after={settings.hang_after}",
        f"--attn-crumbs={folder}",
        *chosen,
        *([] if junit is None else [f"--junitxml={junit}"]),
    ]
