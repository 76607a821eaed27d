"""`attnspec matrix`: the verdicts on a library's rows, their forms, and refused arguments."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from dataclasses import replace
from html import unescape
from importlib import resources
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from attnspec.conformance.judging.cases import cases
from attnspec.conformance.judging.engine import judge
from attnspec.conformance.judging.profiles import PROFILES
from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.matrix.cells import Confirmation, Matrix, State, Violation
from attnspec.conformance.matrix.confirming import confirm
from attnspec.conformance.matrix.making import Maker
from attnspec.conformance.matrix.messages import without_places
from attnspec.conformance.matrix.page import as_page
from attnspec.conformance.matrix.program import Call, program
from attnspec.conformance.matrix.rendering import (
    MAX_PROGRAM,
    as_markdown,
    confirmation_sentence,
    print_matrix,
    shown_message,
)
from attnspec.conformance.matrix.repeats import Repeat, repeats, replaced
from attnspec.conformance.matrix.rows import Library, ProbedRow, refusal
from attnspec.conformance.matrix.tracing import answer_of
from attnspec.conformance.remote.loading import contract_of, load
from attnspec.conformance.reporting import processor
from attnspec.conformance.running.settings import Settings

SCHEMA = json.loads(resources.files("attnspec.conformance.matrix").joinpath("matrix.schema.json").read_text())

ENTRY_POINTS = """
[attnspec.matrices]
fake = fake_rows
broken = no_such_module
"""

ROWS = '''
import os

import numpy as np

PACKAGE = "fake"
ROWS = ("fake_rows:Right", "fake_rows:Wrong", "fake_rows:Absent", "fake_rows:Dying")

PLAIN = """
import numpy as np


def array(values, dtype):
    return np.asarray(values, dtype)


def numbers(x):
    return np.asarray(x, np.float64)


def gradients(results, arguments, cotangents):
    query, key = arguments
    return cotangents[0] @ key, np.swapaxes(cotangents[0], -1, -2) @ query


def call(query, key):
    return FACTOR * query @ np.swapaxes(key, -1, -2)
