"""After a crash: how a process ended, the smallest input that ends it, and a script that shows it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.isolation import POSSIBLE, end_of
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.remote.incidents import Incidents
from attnspec.conformance.running.post_mortem import examined
from attnspec.conformance.running.settings import Settings

BACKEND = """
import os, signal, time

import numpy as np

name = "crashing"


def dot_scores(query, key):
    if query.shape[-1] > 2 and key.shape[-2] > 4:
        {end}
    return query @ np.swapaxes(key, -1, -2)
"""

LARGE = Example({"n": 5, "m": 17, "d": 8}, batch=(2,), kept={"query": (True,), "key": (True,)}, seed=7)

needs_copies = pytest.mark.skipif(not POSSIBLE, reason="processes cannot be copied here")


@needs_copies
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: None, None),
        (lambda: 1 / 0, None),
        (lambda: os._exit(0), "the backend ended the process with status 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the backend ended the process by SIGKILL"),
        (lambda: time.sleep(60), "the backend did not answer within 0.5 s"),
    ],
)
def test_how_a_process_ended(work: Callable[[], Any], words: str | None) -> None:
    end = end_of(work, 0.5)
    assert (end and end.words) == words


def after(folder: Path, end: str, law: str, given: object, *, hung: bool = False) -> tuple[Incidents, Result]:
    """Examine a case after the backend's process ended at a law."""
    (folder / "crashing.py").write_text(BACKEND.format(end=end), encoding="utf-8")
    incidents = Incidents(1.0)
    incidents.begin("dot_scores", "float64", law, given)
    assert incidents.record("dot_scores", "float64", hung=hung) is not None
    case, settings = Case("dot_scores", "float64", (law,)), Settings(hang_after=1.0)
    found = examined(incidents, str(folder / "crashing.py"), case, settings)
    assert found == incidents.verdicts("dot_scores", "float64")
    return incidents, found[law]


def replayed(result: Result, folder: Path) -> subprocess.CompletedProcess[str]:
    """The snippet of a result, run."""
    assert result.counterexample is not None
    (folder / "snippet.py").write_text(result.counterexample["snippet"], encoding="utf-8")
    return subprocess.run([sys.executable, "snippet.py"], cwd=folder, capture_output=True, text=True, check=False)


@needs_copies
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os._exit(0)", "the backend ended the process with status 0"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "the backend ended the process by SIGABRT"),
    ],
)
def test_a_crash_has_the_smallest_input_and_a_script(tmp_path: Path, end: str, words: str) -> None:
    _, found = after(tmp_path, end, "operation.oracle", LARGE)
    assert found.message == words
    assert found.counterexample is not None
    query, key = (found.counterexample["arguments"][name] for name in ("query", "key"))
    assert (query, key) == ([[0.0] * 3], [[0.0] * 3] * 5)
    done = replayed(found, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert words in done.stdout


def test_a_hang_has_the_input_and_a_script_that_ends(tmp_path: Path) -> None:
    _, found = after(tmp_path, "time.sleep(600)", "operation.oracle", LARGE, hung=True)
    assert (found.reason, found.message) == ("hung", "the backend did not answer within 1 s")
    assert found.counterexample is not None
    assert len(found.counterexample["arguments"]["key"][0]) == 17
    done = replayed(found, tmp_path)
    assert done.returncode == 1
    assert "the backend did not answer within 1 s" in done.stdout


@pytest.mark.parametrize(("end", "given"), [("pass", LARGE), ("os._exit(1)", "reducing the counterexample")])
def test_what_does_not_crash_by_itself_keeps_its_message(tmp_path: Path, end: str, given: object) -> None:
    _, found = after(tmp_path, end, "operation.oracle", given)
    assert found.counterexample is None
    assert found.message.startswith("the backend ended the process at the input ")


def test_laws_that_were_not_judged_come_after_the_crash() -> None:
    def failed(law: str, message: str) -> Result:
        return Result("softmax", law, "float64", Status.FAILED, "crashed", message)

    crash, formula, other = (
        failed("operation.shape", "the backend ended the process at the input x"),
        failed("operation.oracle", f"{UNJUDGED}the operation was stopped"),
        failed("operation.rejection", f"{UNJUDGED}the operation was stopped"),
    )
    causes, following = by_cause([other, formula, crash])
    assert (causes + following)[0] == crash
