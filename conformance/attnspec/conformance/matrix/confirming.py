"""Confirmation of violations by programs without attnspec, which run before the matrix lists them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnspec.conformance.judging.results import Result
from attnspec.conformance.judging.violation import Reason
from attnspec.conformance.matrix.cells import Confirmation
from attnspec.conformance.matrix.program import SAYS
from attnspec.conformance.matrix.rows import Probed
from attnspec.conformance.remote.environment import ONE_THREAD, SAFE_PATH
from attnspec.conformance.remote.folder import TemporaryFolder
from attnspec.conformance.running.settings import Settings

SECONDS = 600.0
"""Seconds after which the search for a program ends."""

ENDED = (Reason.CRASHED, Reason.HUNG)


@dataclass(frozen=True)
class Told:
    """Outcome of a confirmation."""

    confirmation: Confirmation
    why: str = ""
    program: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


def confirmed(result: Result, row: Probed, settings: Settings, title: str) -> Told:
    """Write a program that shows a violation with the library alone, and run it."""
    known = result.counterexample
    if known is None and result.reason != Reason.CRASHED:
        return Told(Confirmation.NO_PROGRAM, "no input is known that shows it")
    if not row.plain:
        return Told(Confirmation.NO_PROGRAM, "the row has no program of its own")
    question = {
        "origin": row.origin,
        "law": result.law,
        "operation": result.operation,
        "dtype": result.dtype,
        "reason": str(result.reason),
        "device": settings.device,
        "title": title,
    }
    with TemporaryFolder() as name:
        folder = Path(name)
        if known is None:
            answer = _ended(folder, {**question, "profile": settings.profile, "seed": settings.seed})
        else:
            answer = _asked(folder, {**question, "snippet": known["snippet"]})
        if "program" not in answer:
            return Told(Confirmation.NO_PROGRAM, str(answer["why"]))
        program = str(answer["program"])
        (folder / "program.py").write_text(program, encoding="utf-8")
        why = _run(folder, result.reason in ENDED, row.hang_after)
    confirmation = Confirmation.NOT_CONFIRMED if why else Confirmation.CONFIRMED
    return Told(confirmation, why, program, answer.get("arguments", {}))


def _ended(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the program of the call that ends a process, which stores each call first."""
    last = folder / "last.pickle"
    answer = _asked(folder, {**question, "last": str(last)})
    if answer or not last.exists():
        return answer or {"why": "no call was made before the process ended"}
    return _asked(folder, {**question, "called": str(last)})


def _asked(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the program, or why there is none, from the process that replays the law."""
    asked, answer = folder / "question.json", folder / "answer.json"
    asked.write_text(json.dumps(question), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.matrix.tracing", str(asked), str(answer)]
    done = _process(command, folder, SECONDS)
    if not answer.exists() and "last" in question and done is not None and done.returncode < 0:
        return {}
    if not answer.exists():
        how = "did not end" if done is None else f"ended with status {done.returncode}"
        return {"why": f"the process that looks for the calls {how}"}
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def _run(folder: Path, ends: bool, hang_after: float) -> str:
    """Return "" if the program shows the violation (``ends``: by ending), else what it did."""
    done = _process([sys.executable, "program.py"], folder, 3 * hang_after if ends else SECONDS)
    if done is None:
        return "" if ends else f"the program did not end within {SECONDS:g} s"
    if ends:
        return "" if done.returncode < 0 else f"the program ended with status {done.returncode}"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == 1 and last.startswith(SAYS):
        return ""
    said = last if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
    return f"the program ended with status {done.returncode}: {said}"


def _process(command: list[str], folder: Path, seconds: float) -> "subprocess.CompletedProcess[str] | None":
    """Run a process to its end; return None if it takes longer than ``seconds``."""
    environment = {**os.environ, **ONE_THREAD, **SAFE_PATH}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
