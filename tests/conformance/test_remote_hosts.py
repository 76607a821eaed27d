"""Backends that mislead, end or hang their process: their verdicts, and processes left behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from attnspec import reference
from attnspec.conformance.judging.cases import Case
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Mark, judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote import clock as clocks
from attnspec.conformance.remote.backend import RemoteBackend
from attnspec.conformance.remote.client import PipelineFailed
from attnspec.conformance.remote.clock import Clock, Watch
from attnspec.conformance.remote.description import contract_from
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.remote.incidents import Incidents
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.remote.processes import HAS_PROC, children, end_all, end_children, new_mark, processes, usage
from attnspec.conformance.running import in_process
from attnspec.conformance.running.isolated import Isolated
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case

from . import hostile

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="processes have no groups here")]

LAWS = ("operation.oracle", "operation.dtype")


def results_of(folder: Path, code: str, *laws: str, hang_after: float = 1.5) -> dict[str, Result]:
    """Results of a backend of this code at its first dtype, in its own process."""
    (results,) = results_at_dtypes(folder, code, (None,), laws or LAWS, hang_after=hang_after).values()
    return results


def results_at_dtypes(
    folder: Path, code: str, dtypes: Sequence[str | None], laws: tuple[str, ...], *, hang_after: float = 1.5
) -> dict[str | None, dict[str, Result]]:
    """The results at several dtypes by the same judge; None is the first declared dtype."""
    (folder / "backend.py").write_text(code, encoding="utf-8")
    backend = RemoteBackend(str(folder / "backend.py"), "cpu", hang_after=hang_after)
    results = {}
    try:
        contract = contract_from(dict(backend.await_declarations(60.0)), backend.origin)
        for dtype in dtypes:
            recorded: dict[str, Any] = {}
            case = Case("dot_scores", dtype or contract.limits.dtypes[0], laws)
            with suppress(pytest.fail.Exception):
                run_case(backend, contract, case, Settings(hang_after=hang_after), recorded.__setitem__)
            results[dtype] = {r.law: r for r in map(Result.from_json, recorded["attnspec"])}
    finally:
        backend.close()
    assert not [p for p in processes() if p.number == backend.host.process.pid and p.state != "Z"]
    return results


# Those who mislead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [hostile.WRONG, hostile.PATCHING, hostile.LYING], ids=["wrong", "patching", "lying"])
def test_wrong_numbers_are_wrong_whatever_the_backend_does_to_its_process(tmp_path: Path, code: str) -> None:
    result = results_of(tmp_path, code)["operation.oracle"]
    assert (result.status, result.reason) == (Status.FAILED, "value")


@pytest.mark.parametrize("code", hostile.EXPLOITS.values(), ids=hostile.EXPLOITS)
def test_exploits_of_benchmarks_are_convicted_by_their_numbers(tmp_path: Path, code: str) -> None:
    laws = ("operation.oracle", "operation.no-mutation", "operation.independent-of-other-calls")
    results = results_of(tmp_path, hostile.exploit(code), *laws).values()
    assert {r.reason for r in results if r.status is Status.FAILED} <= {"value", "mutated-input"}
    assert Status.FAILED in {r.status for r in results}


def test_a_backend_that_breaks_its_answering_process_is_convicted(tmp_path: Path) -> None:
    results = results_of(tmp_path, hostile.REPLACING_FUNCTIONS)
    assert {r.status for r in results.values()} == {Status.FAILED}


def test_imports_of_the_backend_stay_in_its_process(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("", encoding="utf-8")
    results_of(tmp_path, hostile.RIGHT + "import only_there\n")
    assert "only_there" not in sys.modules


MALFORMED_REPLIES = {
    "letters": b"x" * 64,
    "too much": (1 << 40).to_bytes(8, "little") * 2,
    "another object": (9).to_bytes(8, "little") + bytes(8) + b'{"a": 12}',
    "no such answer": (9).to_bytes(8, "little") + bytes(8) + b'["z", 12]',
    "two answers": ((8).to_bytes(8, "little") + bytes(8) + b'["r", 1]') * 2,
}


@pytest.mark.parametrize("nonsense", MALFORMED_REPLIES.values(), ids=MALFORMED_REPLIES)
def test_a_malformed_reply_is_a_crash(tmp_path: Path, nonsense: bytes) -> None:
    code = hostile.RIGHT + hostile.WRITING_TO_PIPES.replace("{bytes}", repr(nonsense))
    result = results_of(tmp_path, code)["operation.oracle"]
    assert (result.status, result.reason) == (Status.FAILED, "crashed")


TRICKLING = f"""{hostile.RIGHT}
import os, time

