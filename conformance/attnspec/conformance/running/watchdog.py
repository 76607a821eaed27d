"""Isolation: a backend that crashes or hangs fails the law that was being checked, and the others are still judged.

Before every check a worker process writes a breadcrumb, the law and its input, into a memory-mapped file, and starts a
timer that ends the process. When a worker has died, the process that controls the run reads its breadcrumb, records the
law as failed, and has the case run again without it. (The kill matrix, whose backends are ours, has a timer for each
trial instead: ``running.trial_pool``.)
"""

import faulthandler
import json
import mmap
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.running.verdicts import case_of

INPUT_CHARACTERS = 2000
"""Characters of an input that a breadcrumb keeps."""

SIZE = 1024 + 12 * INPUT_CHARACTERS
"""Bytes of a breadcrumb's file: a character takes up to 12 in JSON."""

LENIENCE = 0.1
"""How much longer than allowed a check may take, so that a timer, which is a thread, serves more than one check."""

AT = " at the input "
"""What comes before the input in the message of an incident."""

STOP_AFTER = 3
"""Laws at which it has crashed or hung, at whatever dtype, after which an operation is given up."""


@dataclass(frozen=True)
class Breadcrumb:
    """The check that a worker was about to make: the law, its input, and the time."""

    law: str
    input: str
    at: float

    def encoded(self) -> bytes:
        """The breadcrumb as it stands in its file, ended by a zero byte."""
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
    """Where the worker that judges a case leaves its breadcrumb."""
    return folder / f"{case}.crumb"


def example_path(folder: Path, case: str, law: str = "") -> Path:
    """Where it leaves the input itself, and where that is kept once a law is blamed."""
    return folder / (f"{case}.{law}.example" if law else f"{case}.example")


def in_words(given: Any) -> str:
    """An input in a line; of an example its sizes, options and masks, numbers that are not normal, and its seed."""
    if not isinstance(given, Example):
        return str(given)
    kinds = {name: kind for name, kind in given.kinds.items() if kind != "normal"}
    chosen = {**given.sizes, **given.options, **given.masks, **kinds}
    words = [f"{name} = {value}" for name, value in chosen.items()]
    words += [f"batch {given.batch}"] if given.batch else []
    words += [f"without {', '.join(sorted(given.absent))}"] if given.absent else []
    return ", ".join([*words, f"seed {given.seed}"])


class Watchdog:
    """In a worker: called with a law and its input before every check, it leaves a breadcrumb and restarts the timer.

    A check that takes longer than ``hang_after`` seconds ends the process, at the latest after a tenth more. Where the
    backend has a process of its own there is no timer: ``began`` is called instead, and who waits for it keeps time.
    """

    def __init__(self, folder: Path, case: str, hang_after: float, began: Callable[[], None] | None = None) -> None:
        self.hang_after, self.began = hang_after, began
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
        if self.began is not None:
            self.began()
        elif not 0 <= now - self._timed < LENIENCE * self.hang_after:
            self._timed = now
            faulthandler.dump_traceback_later((1 + LENIENCE) * self.hang_after, exit=True, file=self._silent)

    @contextmanager
    def during(self, law: str, given: Any) -> Iterator[None]:
        """Leave a breadcrumb, and time what is done until it ends, and nothing after it."""
        self(law, given)
        try:
            yield
        finally:
            self._stop()
            self._timed = -inf

    def close(self) -> None:
        """Stop the timer."""
        self._stop()
        self._map.close()
        self._file.close()
        self._silent.close()

    def _stop(self) -> None:
        if self.began is None:
            faulthandler.cancel_dump_traceback_later()


