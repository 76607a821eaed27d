"""Verdicts of a case whose backend ends its process or hangs."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnspec import reference
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.incidents import INPUT_CHARACTERS, Incidents
from attnspec.conformance.running.isolated import Isolated
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.verdicts import CrashHandler

ORACLE, DTYPE = "operation.oracle", "operation.dtype"

INCIDENTS = (
    ("float64", ORACLE),
    ("float32", "operation.rejection"),
    ("bfloat16", "operation.independent-of-other-calls"),
    ("float64", "operation.shape"),
    ("float64", "operation.broadcast-equals-repeat"),
)
"""Dtypes and laws of incidents; the last is the third at float64."""


@pytest.fixture
def incidents() -> Incidents:
    return Incidents()


def record_crash(incidents: Incidents, law: str, example: object = "an input", dtype: str = "float64") -> Result | None:
    incidents.begin("dot_scores", dtype, law, example)
    return incidents.record("dot_scores", dtype, hung_after=None)


# Incidents ------------------------------------------------------------------------------------------------------------


def test_a_crash_is_recorded_with_its_input(incidents: Incidents) -> None:
    incidents.begin("dot_scores", "float64", "operation.shape", "one")
    result = record_crash(incidents, ORACLE, "another")
    message = "the backend ended the process at the input another"
    assert result == Result("dot_scores", ORACLE, "float64", Status.FAILED, "crashed", message)
    assert incidents.verdicts("dot_scores", "float64") == {ORACLE: result}
    assert incidents.verdicts("dot_scores", "float32") == {}


def test_a_hang_is_recorded_with_its_time_limit(incidents: Incidents) -> None:
    incidents.begin("dot_scores", "float64", ORACLE, "an input")
    result = incidents.record("dot_scores", "float64", hung_after=10.0)
    assert result is not None
    assert (result.reason, result.message) == ("hung", "the backend did not answer within 10 s at the input an input")


def test_a_message_describes_the_example(incidents: Incidents) -> None:
    sizes, batch = {"n": 0, "d": 16}, (4,)
    example = Example(
        sizes, batch, kinds={"query": "huge", "key": "normal"}, options={"causal": False}, masks={"mask": "nothing"},
        absent=frozenset({"bias"}), seed=7,
    )  # fmt: skip
    result = record_crash(incidents, ORACLE, example)
    assert result is not None
    assert result.message == (
        "the backend ended the process at the input n = 0, d = 16, causal = False, mask = nothing, query = huge, "
        "batch (4,), without bias, seed 7"
    )


def test_the_description_of_a_long_input_is_cut(incidents: Incidents) -> None:
    result = record_crash(incidents, ORACLE, "x" * 5 * INPUT_CHARACTERS)
    assert result is not None
    assert result.message.endswith(" x".ljust(INPUT_CHARACTERS + 1, "x"))


def test_a_law_is_tried_again_after_its_first_hang(incidents: Incidents) -> None:
    assert not incidents.retry_after_hang("dot_scores", "float64")
    incidents.begin("dot_scores", "float64", ORACLE, "an input")
    assert incidents.retry_after_hang("dot_scores", "float64")  # and forgets the check, so that nothing is recorded
    assert incidents.record("dot_scores", "float64", hung_after=10.0) is None
    incidents.begin("dot_scores", "float64", ORACLE, "an input")
    assert not incidents.retry_after_hang("dot_scores", "float64")
    assert incidents.record("dot_scores", "float64", hung_after=10.0) is not None


def test_nothing_is_recorded_before_the_first_check(incidents: Incidents) -> None:
    assert incidents.record("dot_scores", "float64", hung_after=None) is None
    incidents.begin("dot_scores", "float32", ORACLE, "an input")
    assert incidents.record("dot_scores", "float64", hung_after=None) is None
    assert incidents.verdicts("dot_scores", "float64") == {}


def test_an_incident_is_recorded_once(incidents: Incidents) -> None:
    assert record_crash(incidents, ORACLE) is not None
    assert incidents.record("dot_scores", "float64", hung_after=None) is None
    assert record_crash(incidents, ORACLE, "another input") is None
    assert record_crash(incidents, DTYPE, "another input") is not None
    assert list(incidents.verdicts("dot_scores", "float64")) == [ORACLE, DTYPE]


def test_incidents_at_three_laws_stop_an_operation_at_that_dtype_only(incidents: Incidents) -> None:
    for dtype, law in INCIDENTS:
        assert incidents.stop_reason("dot_scores", "float64") is None
        record_crash(incidents, law, dtype=dtype)
    assert incidents.stop_reason("dot_scores", "float64") == "crashed"
    assert incidents.stop_reason("dot_scores", "float32") is None
    assert incidents.stop_reason("softmax", "float64") is None


# The next run of the case ---------------------------------------------------------------------------------------------


def judge_again(incidents: Incidents, calls: list[Any], *laws: str) -> dict[str, Result]:
    """The results of a right backend that records its calls, after earlier incidents."""

    def dot_scores(query: Any, key: Any) -> Any:
        calls.append((query, key))
        return reference.dot_scores(query, key)

    host = SimpleNamespace(start_check=lambda: None, start_case=lambda: None)
    backend: Any = SimpleNamespace(name="counting", dot_scores=dot_scores, incidents=incidents, host=host)
    case = Case("dot_scores", "float64", laws)
    return {r.law: r for r in Isolated(backend, Contract.of(backend), case, Settings()).judged({})}


def test_a_law_that_crashed_is_not_checked_again_and_the_others_are(incidents: Incidents) -> None:
    crash = record_crash(incidents, ORACLE)
    calls: list[Any] = []
    results = judge_again(incidents, calls, ORACLE, DTYPE)
    assert results[ORACLE] == crash
    assert (results[DTYPE].status, results[DTYPE].examples > 0) == (Status.PASSED, True)
    assert calls
    calls.clear()
    assert judge_again(incidents, calls, ORACLE) == {ORACLE: crash}
    assert calls == []


def test_an_operation_that_was_given_up_is_not_called(incidents: Incidents) -> None:
    for dtype, law in INCIDENTS:
        record_crash(incidents, law, dtype=dtype)
    calls: list[Any] = []
    results = judge_again(incidents, calls, ORACLE, DTYPE)
    assert calls == []
    assert results[ORACLE] == incidents.verdicts("dot_scores", "float64")[ORACLE]
    assert (results[DTYPE].status, results[DTYPE].reason) == (Status.FAILED, "crashed")
    assert results[DTYPE].message == "not judged: the operation was stopped after it had crashed at 3 laws"


# In the process of the backend ----------------------------------------------------------------------------------------

CRASHING_BACKEND = """
import os, signal, time
import numpy as np

