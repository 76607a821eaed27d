"""Running the suite for the command line: probe, workers, live progress, report."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.subject import Contract
from attnspec.conformance.plugin import REPORTER
from attnspec.conformance.running.loading import BackendError
from attnspec.conformance.running.progress import PATIENCE, Live, Startup
from attnspec.conformance.running.suite import Settings

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Processes do not look for modules in the current folder first, where a file may have the name of a standard module.

Backends there are found all the same, after everything else.
"""


class Probe:
    """The first import of a backend, under way in another process while this one makes its own imports."""

    def __init__(self, backend: str, device: str) -> None:
        self.backend = backend
        self._folder = tempfile.TemporaryDirectory(prefix="attnspec-probe-")
        self._answer, self._printed = (Path(self._folder.name, name) for name in ("answer.json", "printed.txt"))
        command = [sys.executable, "-m", "attnspec.conformance.running.probe", backend, device, str(self._answer)]
        with self._printed.open("wb") as printed:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env={**os.environ, **SAFE_PATH}
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
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise BackendError(
                f"backend {self.backend!r}: expected its import to end within {PATIENCE:g} s; it did not"
            ) from None
        if not self._answer.exists():
            printed = self._printed.read_text(errors="replace").strip().splitlines()
            last = printed[-1] if printed else "nothing was printed"
            raise BackendError(f"backend {self.backend!r}: its import ended the process with status {status}: {last}")
        answer: dict[str, Any] = json.loads(self._answer.read_text())
        if "error" in answer:
            raise BackendError(str(answer["error"]))
        return answer


@dataclass(frozen=True)
class Admission:
    """A backend that can be judged: its contract, and the cases to judge."""

    contract: Contract
    cases: Sequence[Case]


@dataclass(frozen=True)
class Run:
    """What became of a run: verdicts by case, why cases have none, JUnit XML, and whether the user broke it off."""

    admission: Admission
    results: Mapping[str, list[Result]]
    causes: Mapping[str, str]
    junit: str | None
    interrupted: bool


class Gate:
    """Holds the verdicts back until the backend is admitted. Workers start meanwhile, since that takes long."""

    def __init__(self, admitted: Callable[[], Admission], live: Live) -> None:
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


def run(
    backend: str,
    settings: Settings,
    *,
    workers: int,
    console: Console,
    admitted: Callable[[], Admission],
) -> Run:
    """Judge in worker processes.

    ``admitted`` is called when the workers have been started; it may raise :class:`BackendError`, and then nothing is
    judged. So does this function where the workers cannot work.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(SAFE_PATH, **dict.fromkeys(ONE_THREAD, "1"))
    live, startup = Live(console), Startup()
    gate = Gate(admitted, live)
    grabbed: list[pytest.Config] = []

    class Grab:
        def pytest_configure(self, config: pytest.Config) -> None:
            grabbed.append(config)

    with tempfile.TemporaryDirectory(prefix="attnspec-") as folder, live.bar:
        page = Path(folder, "junit.xml")
        arguments = _arguments(backend, settings, folder, workers, page)
        status = pytest.main(arguments, plugins=[Grab(), live, gate, startup])
        junit = page.read_text(encoding="utf-8") if page.exists() else None
    if gate.refusal is not None:
        raise gate.refusal
    reporter: Any = grabbed[0].pluginmanager.getplugin(REPORTER) if grabbed else None
    if gate.admission is None or reporter is None or (startup.trouble is not None and not live.done):
        raise BackendError(
            f"backend {backend!r}: nothing was judged: {startup.trouble or f'pytest ended with {status}'}"
        )
    results = {case: [Result.from_json(r) for r in rs] for case, rs in reporter.results.items()}
    causes = dict(reporter.causes)
    if startup.trouble is not None:
        causes |= {case.id: startup.trouble for case in gate.admission.cases if case.id not in causes}
    interrupted = status == pytest.ExitCode.INTERRUPTED and startup.trouble is None
    return Run(gate.admission, results, causes, junit, interrupted)


def _arguments(backend: str, settings: Settings, folder: str, workers: int, junit: Path) -> list[str]:
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
        f"--junitxml={junit}",
        *chosen,
    ]