def dot_scores(query, key):
    answer = {(1 << 25).to_bytes(8, "little") + bytes(8)!r}
    while True:
        for number in range(3, 64):
            try:
                os.write(number, answer)
            except OSError:
                pass
        answer = b" "
        time.sleep(0.05)
"""


def test_a_reply_byte_by_byte_is_a_hang(tmp_path: Path) -> None:
    result = results_of(tmp_path, TRICKLING)["operation.oracle"]
    assert (result.status, result.reason) == (Status.FAILED, "hung")


FORGED_NUMBERS = f"""{hostile.RIGHT}
from attnspec.conformance.remote import wire
wire.Writer.content = lambda self, x: ["v", ["n", "zzz", [1], None, 0, 0, 0]]
"""


def test_forged_numbers_beside_an_array_are_a_crash(tmp_path: Path) -> None:
    result = results_of(tmp_path, FORGED_NUMBERS)["operation.oracle"]
    assert (result.status, result.reason) == (Status.FAILED, "crashed")


FICKLE = f"""
{hostile.RIGHT.replace("return query @ np.swapaxes(key, -1, -2)", "return Box(query.x @ np.swapaxes(key.x, -1, -2))")}
class Box:
    def __init__(self, x):
        self.x, self.shape, self.ndim = x, x.shape, x.ndim
    def __getitem__(self, key):
        if self.x.size > 400:
            raise ValueError("too many")
        return Box(self.x[key])
    def swapaxes(self, one, other):
        if self.shape[-1] > 16:
            raise ValueError("too long")
        return Box(self.x.swapaxes(one, other))

def from_numpy(x, *, device):
    return Box(x.copy())

def to_numpy(box):
    return box.x