"""


def devices():
    return ("cpu",)


class Right:
    name = "right"
    limits = {"dtypes": ("float32",), "broadcasting": False}

    def dot_scores(self, query, key):
        if min(query.ndim, key.ndim) < 2 or query.shape[-1] != key.shape[-1] or query.shape[:-2] != key.shape[:-2]:
            raise ValueError("shapes differ")
        return query @ np.swapaxes(key, -1, -2)


class Wrong(Right):
    name = "wrong"

    def dot_scores(self, query, key):
        return np.float32(1.5) * super().dot_scores(query, key)

    def plain(self, operation, *, device):
        return PLAIN.replace("FACTOR", "np.float32(1.5)")


class Absent(Right):
    name = "absent"

    def dot_scores(self, query, key):
        raise NotImplementedError("no kernel for this machine")


class Dying(Right):
    name = "dying"

    def dot_scores(self, query, key):
        os._exit(3)
'''


def environment(folder: Path) -> dict[str, str]:
    """Install a library that registers a matrix, and return the environment variables."""
    info = folder / "fake-1.5.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 1.5\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    (folder / "fake_rows.py").write_text(ROWS, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "attnspec.conformance.cli", "matrix", *arguments]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """Folder and process of a matrix with a right, wrong, absent and dying row."""
    folder = tmp_path_factory.mktemp("matrix")
    files = [f"--{name}={folder / f'fake.{name}'}" for name in ("json", "markdown", "html")]
    done = subprocess.run(
        command("fake", "--workers", "2", *files),
        env=environment(folder), cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return folder, done


def matrix(folder: Path) -> Matrix:
    return Matrix.from_json(json.loads((folder / "fake.json").read_text(encoding="utf-8")))


@pytest.mark.slow
def test_a_matrix_with_violations_is_written(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    folder, done = run
    assert done.returncode == 0, done.stderr
    states = {row.name: [str(c.state) for c in row.cells] for row in matrix(folder).rows}
    assert states == {
        "right": ["conforms", "not offered"],
        "wrong": ["violates", "not offered"],
        "absent": ["not offered", "not offered"],
        "dying": ["violates", "not judged"],
    }


def test_the_reason_of_an_absent_row_is_the_librarys_own(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    absent = matrix(run[0]).rows[2]
    assert absent.cells[0].reason == "NotImplementedError: no kernel for this machine"
    assert matrix(run[0]).rows[0].cells[1].reason == "the row has no gradients"
    assert matrix(run[0]).rows[0].limits == ("broadcasting: no",)


def test_a_violation_is_confirmed_without_attnspec(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    folder, _ = run
    violation = matrix(folder).rows[1].cells[0].violations[0]
    assert violation.law == "operation.oracle"
    assert violation.confirmation is Confirmation.CONFIRMED
    assert set(violation.arguments) == {"query", "key"}
    assert "attnspec" not in violation.program
    (folder / "program.py").write_text(violation.program, encoding="utf-8")
    replay = subprocess.run([sys.executable, "-I", folder / "program.py"], capture_output=True, text=True, check=False)
    assert replay.returncode == 1, replay.stderr
    right = violation.program.replace("np.float32(1.5)", "np.float32(1)")
    (folder / "program.py").write_text(right, encoding="utf-8")
    assert subprocess.run([sys.executable, "-I", folder / "program.py"], check=False).returncode == 0


def test_a_row_that_dies_is_shown_with_its_input(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    violations = matrix(run[0]).rows[3].cells[0].violations
    assert {v.reason for v in violations} == {"crashed"}
    assert violations[0].confirmation is Confirmation.NO_PROGRAM
    sentence = confirmation_sentence(violations[0])
    assert sentence == "No program without attnspec shows it: the row has no source for one."


def test_a_crash_is_shown_at_the_input_of_the_call_and_confirmed_by_a_signal() -> None:
    message = "the backend ended the process at the input n = 0, m = 32"
    crash = Violation(
        "dot_scores", "semantics.no_keys", "A statement.", "crashed", message, {"key": []}, Confirmation.CONFIRMED
    )
    assert shown_message(crash) == "the backend ended the process at this input"
    assert confirmation_sentence(crash) == "Confirmed: a program without attnspec is ended by a signal."
    assert shown_message(replace(crash, arguments={})) == message
    wrong = replace(crash, reason="numbers", message="the result is 1, at the input 2")
    assert (shown_message(wrong), confirmation_sentence(wrong)) == (
        wrong.message,
        "Confirmed: a program without attnspec exits with status 1.",
    )


def test_every_form_is_made_from_the_json(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    folder, done = run
    data = json.loads((folder / "fake.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, SCHEMA)
    parsed = Matrix.from_json(data)
    assert parsed.as_text() == (folder / "fake.json").read_text(encoding="utf-8")
    assert as_markdown(parsed) == (folder / "fake.markdown").read_text(encoding="utf-8")
    assert as_page(parsed) == (folder / "fake.html").read_text(encoding="utf-8")
    printed = StringIO()
    print_matrix(parsed, Console(file=printed, width=300))
    assert printed.getvalue().split() == done.stdout.split()
    for form in (done.stdout, as_markdown(parsed), unescape(as_page(parsed))):
        processor_names = parsed.versions["processor"], parsed.versions["instructions"]
        for text in ("1.5", parsed.date, "quick", "no kernel for this machine", "operation.oracle", *processor_names):
            assert text.replace("_", r"\_") in form or text in form, text


def test_the_progress_of_a_matrix_is_printed(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    stderr = run[1].stderr
    assert "row 2 of 4: wrong" in stderr
    assert "confirming operation.oracle by dot_scores (float32)" in stderr


def test_an_interrupted_matrix_reports_the_judged_rows(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("fake", "--workers", "1", f"--json={tmp_path / 'fake.json'}"),
        env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("row 2"):
            break
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 2
    assert stderr.endswith("attnspec: interrupted; the matrix has what was judged\n")
    interrupted = matrix(tmp_path)
    assert interrupted.interrupted
    assert interrupted.rows[0].cells[0].state is State.CONFORMS
    assert interrupted.rows[3].cells[0].state is State.NOT_JUDGED
    assert interrupted.rows[3].cells[0].reason == "interrupted"


@pytest.mark.parametrize(("arguments", "message"), [
    (["nothing"], "matrix: expected one of broken, fake, torch; got 'nothing'"),
    (["broken"], "matrix 'broken': cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
    (["fake", "--device", "banana"], "--device: expected one of cpu; got 'banana'"),
    (["fake", "--device", "cuda:1"], "--device: expected one of cpu; got 'cuda:1'"),
    (["fake", "--profile", "slow"], "--profile: expected one of quick, full, release; got 'slow'"),
    (["fake", "--workers", "0"], "--workers: expected at least 1; got 0"),
    (["fake", "--json", "nowhere/x"],
     "--json: expected a file that can be written; got 'nowhere/x': No such file or directory"),
])  # fmt: skip
def test_wrong_arguments_are_refused_in_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run(
        command(*arguments), env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"attnspec: {message}"
    assert done.stdout == ""


def test_messages_contain_no_paths_or_line_numbers() -> None:
    text = "raised E: why, in f (a/b.py:3), called by g (c.py:4)"
    assert without_places(text) == "raised E: why"
    assert without_places('ASSERT FAILED at "/c10/x.cpp":5, please report') == "ASSERT FAILED, please report"
    assert without_places("g++ /a/b/c.cpp of 1/2 and key/value") == "g++ c.cpp of 1/2 and key/value"


def test_a_program_that_fails_by_itself_confirms_nothing(tmp_path: Path) -> None:
    plain = "def array(x, dtype):\n    return x\n\n\ndef numbers(x):\n    return x\n\n\ndef call(x):\n    return x"
    call = Call({"x": np.ones(2)}, {"result": np.ones(2)})
    for expected, status in ((np.ones(2), 0), (np.zeros(2), 1), (np.full(2, np.nan), 1)):
        text = program("title", plain, call, path="result", expected=expected, budget=0.5)
        (tmp_path / "program.py").write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert done.stdout.splitlines()[-1].startswith("violates: ") == bool(status)


SPOILING = """
import numpy as np