name = "ending"

def dot_scores(query, key):
    os.kill(os.getpid(), signal.SIGSEGV)

def scaled_dot_scores(query, key):
    time.sleep(600)

def softmax(scores, *, mask=None):
    return np.exp(scores)
"""


def test_in_process_crashes_and_hangs_lose_the_case_and_advise_isolated(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(CRASHING_BACKEND, encoding="utf-8")
    options = ("--in-process", "--law", ORACLE, "--dtype", "float64", "--hang-after", "3", "--json", "r.json")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "attnspec.conformance.cli", "check", "ending.py", "--workers", "1", *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (done.returncode, report["verdict"]) == (1, "violates"), done.stdout + done.stderr
    results = {r["operation"]: r for r in report["results"] if r["status"] != "not-provided"}
    assert {name: r["status"] for name, r in results.items()} == {
        "dot_scores": "lost",
        "scaled_dot_scores": "lost",
        "softmax": "failed",
    }
    hint = "(status 1 can mean that a check took more than 3 s): run with --isolated, which names the law and its input"
    assert results["dot_scores"]["message"] == f"the process that runs the backend was ended by SIGSEGV {hint}"
    assert results["scaled_dot_scores"]["message"] == f"the process that runs the backend ended with status 1 {hint}"
    assert "in scaled_dot_scores" in done.stderr, "no line says where it hangs"


def test_every_check_restarts_the_hang_timer() -> None:
    """No process ends: at 4 × 0.6 s of checks, 2.3 s after the timer stops, nor at a limit of 0, which disables it."""
    code = (
        "import time\nfrom attnspec.conformance.running.in_process import HangTimer\ntimer = HangTimer(2.0)\n"
        "for _ in range(4):\n    timer('operation.oracle', '')\n    time.sleep(0.6)\ntimer.stop()\ntime.sleep(2.3)\n"
        "HangTimer(0)('operation.oracle', '')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# Workers that have ended ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "name"), [(-9, "SIGKILL (out of memory?)"), (-40, "signal 40")])
def test_a_case_whose_judge_was_killed_is_judged_again_and_named(status: int, name: str) -> None:
    repeated: list[str] = []
    handler = CrashHandler(20.0, in_process=False, repeated=repeated)
    scheduler = SimpleNamespace(mark_test_pending=lambda item: None)
    node = SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(wait=lambda: status)))
    for _ in range(3):
        report: Any = SimpleNamespace(outcome="failed", node=node)
        handler.pytest_handlecrashitem("test_conformance.py::test_conforms[dot_scores-float64]", report, scheduler)
    message = f"dot_scores-float64 was judged again: the judge's own process was ended by {name}"
    assert repeated == [message] * 2
    assert report.longrepr.startswith(f"the judge's own process was ended by {name}")
