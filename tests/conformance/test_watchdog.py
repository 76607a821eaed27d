"""Isolation: breadcrumbs, the watchdog, and what becomes of the laws at which a worker dies."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.inputs.examples import Example
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.incidents import INPUT_CHARACTERS
from attnspec.conformance.running import watchdog
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case
from attnspec.conformance.running.watchdog import (
    SIZE,
    Breadcrumb,
    CrashHandler,
    FileIncidents,
    Watchdog,
    breadcrumb_path,
)

PATIENT = 1000.0
"""Seconds after which none of these checks counts as hung."""

ORACLE, DTYPE = "operation.oracle", "operation.dtype"

STOPPING = (
    ("float64", ORACLE),
    ("float32", "operation.rejection"),
    ("bfloat16", "operation.no-memory"),
    ("float64", "operation.shape"),
    ("float64", "operation.broadcasting"),
)
"""Incidents at three laws of one dtype, and at one each of two others."""


def check(folder: Path, law: str, given: object, case: str = "dot_scores-float64") -> None:
    """What a worker leaves behind that dies while it checks a law."""
    watchdog = Watchdog(folder, case, PATIENT)
    watchdog(law, given)
    watchdog.close()


def worker(folder: Path, code: str, hang_after: float = PATIENT) -> subprocess.CompletedProcess[str]:
    """A process with a watchdog."""
    head = (
        "import os, signal, time\nfrom pathlib import Path\n"
        "from attnspec.conformance.running.watchdog import Watchdog\n"
        f"watchdog = Watchdog(Path({str(folder)!r}), 'dot_scores-float64', {hang_after})\n"
    )
    command = [sys.executable, "-c", head + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# Breadcrumbs ----------------------------------------------------------------------------------------------------------


def test_a_breadcrumb_is_read_as_it_was_written(tmp_path: Path) -> None:
    watchdog = Watchdog(tmp_path, "softmax-float32", PATIENT)
    path = breadcrumb_path(tmp_path, "softmax-float32")
    watchdog(ORACLE, "a long input, " * 20)
    watchdog(DTYPE, {"n": 3})
    crumb = Breadcrumb.read(path)
    watchdog.close()
    assert crumb is not None
    assert (crumb.law, crumb.input) == (DTYPE, "{'n': 3}")
    assert crumb == Breadcrumb.read(path)


@pytest.mark.parametrize("character", ["x", "é", "\0", '"', "\\", "\n", "😀", "\udc80"])
def test_an_input_of_any_length_and_alphabet_leaves_a_whole_breadcrumb(tmp_path: Path, character: str) -> None:
    check(tmp_path, ORACLE, character * 5 * INPUT_CHARACTERS)
    path = breadcrumb_path(tmp_path, "dot_scores-float64")
    crumb = Breadcrumb.read(path)
    assert crumb is not None
    assert (crumb.law, crumb.input) == (ORACLE, character * INPUT_CHARACTERS)
    assert path.stat().st_size == SIZE


WHOLE = Breadcrumb(ORACLE, "an input", 0.0).encoded()
BROKEN = {
    "empty": b"",
    "zeros": bytes(SIZE),
    "half": WHOLE[: len(WHOLE) // 2],
    "half of it over an older one": WHOLE[:20] + b'": "operation.dtype", "input": "x", "at": 1.0}\0',
    "without an end": WHOLE[:-1],
    "cut and ended": WHOLE[:20] + b"\0",
    "no UTF-8": b'{"law": "\xff"}\0',
    "no object": b"[1, 2]\0",
    "another object": b'{"law": "operation.oracle"}\0',
}


@pytest.mark.parametrize("written", BROKEN.values(), ids=BROKEN)
def test_a_broken_breadcrumb_blames_nobody(tmp_path: Path, written: bytes) -> None:
    breadcrumb_path(tmp_path, "dot_scores-float64").write_bytes(written)
    incidents = FileIncidents(tmp_path, PATIENT)
    assert incidents.record("dot_scores", "float64") is None
    assert incidents.verdicts("dot_scores", "float64") == {}
    assert incidents.given_up("dot_scores", "float64") is None


# The watchdog ---------------------------------------------------------------------------------------------------------


def test_the_watchdog_ends_a_process_that_hangs(tmp_path: Path) -> None:
    done = worker(tmp_path, "watchdog('operation.oracle', 'an input')\ntime.sleep(50)\n", hang_after=0.5)
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == ("", "")
    found = FileIncidents(tmp_path, 0.5).record("dot_scores", "float64")
    assert found is not None
    assert found.reason == "hung"


def test_every_check_restarts_the_timer_and_closing_stops_it(tmp_path: Path) -> None:
    code = "for _ in range(4):\n    watchdog('operation.oracle', '')\n    time.sleep(0.6)\n"
    done = worker(tmp_path, code + "watchdog.close()\ntime.sleep(2.1)\n", hang_after=2.0)
    assert done.returncode == 0, done.stderr


# Incidents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_crash_is_named(tmp_path: Path, end: str) -> None:
    worker(tmp_path, f"watchdog('operation.shape', 'one')\nwatchdog('operation.oracle', 'another')\n{end}\n")
    incidents = FileIncidents(tmp_path, PATIENT)
    found = incidents.record("dot_scores", "float64")
    message = "the backend ended the process at the input another"
    assert found == Result("dot_scores", ORACLE, "float64", Status.FAILED, "crashed", message)
    assert incidents.verdicts("dot_scores", "float64") == {ORACLE: found}
    assert incidents.verdicts("dot_scores", "float32") == {}


def test_an_example_is_said_in_words(tmp_path: Path) -> None:
    sizes, batch = {"n": 0, "d": 16}, (4,)
    example = Example(
        sizes, batch, kinds={"query": "huge", "key": "normal"}, options={"causal": False}, masks={"mask": "nothing"},
        absent=frozenset({"bias"}), seed=7,
    )  # fmt: skip
    check(tmp_path, ORACLE, example)
    found = FileIncidents(tmp_path, PATIENT).record("dot_scores", "float64")
    assert found is not None
    assert found.message == (
        "the backend ended the process at the input n = 0, d = 16, causal = False, mask = nothing, query = huge, "
        "batch (4,), without bias, seed 7"
    )


@pytest.mark.parametrize(("seconds", "reason"), [(8.9, "crashed"), (9.1, "hung")])
def test_a_hang_is_told_from_a_crash_by_the_time_that_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, reason: str
) -> None:
    now = 1000.0
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(time=lambda: now))
    check(tmp_path, ORACLE, "an input")
    now += seconds
    found = FileIncidents(tmp_path, 10.0).record("dot_scores", "float64")
    assert found is not None
    assert found.reason == reason
    assert ("did not answer within 10 s at the input an input" in found.message) == (reason == "hung")


def test_the_first_hang_of_a_law_is_tried_again_and_a_crash_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, incidents = 1000.0, FileIncidents(tmp_path, 10.0)
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(time=lambda: now))
    assert not incidents.tried_again("dot_scores", "float64")
    check(tmp_path, ORACLE, "an input")
    now += 9.1
    assert incidents.tried_again("dot_scores", "float64")
    assert incidents.record("dot_scores", "float64") is None
    check(tmp_path, ORACLE, "an input")
    now += 9.1
    assert not incidents.tried_again("dot_scores", "float64")
    assert incidents.record("dot_scores", "float64") is not None
    check(tmp_path, DTYPE, "an input")
    now += 8.9
    assert not incidents.tried_again("dot_scores", "float64")
    assert incidents.record("dot_scores", "float64") is not None
    assert [r.reason for r in incidents.verdicts("dot_scores", "float64").values()] == ["hung", "crashed"]


def test_nothing_is_recorded_before_the_first_check(tmp_path: Path) -> None:
    incidents = FileIncidents(tmp_path, PATIENT)
    assert incidents.record("dot_scores", "float64") is None
    worker(tmp_path, "os._exit(3)\n")
    assert incidents.record("dot_scores", "float64") is None
    assert [p.name for p in tmp_path.iterdir()] == ["dot_scores-float64.crumb"]


def test_an_incident_is_recorded_once(tmp_path: Path) -> None:
    incidents = FileIncidents(tmp_path, PATIENT)
    check(tmp_path, ORACLE, "an input")
    assert incidents.record("dot_scores", "float64") is not None
    assert incidents.record("dot_scores", "float64") is None
    check(tmp_path, ORACLE, "another input")
    assert incidents.record("dot_scores", "float64") is None
    check(tmp_path, DTYPE, "another input")
    assert incidents.record("dot_scores", "float64") is not None
    assert list(incidents.verdicts("dot_scores", "float64")) == [ORACLE, DTYPE]


def test_incidents_at_three_laws_stop_an_operation_at_their_dtype_alone(tmp_path: Path) -> None:
    incidents = FileIncidents(tmp_path, PATIENT)
    for dtype, law in STOPPING:
        assert incidents.given_up("dot_scores", "float64") is None
        check(tmp_path, law, "an input", f"dot_scores-{dtype}")
        incidents.record("dot_scores", dtype)
    assert incidents.given_up("dot_scores", "float64") == "crashed"
    assert incidents.given_up("dot_scores", "float32") is None
    assert incidents.given_up("softmax", "float64") is None
    assert FileIncidents(tmp_path, PATIENT).given_up("dot_scores", "float64") == "crashed"


# The next run of the case ---------------------------------------------------------------------------------------------


def run_again(folder: Path, backend: Any, *laws: str) -> dict[str, Result]:
    """The verdicts that a worker records when it gets the case, with whatever happened before."""
    recorded: dict[str, Any] = {}
    case, settings = Case("dot_scores", "float64", laws), Settings(crumbs=str(folder), in_process=True)
    with pytest.raises(pytest.fail.Exception):
        run_case(backend, Contract.of(backend, "counting"), case, settings, recorded.__setitem__)
    return {r.law: r for r in map(Result.from_json, recorded["attnspec"])}


def counting(calls: list[tuple[Any, Any]]) -> Any:
    """A backend that is right, and lists its calls."""

    def dot_scores(query: Any, key: Any) -> Any:
        calls.append((query, key))
        return reference.dot_scores(query, key)

    return SimpleNamespace(name="counting", dot_scores=dot_scores)


def test_a_law_that_crashed_is_not_checked_again_and_the_others_are(tmp_path: Path) -> None:
    check(tmp_path, ORACLE, "an input")
    crashed = FileIncidents(tmp_path, PATIENT).record("dot_scores", "float64")
    calls: list[Any] = []
    found = run_again(tmp_path, counting(calls), ORACLE, DTYPE)
    assert found[ORACLE] == crashed
    assert (found[DTYPE].status, found[DTYPE].examples > 0) == (Status.PASSED, True)
    assert calls
    calls.clear()
    assert run_again(tmp_path, counting(calls), ORACLE) == {ORACLE: crashed}
    assert calls == []


def test_nothing_of_an_operation_that_was_given_up_is_called(tmp_path: Path) -> None:
    incidents = FileIncidents(tmp_path, PATIENT)
    for dtype, law in STOPPING:
        check(tmp_path, law, "an input", f"dot_scores-{dtype}")
        incidents.record("dot_scores", dtype)
    calls: list[Any] = []
    found = run_again(tmp_path, counting(calls), ORACLE, DTYPE)
    assert calls == []
    assert found[ORACLE] == incidents.verdicts("dot_scores", "float64")[ORACLE]
    assert (found[DTYPE].status, found[DTYPE].reason) == (Status.FAILED, "crashed")
    assert found[DTYPE].message == "not judged: the operation was stopped after it had crashed at 3 laws"


def test_a_run_leaves_the_last_check_in_the_breadcrumb(tmp_path: Path) -> None:
    def dot_scores(query: Any, key: Any) -> Any:
        raise ValueError("no")

    found = run_again(tmp_path, SimpleNamespace(name="raises", dot_scores=dot_scores), ORACLE)
    assert found[ORACLE].reason == "raised"
    crumb = Breadcrumb.read(breadcrumb_path(tmp_path, "dot_scores-float64"))
    assert crumb is not None
    assert (crumb.law, crumb.input) == (ORACLE, "looking for what has to be declared")


def test_a_diagnosis_leaves_its_last_input_as_one_of_the_formula(tmp_path: Path) -> None:
    def dot_scores(query: Any, key: Any) -> Any:
        return np.full_like(reference.dot_scores(query, key), np.nan)

    found = run_again(tmp_path, SimpleNamespace(name="nan", dot_scores=dot_scores), ORACLE)
    assert found[ORACLE].reason == "value"
    crumb = Breadcrumb.read(breadcrumb_path(tmp_path, "dot_scores-float64"))
    assert crumb is not None
    assert crumb.law == ORACLE
    assert crumb.input.startswith("n = ")


# What pytest-xdist is asked to do -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_a_case_runs_again_if_its_crash_can_be_named(tmp_path: Path, named: bool) -> None:
    if named:
        check(tmp_path, ORACLE, "an input")
    pending: list[str] = []
    report: Any = SimpleNamespace(outcome="failed")
    mark: Callable[[str], None] = pending.append
    item = "test_conformance.py::test_conforms[dot_scores-float64]"
    CrashHandler(tmp_path, PATIENT).pytest_handlecrashitem(item, report, SimpleNamespace(mark_test_pending=mark))
    assert (pending, report.outcome) == (([item], "rerun") if named else ([], "failed"))


def test_a_case_whose_judge_was_killed_is_judged_again_and_named(tmp_path: Path) -> None:
    repeated: list[str] = []
    handler = CrashHandler(tmp_path, PATIENT, in_process=False, repeated=repeated)
    scheduler = SimpleNamespace(mark_test_pending=lambda item: None)
    ended = SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(wait=lambda: -9)))
    for _ in range(3):
        report: Any = SimpleNamespace(outcome="failed", node=ended)
        handler.pytest_handlecrashitem("test_conformance.py::test_conforms[dot_scores-float64]", report, scheduler)
    words = "dot_scores-float64 was judged again: the judge's own process was ended by SIGKILL (out of memory?)"
    assert repeated == [words] * 2
    assert report.longrepr.startswith("the judge's own process was ended by SIGKILL")
