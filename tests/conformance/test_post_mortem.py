"""Crashes: the end of the process, the smallest input, and a script that repeats it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.causes import by_cause
from attnspec.conformance.judging.isolation import CAN_FORK, abnormal_end
from attnspec.conformance.judging.results import UNJUDGED, Result, Status
from attnspec.conformance.judging.subject import Subject
from attnspec.conformance.laws import CHECKS
from attnspec.conformance.remote.incidents import Incidents
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.running.post_mortem import with_crashing_inputs
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.trial_call import end_in_new_process
from attnspec.spec import OPERATIONS

BACKEND = """
import os, signal, time

import numpy as np

name = "crashing"


def dot_scores(query, key):
    if query.shape[-1] > 2 and key.shape[-2] > 4:
        {end}
    return query @ np.swapaxes(key, -1, -2)
"""

# More than the 3 features and 5 keys from which ``BACKEND`` crashes, so that there is a smaller input to find.
LARGE = Example({"n": 5, "m": 17, "d": 8}, batch=(2,), kept={"query": (True,), "key": (True,)}, seed=7)

needs_copies = pytest.mark.skipif(not CAN_FORK, reason="processes cannot be copied here")


@needs_copies
@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: None, None),
        (lambda: 1 / 0, None),
        (lambda: os._exit(0), "the backend ended the process with status 0"),
        (lambda: os._exit(113), "the backend ended the process with status 113"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "the backend ended the process by SIGKILL"),
        (lambda: os.kill(os.getpid(), 40), "the backend ended the process by signal 40"),
        (lambda: time.sleep(60), "the backend did not answer within 0.5 s"),
    ],
)
def test_the_end_of_a_process_is_described(work: Callable[[], Any], message: str | None) -> None:
    end = abnormal_end(work, 0.5)
    assert (end and end.description) == message


def examine_crash(
    folder: Path, end: str, law: str, example: object, *, hung_after: float | None = None, more: str = ""
) -> tuple[Incidents, Result]:
    """Incidents and the examined result of a case whose backend's process ended at a law."""
    (folder / "crashing.py").write_text(BACKEND.format(end=end) + more, encoding="utf-8")
    incidents = Incidents()
    incidents.begin("dot_scores", "float64", law, example)
    assert incidents.record("dot_scores", "float64", hung_after=hung_after) is not None
    case, settings = Case("dot_scores", "float64", (law,)), Settings(hang_after=1.0)
    results = with_crashing_inputs(incidents, str(folder / "crashing.py"), case, settings)
    assert results == incidents.verdicts("dot_scores", "float64")
    return incidents, results[law]


def run_snippet(result: Result, folder: Path) -> subprocess.CompletedProcess[str]:
    assert result.counterexample is not None
    (folder / "snippet.py").write_text(result.counterexample["snippet"], encoding="utf-8")
    return subprocess.run([sys.executable, "snippet.py"], cwd=folder, capture_output=True, text=True, check=False)


@needs_copies
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os._exit(0)", "the backend ended the process with status 0"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "the backend ended the process by SIGABRT"),
    ],
)
def test_a_crash_has_the_smallest_input_and_a_script(tmp_path: Path, end: str, message: str) -> None:
    _, result = examine_crash(tmp_path, end, "operation.oracle", LARGE)
    assert result.message == message
    assert result.counterexample is not None
    query, key = (result.counterexample["arguments"][name] for name in ("query", "key"))
    assert (query, key) == ([[0.0] * 3], [[0.0] * 3] * 5)
    done = run_snippet(result, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert message in done.stdout


NO_FORK = """
limits = {"devices": ("cuda",)}
process = os.getpid()

def from_numpy(x, *, device):
    if os.getpid() != process:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    return x.copy()
"""
"""Conversion that fails in forks of the importing process, as on CUDA."""


@pytest.mark.parametrize(("m", "message"), [(5, "the backend ended the process with status 0"), (4, None)])
def test_a_new_process_tells_crashes_from_results(tmp_path: Path, m: int, message: str | None) -> None:
    file = str(tmp_path / "crashing.py")
    Path(file).write_text(BACKEND.format(end="os._exit(0)") + NO_FORK, encoding="utf-8")
    subject = Subject(None, contract_of(load(file), file, "cuda"), OPERATIONS["dot_scores"], "float64", "cuda")
    arguments = subject.arguments(Example({"n": 1, "m": m, "d": 3}))
    end = end_in_new_process(subject, CHECKS["operation.oracle"], arguments, 0, 20.0)
    assert (end and end.description) == message


@pytest.mark.slow
def test_a_crash_on_a_device_that_forks_cannot_use_has_the_smallest_input_and_a_script(tmp_path: Path) -> None:
    zeros = Example({"n": 2, "m": 6, "d": 3}, kinds={"query": "zeros", "key": "zeros"})
    _, result = examine_crash(tmp_path, "os._exit(0)", "operation.oracle", zeros, more=NO_FORK)
    assert result.message == "the backend ended the process with status 0"
    assert result.counterexample is not None
    assert [np.shape(x) for x in result.counterexample["arguments"].values()] == [(1, 3), (5, 3)]
    done = run_snippet(result, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert result.message in done.stdout


@pytest.mark.slow
def test_a_crash_after_a_declared_compilation_has_an_input(tmp_path: Path) -> None:
    more = 'limits = {"new_shapes": "expensive"}'
    _, result = examine_crash(tmp_path, "time.sleep(2.5); os._exit(0)", "operation.oracle", LARGE, more=more)
    assert result.message == "the backend ended the process with status 0"
    assert result.counterexample is not None


def test_a_hang_has_the_input_and_a_script_that_ends(tmp_path: Path) -> None:
    _, result = examine_crash(tmp_path, "time.sleep(600)", "operation.oracle", LARGE, hung_after=2.0)
    assert (result.reason, result.message) == ("hung", "the backend did not answer within 2 s")
    assert result.counterexample is not None
    assert len(result.counterexample["arguments"]["key"][0]) == 17
    done = run_snippet(result, tmp_path)
    assert done.returncode == 1
    assert "the backend did not answer within 2 s" in done.stdout


# A backend that no longer crashes; a stage, which is no input that a script could repeat.
@pytest.mark.parametrize(("end", "example"), [("pass", LARGE), ("os._exit(1)", "reducing the counterexample")])
def test_a_crash_that_does_not_repeat_keeps_its_message(tmp_path: Path, end: str, example: object) -> None:
    _, result = examine_crash(tmp_path, end, "operation.oracle", example)
    assert result.counterexample is None
    assert result.message.startswith("the backend ended the process at the input ")


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