PLAIN = '''
import numpy as np


def array(values, dtype):
    return np.asarray(values, dtype)


def numbers(x):
    return np.asarray(x, np.float64)


def call(query, key, value, mask=None, causal=False):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.dtype.type(query.shape[-1]))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), -1e30)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    result = weights @ value / np.where(total == 0, 1, total)
    lost = np.isnan(query).any(-1, keepdims=True)
    return np.where(np.roll(lost, -1, -2), np.float32(np.nan), result).astype(query.dtype)
'''

exec(PLAIN)


class Spoiling:
    name = "spoiling"
    limits = {"dtypes": ("float32",)}
    scaled_dot_product_attention = staticmethod(call)

    def plain(self, operation, *, device):
        return PLAIN
"""


def test_rows_made_nan_by_another_query_are_confirmed_by_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spoiling_row.py").write_text(SPOILING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    origin, law = "spoiling_row:Spoiling", "semantics.nan_queries"
    backend = load(origin)
    contract = contract_of(backend, origin, "cpu")
    (case,) = cases(contract, laws=(law,))
    (result,) = judge(backend, contract, case, PROFILES["quick"])
    assert (result.reason, result.observed) == ("declared", "something else")
    assert result.counterexample is not None
    question = {"origin": origin, "law": law, "operation": case.operation, "dtype": "float32", "reason": "declared"}
    question |= {"device": "cpu", "title": "a title", "snippet": result.counterexample["snippet"]}
    program = answer_of(question)["program"]
    assert "attnspec" not in program
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", tmp_path / "program.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].startswith("violates: ")


@pytest.mark.parametrize(
    ("information", "expected"),
    [
        (
            "processor : 0\nmodel name : A Processor 9\nflags : fpu avx2 avx512f amx_bf16 amx_tile\n",
            ("A Processor 9", "avx2, avx512f, amx_tile, amx_bf16, ATEN_CPU_CAPABILITY=avx2"),
        ),
        ("Features : fp asimd bf16\n", (platform.processor() or platform.machine(), "asimd, bf16")),
        (None, (platform.processor() or platform.machine(), "unknown")),
    ],
)
def test_the_processor_and_its_instructions_are_named(
    information: str | None, expected: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in processor.RESTRICTING_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if "ATEN" in expected[1]:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    if information is not None:
        (tmp_path / "cpuinfo").write_text(information, encoding="utf-8")
    monkeypatch.setattr(processor, "CPU_INFORMATION", tmp_path / "cpuinfo")
    assert tuple(processor.processor().values()) == expected


# What is judged again, and what has no verdict ------------------------------------------------------------------------

BROKEN = "raised InductorError: CppCompileError: C++ compile error"
TOOLS = ("CppCompileError",)


def failure(law: str, message: str, dtype: str = "float32") -> Result:
    return Result("dot_scores", law, dtype, Status.FAILED, "raised", message)


def test_laws_at_which_a_compiler_failed_are_judged_again() -> None:
    results = [failure("operation.oracle", BROKEN), failure("operation.shape", "raised ValueError: no")]
    assert repeats(results, ()) == []
    assert repeats(results, TOOLS) == [Repeat("dot_scores", "float32", ("operation.oracle",))]
    right = Result("dot_scores", "operation.oracle", "float32", Status.PASSED)
    assert replaced(results, [right]) == [results[1], right]


def test_a_failure_of_a_compiler_is_no_verdict() -> None:
    class Scores:
        name = "scores"
        limits = {"dtypes": ("float32",)}  # noqa: RUF012 - a declaration

        def dot_scores(self, query: Any, key: Any) -> Any:
            return query @ np.swapaxes(key, -1, -2)

    row = ProbedRow("scores", contract_of(Scores(), "scores", "cpu"), None, tools=TOOLS)
    maker = Maker(Library("scores", "scores", (), ("cpu",)), Settings(), 1, Console(file=StringIO()))
    cell, causes = maker._cell(row, "float32", "forward", [failure("operation.oracle", BROKEN)])
    assert (cell.state, cell.violations, causes) == (State.NOT_JUDGED, (), [])
    assert cell.reason == f"operation.oracle: {BROKEN}"


@pytest.mark.parametrize(("tools", "times"), [((), 1), (TOOLS, 2)])
def test_a_plain_call_at_which_a_compiler_fails_is_repeated_once(tools: tuple[str, ...], times: int) -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("CppCompileError: no memory")

    assert refusal(call, tools) == (None if tools else "RuntimeError: CppCompileError: no memory")
    assert len(calls) == times


ENDING = '''
import os

PLAIN = """
import os


