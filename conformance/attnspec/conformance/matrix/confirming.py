"""Confirmation of violations, by running programs that show them without attnspec."""

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
from attnspec.conformance.matrix.program import VIOLATES_PREFIX
from attnspec.conformance.matrix.rows import ProbedRow
from attnspec.conformance.remote.environment import ONE_THREAD, SAFE_PATH
from attnspec.conformance.remote.folder import TemporaryFolder
from attnspec.conformance.running.settings import Settings

SECONDS = 600.0
"""Seconds after which a search for a program, or a program, is ended."""

ENDED = (Reason.CRASHED, Reason.HUNG)
"""Violations that a program shows by being ended by a signal, or by not ending."""


@dataclass(frozen=True)
class ConfirmationResult:
    """Outcome of a confirmation, with the program and its arguments; ``why`` is the reason of a failure."""

    confirmation: Confirmation
    why: str = ""
    program: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


def confirm(result: Result, row: ProbedRow, settings: Settings, title: str) -> ConfirmationResult:
    """Write and run a program that shows a violation with the library alone. Return the outcome."""
    counterexample = result.counterexample
    if counterexample is None and result.reason != Reason.CRASHED:
        return ConfirmationResult(Confirmation.NO_PROGRAM, "no input is known that shows it")
    if not row.plain:
        return ConfirmationResult(Confirmation.NO_PROGRAM, "the row has no source for one")
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
        if counterexample is None:
            answer = _answer_for_ending_call(folder, {**question, "profile": settings.profile, "seed": settings.seed})
        else:
            answer = _answer_to(folder, {**question, "snippet": counterexample["snippet"]})
        if "program" not in answer:
            return ConfirmationResult(Confirmation.NO_PROGRAM, str(answer["why"]))
        program = str(answer["program"])
        (folder / "program.py").write_text(program, encoding="utf-8")
        why = _run(folder, result.reason in ENDED, row.hang_after)
    confirmation = Confirmation.NOT_CONFIRMED if why else Confirmation.CONFIRMED
    return ConfirmationResult(confirmation, why, program, answer.get("arguments", {}))


def _answer_for_ending_call(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the program of a call that ends its process.

    The process that replays the law stores each call in a file first. A second one makes the program of the last call.
    """
    last = folder / "last.pickle"
    answer = _answer_to(folder, {**question, "last": str(last)})
    if answer or not last.exists():
        return answer or {"why": "the process ended before it called the library"}
    return _answer_to(folder, {**question, "called": str(last)})


def _answer_to(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Return the program, or why there is none, from a process that replays the law; empty if a call ended it."""
    question_file, answer = folder / "question.json", folder / "answer.json"
    question_file.write_text(json.dumps(question), encoding="utf-8")
    command = [sys.executable, "-m", "attnspec.conformance.matrix.tracing", str(question_file), str(answer)]
    process = _process(command, folder, SECONDS)
    if answer.exists():
        return dict(json.loads(answer.read_text(encoding="utf-8")))
    if "last" in question and process is not None and process.returncode < 0:
        return {}
    ending = f"did not end within {SECONDS:g} s" if process is None else f"ended with status {process.returncode}"
    return {"why": f"the process that searches for the call {ending}"}


def _run(folder: Path, ends: bool, hang_after: float) -> str:
    """Return "" if the program shows the violation, else what it did instead.

    With ``ends`` it shows the violation if a signal ends it, or if it does not end in time.
    """
    process = _process([sys.executable, "program.py"], folder, 3 * hang_after if ends else SECONDS)
    if process is None:
        return "" if ends else f"the program did not end within {SECONDS:g} s"
    status = process.returncode
    if ends:
        return "" if status < 0 else f"the program ended with status {status}"
    last = (process.stdout.strip().splitlines() or [""])[-1]
    if status == 1 and last.startswith(VIOLATES_PREFIX):
        return ""
    output = last if status == 0 else (process.stderr.strip().splitlines() or ["nothing was printed"])[-1]
    return f"the program ended with status {status}: {output}"


def _process(command: list[str], folder: Path, seconds: float) -> "subprocess.CompletedProcess[str] | None":
    environment = {**os.environ, **ONE_THREAD, **SAFE_PATH}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