"""


def test_calls_that_fail_sometimes_change_no_verdict(tmp_path: Path) -> None:
    results = results_of(tmp_path, FICKLE, "operation.oracle", "storage.views-equal-copies")
    backend = load(str(tmp_path / "backend.py"))
    case = Case("dot_scores", "float64", tuple(results))
    own = judge(backend, contract_of(backend, "backend.py", "cpu"), case, PROFILES["quick"])
    assert [(r.law, r.status, r.message, r.examples) for r in own] == [
        (r.law, r.status, r.message, r.examples) for r in results.values()
    ]


# Those who have bad luck ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", hostile.HARMLESS_STATEMENTS.values(), ids=hostile.HARMLESS_STATEMENTS)
def test_side_effects_on_its_own_process_do_no_harm(tmp_path: Path, statement: str) -> None:
    results = results_of(tmp_path, hostile.before_each_call(statement))
    assert {r.status for r in results.values()} == {Status.PASSED}, results


@pytest.mark.parametrize(
    ("statement", "reason", "message"), hostile.ENDING_STATEMENTS.values(), ids=hostile.ENDING_STATEMENTS
)
def test_the_law_at_which_a_process_ends_fails(tmp_path: Path, statement: str, reason: str, message: str) -> None:
    start = time.monotonic()
    result = results_of(tmp_path, hostile.before_each_call(statement), "operation.oracle")["operation.oracle"]
    assert (result.status, result.reason) == (Status.FAILED, reason)
    assert message in result.message
    assert time.monotonic() - start < 120


def test_other_laws_are_judged_in_another_process_after_a_crash(tmp_path: Path) -> None:
    code = hostile.before_each_call("import os; os._exit(3) if query.dtype == 'float32' else None").replace(
        '("float64",)', '("float64", "float32")'
    )
    results = results_of(tmp_path, code, "operation.shape", "operation.independent-of-other-calls")
    assert results["operation.shape"].status is Status.PASSED
    assert results["operation.independent-of-other-calls"].reason == "crashed"


def test_an_operation_is_given_up_after_a_few_crashes(tmp_path: Path) -> None:
    laws = (
        "operation.oracle",
        "operation.dtype",
        "operation.shape",
        "operation.broadcast-equals-repeat",
        "scoring.isometry-invariance",
    )
    results = results_of(tmp_path, hostile.before_each_call("import os; os._exit(0)"), *laws)
    assert {r.reason for r in results.values()} == {"crashed"}
    # three laws crash, the others are not judged
    assert sum(r.message.startswith("not judged: ") for r in results.values()) == len(laws) - 3


def test_crashes_at_one_dtype_do_not_change_the_verdicts_at_another(tmp_path: Path) -> None:
    crashes = hostile.before_each_call("import os; os._exit(0)").replace('("float64",)', '("float64", "float32")')
    laws = ("operation.oracle", "operation.dtype", "operation.shape", "operation.broadcast-equals-repeat")
    both = results_at_dtypes(tmp_path, crashes, ("float64", "float32"), laws)
    for dtype in both:
        alone = results_at_dtypes(tmp_path, crashes, (dtype,), laws)[dtype]
        assert sum(r.message.startswith("not judged: ") for r in alone.values()) == len(laws) - 3
        assert [(r.law, r.reason, r.message) for r in both[dtype].values()] == [
            (r.law, r.reason, r.message) for r in alone.values()
        ]


WRONG_AT_FIRST_CALL = hostile.before_each_call("""import os
    with open({file!r}, "a+") as f: before = f.tell(); f.write("x")
    if before == 0: query = 1.5 * query
    if before == 3: os._exit(0)""")


def test_a_violation_seen_before_the_process_ended_stands(tmp_path: Path) -> None:
    code = WRONG_AT_FIRST_CALL.replace("{file!r}", repr(str(tmp_path / "calls")))
    results = results_of(
        tmp_path, code, "operation.oracle", "operation.broadcast-equals-repeat", "operation.independent-of-other-calls"
    )
    assert (results["operation.oracle"].status, results["operation.oracle"].reason) == (Status.FAILED, "value")
    assert "crashed" in {r.reason for r in results.values()}


def test_a_violation_before_a_failed_pipelined_call_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, marks = [], []

    def dot_scores(query: Any, key: Any) -> Any:
        calls.append(1)
        return reference.dot_scores(query, key) + (len(calls) == 1)

    host = SimpleNamespace(start_check=lambda: None, start_case=lambda: None)
    backend: Any = SimpleNamespace(name="once", dot_scores=dot_scores, incidents=Incidents(), host=host)

    def judging(*arguments: Any, mark: Mark, **options: Any) -> list[Result]:
        def interrupted(law: str, example: Any) -> None:
            mark(law, example)
            marks.append(law)
            if len(marks) == 2:
                raise PipelineFailed

        return judge(*arguments, mark=interrupted, **options)

    case = Case("dot_scores", "float64", LAWS)
    monkeypatch.setattr(in_process, "judge", judging)
    isolated = Isolated(backend, Contract.of(backend), case, Settings())
    results = {r.law: r for r in isolated.judged({})}
    assert marks.count("operation.dtype") > 1
    assert (results["operation.oracle"].status, results["operation.oracle"].examples) == (Status.FAILED, 1)
    assert results["operation.oracle"].error_ratio > 1
    assert results["operation.dtype"].status is Status.PASSED


# Those whom it leaves behind ------------------------------------------------------------------------------------------

LEAVING_PROCESSES = {
    "a copy": "import os, time\n    if not os.fork(): time.sleep(600)",
    "a copy that answers": "import os\n    if not os.fork(): return query * 0",
    "a copy of its own session": "import os, time\n    if not os.fork(): os.setsid(); time.sleep(600)",
    "a program": "import subprocess\n    subprocess.Popen(['sleep', '600'], start_new_session=True)",
}


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes there are")
@pytest.mark.parametrize("statement", LEAVING_PROCESSES.values(), ids=LEAVING_PROCESSES)
def test_a_process_left_behind_is_ended_and_named(tmp_path: Path, statement: str) -> None:
    inside = statement.replace("\n", "\n    ")
    at_first_call = f"if not hasattr(np, 'left'):\n        np.left = True\n        {inside}"
    (tmp_path / "backend.py").write_text(hostile.before_each_call(at_first_call), encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=20.0)
    backend.await_declarations(60.0)
    x = backend.from_numpy(np.ones((1, 1)), device="cpu")
    assert backend.to_numpy(backend.dot_scores(x, x)).tolist() == [[1.0]]
    time.sleep(0.3)  # a copy that sleeps is seen to be one of its own session
    start = time.monotonic()
    backend.close()
    assert time.monotonic() - start < 20
    if "return" not in statement:
        (title,) = backend.left
        number = int(title.partition("(process ")[2].rstrip(")"))
        assert not [p for p in processes() if p.number == number and p.state != "Z"]


def test_a_run_ends_its_children() -> None:
    before = children()
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as child:
        assert end_children(before) == [f"sleep (process {child.pid})"]
    assert end_children(before) == []
    assert end_all(child.pid, new_mark()) == []


# Time -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clock, list[tuple[float, float, bool]]], bool]:
    """Function that returns True if the watch takes a process's observations for a hang."""

    class Hung(Exception):
        pass

    def watch(clock: Clock, observations: list[tuple[float, float, bool]]) -> bool:
        times = iter([0.0, *(t for t, _, _ in observations)])
        uses = iter([(used, wants) for _, used, wants in observations])
        monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: next(times)))
        monkeypatch.setattr(clocks, "usage", lambda pid: next(uses))

        def hung(seconds: float) -> NoReturn:
            raise Hung(seconds)

        look = Watch(1, clock, hung).look
        try:
            for _ in observations:
                look()
        except Hung:
            return True
        return False

    return watch