def array(values, dtype):
    return values


def call(query, key):
    os.abort()
"""


class Ending:
    name = "ending"

    def dot_scores(self, query, key):
        os.abort()

    def plain(self, operation, *, device):
        return PLAIN
'''


def test_a_crash_without_an_input_is_confirmed_by_the_last_call(tmp_path: Path) -> None:
    (tmp_path / "ending.py").write_text(ENDING, encoding="utf-8")
    row = ProbedRow(f"{tmp_path / 'ending.py'}:Ending", None, None, plain=True)
    result = Result("dot_scores", "operation.oracle", "float32", Status.FAILED, "crashed", "the backend ended")
    violation = confirm(result, row, Settings(), "fake 1.5")
    assert (violation.confirmation, violation.why) == (Confirmation.CONFIRMED, "")
    assert set(violation.arguments) == {"query", "key"}
    assert "attnspec" not in violation.program
    (tmp_path / "ending.py").write_text(ENDING.replace("        os.abort()", "        return query"), encoding="utf-8")
    violation = confirm(result, row, Settings(), "fake 1.5")
    assert violation.confirmation is Confirmation.NO_PROGRAM
    assert violation.why == "the process does not end when the law is checked again"


def test_the_page_loads_no_other_files(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    page = (run[0] / "fake.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)|@import|url\(|<script""", page)


