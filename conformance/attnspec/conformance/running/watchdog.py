"""Isolation: a backend that crashes or hangs fails the law that was being checked, and the others are still judged.

A backend with a process of its own cannot end the process that judges it, whose memory holds the current check and all
verdicts: no file of the judge is believed.

With ``--in-process`` the worker runs the backend and dies with it. Before every check it writes a breadcrumb, the law
and its input, into a memory-mapped file, and starts a timer that ends the process. When a worker has died, the process
that controls the run reads its breadcrumb, records the law as failed, and has the case run again without it. (The kill
matrix, whose backends are ours, has a timer for each trial instead: ``running.trial_pool``.)
"""

import faulthandler
import json
import mmap
import os
import pickle
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.judging.results import JUDGE_LOST, Result
from attnspec.conformance.remote.incidents import INPUT_CHARACTERS, Incidents, in_words
from attnspec.conformance.running.verdicts import case_of

SIZE = 1024 + 12 * INPUT_CHARACTERS
"""Bytes of a breadcrumb's file: a character takes up to 12 in JSON."""

LENIENCE = 0.1
"""Fraction by which a check may exceed its time. Checks share a timer, which is a thread and slow to start."""

MAX_AGAIN = 2
"""Times that a case is judged again after its judge was killed."""

KILLED = f"{JUDGE_LOST} {{how}}, each time of {MAX_AGAIN + 1}: nothing is known of the backend"
"""Message of a case whose judge was killed each time."""


@dataclass(frozen=True)
class Breadcrumb:
    """The check that a worker was about to make: the law, its input, and the time."""

    law: str
    input: str
    at: float

    def encoded(self) -> bytes:
        """The bytes of the breadcrumb in its file, which end with a zero."""
        return json.dumps(vars(self)).encode() + b"\0"

    @classmethod
    def read(cls, path: Path) -> "Breadcrumb | None":
        """The breadcrumb in a file; None if there is none, or only a part of one."""
        written, end, _ = path.read_bytes().partition(b"\0") if path.exists() else (b"", b"", b"")
        try:
            return cls(**json.loads(written)) if written and end else None
        except (ValueError, TypeError):
            # The process died while it wrote.
            return None


def breadcrumb_path(folder: Path, case: str) -> Path:
    """Path of the breadcrumb of a case."""
    return folder / f"{case}.crumb"


def example_path(folder: Path, case: str, law: str = "") -> Path:
    """Path of the input that is being checked, or with ``law`` of the input at which that law was blamed."""
    return folder / (f"{case}.{law}.example" if law else f"{case}.example")


class Watchdog:
    """In a worker: called with a law and its input before every check, it leaves a breadcrumb and restarts the timer.

    A check that takes longer than ``hang_after`` seconds ends the process, at the latest after a tenth more.
    """

    def __init__(self, folder: Path, case: str, hang_after: float) -> None:
        self.hang_after = hang_after
        path = breadcrumb_path(folder, case)
        path.write_bytes(bytes(SIZE))
        self._example = example_path(folder, case)
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), SIZE)
        self._silent = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - faulthandler needs a file that stays open
        self._given, self._text, self._timed = object(), "", -inf

    def __call__(self, law: str, given: Any) -> None:
        """Leave a breadcrumb, and restart the timer unless it has just been started."""
        if given is not self._given:  # an input is printed once for all laws
            self._given, self._text = given, in_words(given)[:INPUT_CHARACTERS]
            self._example.write_bytes(pickle.dumps(given))
        now = time.time()
        written = Breadcrumb(law, self._text, now).encoded()
        self._map[: len(written)] = written
        if not 0 <= now - self._timed < LENIENCE * self.hang_after:
            self._timed = now
            faulthandler.dump_traceback_later((1 + LENIENCE) * self.hang_after, exit=True, file=self._silent)

    @contextmanager
    def during(self, law: str, given: Any) -> Iterator[None]:
        """Leave a breadcrumb, and time what is done until it ends, and nothing after it."""
        self(law, given)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._timed = -inf

    def close(self) -> None:
        """Stop the timer."""
        faulthandler.cancel_dump_traceback_later()
        self._map.close()
        self._file.close()
        self._silent.close()


