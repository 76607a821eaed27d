"""Processes of backends that mislead, end or hang: what becomes of the law, and who is left behind."""

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
from attnspec.conformance.judging.declaration import Contract
from attnspec.conformance.judging.engine import Case, Mark, judge
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
from attnspec.conformance.remote.processes import KNOWN, children, end_all, end_children, mark, processes, usage
from attnspec.conformance.running import in_process
from attnspec.conformance.running.isolated import Isolated
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import run_case

from . import hostile

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="processes have no groups here")]

LAWS = ("operation.oracle", "operation.dtype")


def judged(folder: Path, code: str, *laws: str, hang_after: float = 1.5) -> dict[str, Result]:
    """The verdicts on a backend of this code at its first dtype, in a process of its own; nothing of it is left."""
    (found,) = judged_at(folder, code, (None,), laws or LAWS, hang_after=hang_after).values()
    return found


def judged_at(
    folder: Path, code: str, dtypes: Sequence[str | None], laws: tuple[str, ...], *, hang_after: float = 1.5
) -> dict[str | None, dict[str, Result]]:
    """The verdicts at one dtype after another, None for the first that is declared, by the same judge."""
    (folder / "backend.py").write_text(code, encoding="utf-8")
    backend = RemoteBackend(str(folder / "backend.py"), "cpu", hang_after=hang_after)
    found = {}
    try:
        contract = contract_from(dict(backend.introduce(60.0)), backend.origin)
        for dtype in dtypes:
            recorded: dict[str, Any] = {}
            case = Case("dot_scores", dtype or contract.limits.dtypes[0], laws)
            with suppress(pytest.fail.Exception):
                run_case(backend, contract, case, Settings(hang_after=hang_after), recorded.__setitem__)
            found[dtype] = {r.law: r for r in map(Result.from_json, recorded["attnspec"])}
    finally:
        backend.close()
    assert not [p for p in processes() if p.number == backend.host.process.pid and p.state != "Z"]
    return found


# Those who mislead ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [hostile.WRONG, hostile.PATCHING, hostile.LYING], ids=["wrong", "patching", "lying"])
def test_wrong_numbers_are_wrong_whatever_the_backend_does_to_its_process(tmp_path: Path, code: str) -> None:
    found = judged(tmp_path, code)["operation.oracle"]
    assert (found.status, found.reason) == (Status.FAILED, "value")


def test_who_tears_down_what_answers_for_him_is_not_acquitted(tmp_path: Path) -> None:
    found = judged(tmp_path, hostile.TEARING)
    assert {r.status for r in found.values()} == {Status.FAILED}


