"""Running the suite for the command line: probe, workers, live progress, report."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.loading import BackendError
from attnspec.conformance.plugin import REPORTER, Reporter
from attnspec.conformance.results import Result
from attnspec.conformance.suite import Settings

PROBE_SECONDS = 120.0
"""How long the first import of a backend may take."""

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
        command = [sys.executable, "-m", "attnspec.conformance.probe", backend, device]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def close(self) -> None:
        """End the import if it is still under way."""
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.process.wait()

    def answer(self) -> dict[str, Any]:
        """The contract; :class:`BackendError` in one line if there is none."""
        try:
            out, err = self.process.communicate(timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise BackendError(
                f"backend {self.backend!r}: expected its import to end within {PROBE_SECONDS:g} s; it did not"
            ) from None
        lines = out.strip().splitlines()
        try:
            answer = json.loads(lines[-1])
        except (IndexError, json.JSONDecodeError):
            last = (err.strip().splitlines() or ["nothing on standard error"])[-1]
            raise BackendError(
                f"backend {self.backend!r}: its import ended the process with status {self.process.returncode}: {last}"
            ) from None
        if not isinstance(answer, dict) or "error" in answer:
            raise BackendError(str(answer["error"]))
        return answer


class Gate:
    """Holds the verdicts back until the backend is admitted. Workers start meanwhile, since that takes long."""

    def __init__(self, admitted: Callable[[], int], live: "Live") -> None:
        self.admitted, self.live = admitted, live
        self.refusal: BackendError | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Nothing is judged if the backend is refused."""
        try:
            self.live.expect(self.admitted())
        except BackendError as error:
            self.refusal = error
            raise pytest.exit.Exception("refused") from error
        return (yield)


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
    admitted: Callable[[], int],
) -> tuple[dict[str, list[Result]], bool]:
    """Judge in worker processes. The verdicts by case, and whether the run was broken off from the keyboard.

    ``admitted`` is called when the workers have been started: it returns how many cases there will be, or raises
    :class:`BackendError`, and then nothing is judged.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)
    for name in ONE_THREAD:
        os.environ[name] = "1"
    live = Live(console)
    gate = Gate(admitted, live)
    grabbed: list[pytest.Config] = []

    class Grab:
        def pytest_configure(self, config: pytest.Config) -> None:
            grabbed.append(config)

    with tempfile.TemporaryDirectory(prefix="attnspec-") as folder, live.bar:
        arguments = _arguments(backend, settings, folder, workers, junit)
        status = pytest.main(arguments, plugins=[Grab(), live, gate])
    if gate.refusal is not None:
        raise gate.refusal
    reporter: Any = grabbed[0].pluginmanager.getplugin(REPORTER) if grabbed else None
    reported = {} if reporter is None else reporter.results
    results = {case: [Result.from_json(r) for r in rs] for case, rs in reported.items()}
    return results, status == pytest.ExitCode.INTERRUPTED


def _arguments(backend: str, settings: Settings, folder: str, workers: int, junit: Path | None) -> list[str]:
    ini = Path(folder, "pytest.ini")
    ini.write_text("[pytest]\n")
    chosen = [f"--attn-operation={o}" for o in settings.operations]
    chosen += [f"--attn-law={x}" for x in settings.laws] + [f"--attn-dtype={d}" for d in settings.dtypes]
    return [
        *("-c", str(ini), "--rootdir", folder, "--import-mode=importlib", "-o", "consider_namespace_packages=true"),
        *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler"),
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