def observations_of(seconds: int, share: float, *, wants: bool) -> list[tuple[float, float, bool]]:
    """Observations, every second: time, processor time, and if the process wants a processor."""
    return [(t, share * t, wants) for t in range(1, seconds + 1)]


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes do")
@pytest.mark.parametrize(
    ("share", "wants", "seconds"),
    [
        (1.0, True, 10),
        (0.5, True, 19),
        (0.25, True, 37),
        (0.0, True, 80),
        (0.0, False, 10),
        (0.125, False, 10),
        (4.0, True, 10),
    ],
    ids=["computes", "gets half", "gets a quarter", "gets nothing", "waits", "waits and looks", "has four threads"],
)
def test_hangs_are_measured_in_processor_time(hangs: Any, share: float, wants: bool, seconds: int) -> None:
    assert hangs(Clock(10.0), observations_of(seconds, share, wants=wants))
    assert not hangs(Clock(10.0), observations_of(seconds - 1, share, wants=wants))


@pytest.mark.skipif(not HAS_PROC, reason="the system does not say what processes do")
def test_the_processor_time_of_a_process_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
        deadline = time.monotonic() + 30
        while usage(busy.pid)[0] < 0.3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert usage(busy.pid)[0] >= 0.3
        assert usage(busy.pid)[1]
        end_all(busy.pid, new_mark())


def test_an_endless_import_is_ended(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.WAIT_AT_IMPORT, encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=1.0)
    with pytest.raises(BackendError, match=r"expected its import to end within 2 s; it did not"):
        backend.await_declarations(2.0)
    backend.close()
    assert backend.host.process.poll() == -9


def test_an_import_that_ends_the_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text("import os\nos._exit(7)", encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=1.0)
    with pytest.raises(BackendError, match=r"its import ended the process with status 7"):
        backend.await_declarations(60.0)
    backend.close()