def test_what_the_backend_imports_is_not_imported_here(tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("", encoding="utf-8")
    judged(tmp_path, hostile.RIGHT + "import only_there\n")
    assert "only_there" not in sys.modules


NONSENSE = {
    "letters": b"x" * 64,
    "too much": (1 << 40).to_bytes(8, "little") * 2,
    "another object": (9).to_bytes(8, "little") + bytes(8) + b'{"a": 12}',
    "no such answer": (9).to_bytes(8, "little") + bytes(8) + b'["z", 12]',
    "two answers": ((8).to_bytes(8, "little") + bytes(8) + b'["r", 1]') * 2,
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_what_is_no_answer_is_a_crash(tmp_path: Path, nonsense: bytes) -> None:
    code = hostile.RIGHT + hostile.ANSWERING.replace("{bytes}", repr(nonsense))
    found = judged(tmp_path, code)["operation.oracle"]
    assert (found.status, found.reason) == (Status.FAILED, "crashed")


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


def test_an_answer_that_comes_byte_by_byte_hangs(tmp_path: Path) -> None:
    found = judged(tmp_path, TRICKLING)["operation.oracle"]
    assert (found.status, found.reason) == (Status.FAILED, "hung")


FORGED_NUMBERS = f"""{hostile.RIGHT}
from attnspec.conformance.remote import wire
wire.Writer.seen = lambda self, x: ["v", ["n", "zzz", [1], None, 0, 0, 0]]
"""


def test_forged_numbers_beside_an_array_are_a_crash(tmp_path: Path) -> None:
    found = judged(tmp_path, FORGED_NUMBERS)["operation.oracle"]
    assert (found.status, found.reason) == (Status.FAILED, "crashed")


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


def test_steps_that_fail_now_and_then_change_no_verdict(tmp_path: Path) -> None:
    found = judged(tmp_path, FICKLE, "operation.oracle", "storage.layouts")
    backend = load(str(tmp_path / "backend.py"))
    case = Case("dot_scores", "float64", tuple(found))
    own = judge(backend, contract_of(backend, "backend.py"), case, PROFILES["quick"])
    assert [(r.law, r.status, r.message, r.examples) for r in own] == [
        (r.law, r.status, r.message, r.examples) for r in found.values()
    ]


# Those who have bad luck ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", hostile.UNLUCKY.values(), ids=hostile.UNLUCKY)
def test_what_concerns_its_process_alone_does_no_harm(tmp_path: Path, before: str) -> None:
    found = judged(tmp_path, hostile.around(before))
    assert {r.status for r in found.values()} == {Status.PASSED}, found


@pytest.mark.parametrize(
    ("before", "reason", "words"),
    hostile.ENDING.values(),
    ids=hostile.ENDING,
)
def test_the_law_at_which_a_process_ends_fails(tmp_path: Path, before: str, reason: str, words: str) -> None:
    start = time.monotonic()
    found = judged(tmp_path, hostile.around(before), "operation.oracle")["operation.oracle"]
    assert (found.status, found.reason) == (Status.FAILED, reason)
    assert words in found.message
    assert time.monotonic() - start < 120


def test_other_laws_are_judged_by_another_process(tmp_path: Path) -> None:
    code = hostile.around("import os; os._exit(3) if query.dtype == 'float32' else None").replace(
        '("float64",)', '("float64", "float32")'
    )
    found = judged(tmp_path, code, "operation.shape", "operation.no-memory")
    assert found["operation.shape"].status is Status.PASSED
    assert found["operation.no-memory"].reason == "crashed"


def test_an_operation_is_given_up_after_a_few_crashes(tmp_path: Path) -> None:
    laws = ("operation.oracle", "operation.dtype", "operation.shape", "operation.broadcasting", "scoring.isometry")
    found = judged(tmp_path, hostile.around("import os; os._exit(0)"), *laws)
    assert {r.reason for r in found.values()} == {"crashed"}
    assert sum(r.message.startswith("not judged: ") for r in found.values()) == len(laws) - 3


def test_crashes_at_one_dtype_do_not_change_the_verdicts_at_another(tmp_path: Path) -> None:
    crashes = hostile.around("import os; os._exit(0)").replace('("float64",)', '("float64", "float32")')
    laws = ("operation.oracle", "operation.dtype", "operation.shape", "operation.broadcasting")
    both = judged_at(tmp_path, crashes, ("float64", "float32"), laws)
    for dtype in both:
        alone = judged_at(tmp_path, crashes, (dtype,), laws)[dtype]
        assert sum(r.message.startswith("not judged: ") for r in alone.values()) == len(laws) - 3
        assert [(r.law, r.reason, r.message) for r in both[dtype].values()] == [
            (r.law, r.reason, r.message) for r in alone.values()
        ]


WRONG_ONCE = hostile.around("""import os
    with open({file!r}, "a+") as f: before = f.tell(); f.write("x")
    if before == 0: query = 1.5 * query
    if before == 3: os._exit(0)""")


def test_a_violation_seen_before_the_process_ended_stands(tmp_path: Path) -> None:
    code = WRONG_ONCE.replace("{file!r}", repr(str(tmp_path / "calls")))
    found = judged(tmp_path, code, "operation.oracle", "operation.broadcasting", "operation.no-memory")
    assert (found["operation.oracle"].status, found["operation.oracle"].reason) == (Status.FAILED, "value")
    assert "crashed" in {r.reason for r in found.values()}


def test_a_violation_seen_before_a_step_was_wrongly_taken_for_granted_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, marks = [], []

    def dot_scores(query: Any, key: Any) -> Any:
        calls.append(1)
        return reference.dot_scores(query, key) + (len(calls) == 1)

    host = SimpleNamespace(begin=lambda: None)
    backend: Any = SimpleNamespace(name="once", dot_scores=dot_scores, incidents=Incidents(20.0), host=host)

    def judging(*given: Any, mark: Mark, **named: Any) -> list[Result]:
        def interrupted(law: str, example: Any) -> None:
            mark(law, example)
            marks.append(law)
            if len(marks) == 2:
                raise PipelineFailed

        return judge(*given, mark=interrupted, **named)

    case = Case("dot_scores", "float64", LAWS)
    monkeypatch.setattr(in_process, "judge", judging)
    isolated = Isolated(backend, Contract.of(backend), case, Settings())
    found = {r.law: r for r in isolated.judged({})}
    assert marks.count("operation.dtype") > 1
    assert (found["operation.oracle"].status, found["operation.oracle"].examples) == (Status.FAILED, 1)
    assert found["operation.oracle"].error_ratio > 1
    assert found["operation.dtype"].status is Status.PASSED


# Those whom it leaves behind ------------------------------------------------------------------------------------------

LEAVING = {
    "a copy": "import os, time\n    if not os.fork(): time.sleep(600)",
    "a copy that answers": "import os\n    if not os.fork(): return query * 0",
    "a copy of its own session": "import os, time\n    if not os.fork(): os.setsid(); time.sleep(600)",
    "a program": "import subprocess\n    subprocess.Popen(['sleep', '600'], start_new_session=True)",
}


@pytest.mark.skipif(not KNOWN, reason="the system does not say what processes there are")
@pytest.mark.parametrize("before", LEAVING.values(), ids=LEAVING)
def test_who_is_left_behind_is_ended_and_named(tmp_path: Path, before: str) -> None:
    inside = before.replace("\n", "\n    ")
    once = f"if not hasattr(np, 'left'):\n        np.left = True\n        {inside}"
    (tmp_path / "backend.py").write_text(hostile.around(once), encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=20.0)
    backend.introduce(60.0)
    x = backend.from_numpy(np.ones((1, 1)), device="cpu")
    assert backend.to_numpy(backend.dot_scores(x, x)).tolist() == [[1.0]]
    time.sleep(0.3)  # a copy that sleeps is seen to be one of its own session
    start = time.monotonic()
    backend.close()
    assert time.monotonic() - start < 20
    if "return" not in before:
        (title,) = backend.left
        number = int(title.partition("(process ")[2].rstrip(")"))
        assert not [p for p in processes() if p.number == number and p.state != "Z"]


def test_a_run_ends_its_children() -> None:
    before = children()
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as left:
        assert end_children(before) == [f"sleep (process {left.pid})"]
    assert end_children(before) == []
    assert end_all(left.pid, mark()) == []


# Time -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Clock, list[tuple[float, float, bool]]], bool]:
    """Whether a process hangs that was seen at these times, with these seconds, wanting a processor or not."""

    class Hung(Exception):
        pass

    def watch(clock: Clock, seen: list[tuple[float, float, bool]]) -> bool:
        times = iter([0.0, *(t for t, _, _ in seen)])
        uses = iter([(used, wants) for _, used, wants in seen])
        monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=lambda: next(times)))
        monkeypatch.setattr(clocks, "usage", lambda pid: next(uses))

        def hung(words: str) -> NoReturn:
            raise Hung(words)

        look = Watch(1, clock, hung).look
        try:
            for _ in seen:
                look()
        except Hung:
            return True
        return False

    return watch