def test_a_long_program_is_left_out_and_texts_are_escaped(run: tuple[Path, "subprocess.CompletedProcess[str]"]) -> None:
    original = matrix(run[0])
    row = original.rows[1]
    violation = replace(row.cells[0].violations[0], message="a <b> | `c`", program="x = 1\n" * MAX_PROGRAM)
    cell = replace(row.cells[0], violations=(violation,), following=("a.law",))
    changed = replace(original, interrupted=True, rows=(replace(row, cells=(cell, row.cells[1]), notes={"<n>": "|"}),))
    markdown, page = as_markdown(changed), as_page(changed)
    assert r"a \<b> | \`c\`." in markdown
    assert "<p>a &lt;b&gt; | `c`</p>" in page
    for form in (markdown, page):
        for text in (
            "The program has 72,000 characters: it is in the JSON file.",
            "hold once that is corrected: a.law.",
        ):
            assert text in form, text
        assert violation.program not in form


def test_every_violation_has_a_program_without_attnspec_or_a_reason(
    run: tuple[Path, "subprocess.CompletedProcess[str]"],
) -> None:
    data = json.loads((run[0] / "fake.json").read_text(encoding="utf-8"))
    violations: list[Violation] = [v for _, _, v in Matrix.from_json(data).violations()]
    assert any(v.program for v in violations)
    assert [v for v in violations if v.confirmation is not Confirmation.CONFIRMED and not v.why] == []
    assert [v.program for v in violations if v.program and "attnspec" in v.program] == []


# PyTorch --------------------------------------------------------------------------------------------------------------


OFFERED_ROWS = {
    "kernels:math": True, "kernels:flash": True, "kernels:efficient": False, "kernels:cudnn": False,
    "kernels:overrideable": False, "flex:eager": True, "heads:slow_path": True, "heads:slow_path_with_weights": True,
    "heads:fast_path": True, "heads:fast_path_with_weights": True, "layers:slow_encoder": True,
    "layers:fast_encoder": True, "layers:decoder": True, "networks:rnn": True, "networks:gru": True,
    "networks:lstm": True, "grouped:grouped_row": True, "packed:packed_row": False,
}  # fmt: skip
"""True for rows that PyTorch's CPU build offers; compiled rows are left to the matrix."""


def test_every_row_of_pytorch_is_tested_once() -> None:
    rows = pytest.importorskip("attnspec.backends.torch_native.matrix", reason="PyTorch is not installed").ROWS
    called_rows = {f"attnspec.backends.torch_native.{name}" for name in OFFERED_ROWS}
    assert set(rows) - called_rows == {"attnspec.backends.torch_native.flex:compiled_row"}
    assert called_rows <= set(rows)


@pytest.mark.parametrize("name", OFFERED_ROWS)
def test_a_row_gives_the_results_of_its_program(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from attnspec.conformance.judging.subject import Subject
    from attnspec.conformance.laws.common import sample
    from attnspec.conformance.matrix.rows import offers
    from attnspec.conformance.remote.loading import contract_of, load
    from attnspec.spec import OPERATIONS
    from attnspec.spec.contract.tree import flatten

    backend = load(f"attnspec.backends.torch_native.{name}")
    contract = contract_of(backend, name, "cpu")
    float32 = replace(contract, limits=replace(contract.limits, dtypes=("float32",)))
    offered = offers(backend, float32, "cpu")["float32"]
    assert {o["forward"] is None for o in offered.values()} == {OFFERED_ROWS[name]}
    for operation in contract.operations if OFFERED_ROWS[name] else ():
        subject = Subject(backend, contract, OPERATIONS[operation], "float32", "cpu")
        arguments = subject.converted(sample(subject, np.random.default_rng(0), (2, 3), whole=True))
        names: dict[str, Any] = {}
        exec(backend.plain(operation, device="cpu"), names)
        by_row, by_program = (flatten(call(**arguments)) for call in (getattr(backend, operation), names["call"]))
        for x, y in zip(by_row.values(), by_program.values(), strict=True):
            assert x is y is None or bool((x.isnan() & y.isnan() | (x == y)).all())


def test_a_kernel_that_is_forced_is_not_replaced() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from attnspec.backends.torch_native.kernels import efficient

    x = torch.ones(2, 3, 4)
    with pytest.raises(RuntimeError, match=r"No (viable|available)"):
        efficient.scaled_dot_product_attention(x, x, x)