class FileIncidents(Incidents):
    """With ``--in-process``: incidents in files that the controlling process writes and workers read."""

    def __init__(self, folder: Path, hang_after: float) -> None:
        super().__init__(hang_after)
        self.folder = folder

    def verdicts(self, operation: str, dtype: str) -> dict[str, Result]:
        """The verdicts on the laws of a case at which a worker died, by law."""
        path = self._verdicts_path(f"{operation}-{dtype}")
        if not path.exists():
            return {}
        return {r.law: r for r in map(Result.from_json, json.loads(path.read_text(encoding="utf-8")))}

    def input_of(self, operation: str, dtype: str, law: str) -> object:
        """The input at which a law was blamed. It is given once, and None afterwards."""
        path = example_path(self.folder, f"{operation}-{dtype}", law)
        if not path.exists():
            return None
        given: object = pickle.loads(path.read_bytes())
        path.unlink()
        return given

    def _check_of(self, case: str) -> tuple[str | None, str]:
        crumb = Breadcrumb.read(breadcrumb_path(self.folder, case))
        return (None, "") if crumb is None else (crumb.law, crumb.input)

    def _was_hang(self, case: str, hung: bool | None) -> bool:
        crumb = Breadcrumb.read(breadcrumb_path(self.folder, case))
        return crumb is not None and time.time() - crumb.at >= 0.9 * self.hang_after

    def _forget(self, case: str) -> None:
        breadcrumb_path(self.folder, case).write_bytes(bytes(SIZE))

    def _doubted(self, case: str) -> set[tuple[str, str]]:
        path = self.folder / f"{case}.doubts"
        return {(case, law) for law in path.read_text(encoding="utf-8").split()} if path.exists() else set()

    def _doubt(self, case: str, law: str) -> None:
        with (self.folder / f"{case}.doubts").open("a", encoding="utf-8") as f:
            f.write(f"{law}\n")

    def _store(self, result: Result) -> None:
        recorded = {**self.verdicts(result.operation, result.dtype), result.law: result}
        text = json.dumps([r.as_json() for r in recorded.values()])
        self._verdicts_path(f"{result.operation}-{result.dtype}").write_text(text, encoding="utf-8")

    def _keep_input(self, case: str, law: str) -> None:
        if example_path(self.folder, case).exists():
            example_path(self.folder, case).replace(example_path(self.folder, case, law))

    def _verdicts_path(self, case: str) -> Path:
        return self.folder / f"{case}.incidents.json"


class CrashHandler:
    """Plugin of the controlling process that runs a case again after its worker died.

    With ``--in-process`` the worker ran the backend. The law at which it died is recorded, unless it is its first hang.
    Otherwise the worker is a judge, and the backend is not blamed: the case is judged again, twice at most, and
    ``repeated`` says so.
    """

    def __init__(
        self, folder: Path, hang_after: float, *, in_process: bool = True, repeated: list[str] | None = None
    ) -> None:
        self.incidents = FileIncidents(folder, hang_after)
        self.in_process = in_process
        self._repeated = [] if repeated is None else repeated
        self._again: dict[str, int] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Run a case again whose worker died."""
        if not self.in_process:
            self._again[crashitem] = self._again.get(crashitem, 0) + 1
            again = self._again[crashitem] <= MAX_AGAIN
            how = _how_it_ended(getattr(report, "node", None))
            report.longrepr = KILLED.format(how=how)
            if again:
                self._repeated.append(f"{case_of(crashitem)} was judged again: {JUDGE_LOST} {how}")
        else:
            operation, _, dtype = case_of(crashitem).rpartition("-")
            again = self.incidents.tried_again(operation, dtype)
            again = again or self.incidents.record(operation, dtype) is not None
        if again:
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"  # type: ignore[assignment]  # as xdist's documentation says


def _how_it_ended(node: Any) -> str:
    """How the process of a worker of pytest-xdist ended."""
    status = None if node is None else node.gateway._io.wait()
    if status is None or status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