class Incidents:
    """The crashes and hangs of a run, in files that the controlling process writes and workers read."""

    def __init__(self, folder: Path, hang_after: float) -> None:
        self.folder, self.hang_after = folder, hang_after

    def tried_again(self, operation: str, dtype: str, *, hung: bool | None = None) -> bool:
        """Whether a case may be run again as if nothing had happened: at the first hang of a law, as of a busy machine.

        It is taken down, so that the second one counts. ``hung`` says whether it was a hang, where that is known.
        """
        crumb, path = Breadcrumb.read(self._crumb(operation, dtype)), self.folder / f"{operation}-{dtype}.doubts"
        doubted = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if crumb is None or not (self._hung(crumb) if hung is None else hung) or crumb.law in doubted:
            return False
        path.write_text("\n".join([*doubted, crumb.law]), encoding="utf-8")
        self._crumb(operation, dtype).write_bytes(bytes(SIZE))
        return True

    def record(
        self, operation: str, dtype: str, *, hung: bool | None = None, left: Sequence[str] = ()
    ) -> Result | None:
        """Record the law at which the worker of a case died, or the process of its backend, and return its verdict.

        ``hung`` says whether it was a hang, where that is known, and ``left`` names processes that were left behind.
        None if no law can be blamed: the worker died before its first check, or at a law that is recorded already.
        """
        case = f"{operation}-{dtype}"
        crumb, recorded = Breadcrumb.read(self._crumb(operation, dtype)), self.verdicts(operation, dtype)
        if crumb is None or crumb.law in recorded:
            return None
        hung = self._hung(crumb) if hung is None else hung
        what = f"did not answer within {self.hang_after:g} s" if hung else "ended the process"
        message = f"the backend {what}{AT}{crumb.input}"
        message += f"; left behind, and ended: {', '.join(left)}" if left else ""
        reason = Reason.HUNG if hung else Reason.CRASHED
        result = Result(operation, crumb.law, dtype, Status.FAILED, reason, message)
        self._verdicts_path(case).write_text(
            json.dumps([r.as_json() for r in (*recorded.values(), result)]), encoding="utf-8"
        )
        self._crumb(operation, dtype).write_bytes(bytes(SIZE))
        if example_path(self.folder, case).exists():
            example_path(self.folder, case).replace(example_path(self.folder, case, crumb.law))
        with self._reasons_path(operation).open("a", encoding="utf-8") as f:
            f.write(f"{crumb.law} {reason}\n")
        return result

    def verdicts(self, operation: str, dtype: str) -> dict[str, Result]:
        """The verdicts on the laws of a case at which a worker died, by law."""
        path = self._verdicts_path(f"{operation}-{dtype}")
        if not path.exists():
            return {}
        return {r.law: r for r in map(Result.from_json, json.loads(path.read_text(encoding="utf-8")))}

    def examined(self, operation: str, dtype: str, law: str, found: Mapping[str, Any]) -> None:
        """Add a counterexample to a recorded verdict, and to its message how the process ended."""
        recorded = self.verdicts(operation, dtype)
        recorded[law] = replace(recorded[law], **found)
        text = json.dumps([r.as_json() for r in recorded.values()])
        self._verdicts_path(f"{operation}-{dtype}").write_text(text, encoding="utf-8")

    def given_up(self, operation: str) -> str | None:
        """Why an operation is given up, ``crashed`` or ``hung``; None if it is not."""
        path = self._reasons_path(operation)
        reasons = [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        return reasons[-1][1] if len({law for law, _ in reasons}) >= STOP_AFTER else None

    def _crumb(self, operation: str, dtype: str) -> Path:
        return breadcrumb_path(self.folder, f"{operation}-{dtype}")

    def _hung(self, crumb: Breadcrumb) -> bool:
        return time.time() - crumb.at >= 0.9 * self.hang_after

    def _verdicts_path(self, case: str) -> Path:
        return self.folder / f"{case}.incidents.json"

    def _reasons_path(self, operation: str) -> Path:
        return self.folder / f"{operation}.incidents"


class CrashHandler:
    """A plugin of the controlling process: it records the law at which a worker died, and has the case run again.

    The first hang of a law is not recorded.
    """

    def __init__(self, folder: Path, hang_after: float) -> None:
        self.incidents = Incidents(folder, hang_after)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Run a case again whose worker died at a law that can be named."""
        operation, _, dtype = case_of(crashitem).rpartition("-")
        if self.incidents.tried_again(operation, dtype) or self.incidents.record(operation, dtype) is not None:
            sched.mark_test_pending(crashitem)
            report.outcome = "rerun"  # type: ignore[assignment]  # as xdist's documentation says