def seen(seconds: int, share: float, *, wants: bool) -> list[tuple[float, float, bool]]:
    """A process that gets a share of a processor."""
    return [(t, share * t, wants) for t in range(1, seconds + 1)]


@pytest.mark.skipif(not KNOWN, reason="the system does not say what processes do")
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
def test_the_time_is_the_processors(watched: Any, share: float, wants: bool, seconds: int) -> None:
    assert watched(Clock(10.0), seen(seconds, share, wants=wants))
    assert not watched(Clock(10.0), seen(seconds - 1, share, wants=wants))


@pytest.mark.skipif(not KNOWN, reason="the system does not say what processes do")
def test_the_seconds_of_a_process_are_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as busy:
        deadline = time.monotonic() + 30
        while usage(busy.pid)[0] < 0.3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert usage(busy.pid)[0] >= 0.3
        assert usage(busy.pid)[1]
        end_all(busy.pid, mark())


def test_an_import_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(hostile.WAITING, encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=1.0)
    with pytest.raises(BackendError, match=r"expected its import to end within 2 s; it did not"):
        backend.introduce(2.0)
    backend.close()
    assert backend.host.process.poll() == -9


def test_an_import_that_ends_the_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text("import os\nos._exit(7)", encoding="utf-8")
    backend = RemoteBackend(str(tmp_path / "backend.py"), "cpu", hang_after=1.0)
    with pytest.raises(BackendError, match=r"its import ended the process with status 7"):
        backend.introduce(60.0)
    backend.close()
