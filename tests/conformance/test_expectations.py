"""Known failures: what a file of them may hold, what it makes of a verdict, and how a run fails by it."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from attnspec.conformance.judging.results import Result, Status
from attnspec.conformance.remote.errors import BackendError
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.reporting.table import closing, violations
from attnspec.conformance.running.expectations import expectations, expected, idle, passing
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import check_expectations

from .test_cli import ATTENTION, RIGHT, SCHEMA, attnspec, written
from .test_report import contract

pytestmark = pytest.mark.slow

FAILED = Result("softmax", "operation.oracle", "float64", Status.FAILED, "value", "1 is not 2", 3)
PASSED = replace(FAILED, dtype="float32", status=Status.PASSED, reason=None, message="")


def known(folder: Path, text: str) -> str:
    """A file of known failures."""
    path = folder / "known.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_line_has_the_comment_behind_it_or_the_ones_above_as_its_reason(tmp_path: Path) -> None:
    text = """
# Not of anything: a title.

# Shapes are the caller's,
# says the manual.
softmax operation.dtype float32
softmax  operation.shape  *   # an issue
# Another one.
soft* operation.* float64

softmax operation.oracle bfloat16
"""
    lines = expectations(known(tmp_path, text))
    manual = "Shapes are the caller's, says the manual."
    assert [(x.place, x.operation, x.law, x.dtype, x.reason) for x in lines] == [
        ("known.txt:6", "softmax", "operation.dtype", "float32", manual),
        ("known.txt:7", "softmax", "operation.shape", "*", "an issue"),
        ("known.txt:9", "soft*", "operation.*", "float64", "Another one."),
        ("known.txt:11", "softmax", "operation.oracle", "bfloat16", ""),
    ]
    assert expectations(None) == ()


def test_the_lines_of_the_documentation_are_understood(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    text = page.partition("## Known failures")[2].split("```\n")[1]
    assert [line.reason for line in expectations(known(tmp_path, text))] == [
        "The kernel takes what it is given: checks of shapes are the caller's.",
        "raises for masks with a batch of their own",
        "sums in bfloat16",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "softmax operation.oracle",
            "known.txt:1: expected an operation, a law and a dtype; got 'softmax operation.or",
        ),
        ("\nsoftmaxx * *", "known.txt:2: operation: expected one of softmax, "),
        ("softmax operation.orakel *", "known.txt:1: law: expected one of operation.oracle, "),
        (
            "softmax * float8*",
            "known.txt:1: dtype: expected one of float64, float32, bfloat16, float16, bool, default;",
        ),
        ("softmax recurrent.* *", "known.txt:1: expected a law that governs softmax; got 'recurrent.*'"),
    ],
)
def test_a_line_that_can_never_be_about_anything_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BackendError, match=f"^{re.escape(message)}"):
        expectations(known(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"^--expect: expected a file that can be read; got 'no.txt': No such file"):
        expectations("no.txt", "--expect")
    (tmp_path / "latin.txt").write_bytes(b"# \xe4\n")
    with pytest.raises(BackendError, match=r"^expect: .*latin\.txt': it is not UTF-8$"):
        expectations(str(tmp_path / "latin.txt"))


def test_what_lines_say_of_verdicts(tmp_path: Path) -> None:
    lines = expectations(known(tmp_path, "softmax operation.oracle *\nsoftmax operation.shape float64\n"))
    oracle, shape = lines
    lost, absent = (replace(FAILED, status=status) for status in (Status.LOST, Status.NOT_APPLICABLE))
    assert [expected(r, lines) for r in (FAILED, PASSED, lost, absent)] == [oracle, None, None, None]
    assert passing([FAILED, PASSED, lost], lines) == [(oracle, PASSED)]
    assert idle([FAILED, replace(absent, law="operation.shape")], lines) == [shape]


@pytest.mark.parametrize(
    ("settings", "selected"),
    [
        (Settings(), True),
        (Settings(operations=("softmax",), dtypes=("float64",)), True),
        (Settings(operations=("dot_scores",)), False),
        (Settings(laws=("operation.oracle",)), False),
        (Settings(dtypes=("float32",)), False),
    ],
)
def test_a_line_outside_of_the_selection_is_not_asked_for(tmp_path: Path, settings: Settings, selected: bool) -> None:
    (line,) = expectations(known(tmp_path, "softmax operation.shape float64"))
    assert line.selected(settings) == selected


def report_of(folder: Path, text: str, *results: Result) -> Report:
    """A report of these verdicts with these known failures."""
    return Report(contract(), Settings(expect=known(folder, text)), results, 1.0)


def test_a_known_failure_is_no_violation(tmp_path: Path) -> None:
    found = report_of(tmp_path, "softmax operation.oracle float64 # rounds twice", FAILED, PASSED)
    line = "known.txt:1: softmax operation.oracle float64"
    assert (found.verdict, found.exit_status, found.unmet) == ("conforms", 0, [])
    document = found.as_json()
    jsonschema.validate(document, SCHEMA)
    assert [r["status"] for r in document["results"]] == ["failed", "passed"]
    assert [r["expected"] for r in document["results"]] == [{"line": line, "reason": "rounds twice"}, None]
    assert document["summary"]["expected"] == document["summary"]["failed"] == 1
    assert [x.plain for x in violations(found)] == [f"expected: {line}: 1 of its laws failed (rounds twice)"]
    assert closing(found).endswith("1 of 2 laws hold on 6 examples, largest error ratio 0, 1.0 s, expected failures: 1")


def test_a_run_whose_failures_are_all_known_is_judged(tmp_path: Path) -> None:
    assert report_of(tmp_path, "* * *", FAILED).verdict == "conforms"


def test_what_holds_or_is_not_judged_fails_the_run(tmp_path: Path) -> None:
    found = report_of(tmp_path, "softmax operation.oracle *\nsoftmax operation.shape float16\n", FAILED, PASSED)
    unmet = [
        "known.txt:1: softmax operation.oracle *: operation.oracle by softmax (float32) holds",
        "known.txt:2: softmax operation.shape float16: nothing that was judged",
    ]
    assert (found.verdict, found.exit_status, found.unmet, found.as_json()["unmet"]) == ("conforms", 1, unmet, unmet)
    assert [x.plain for x in violations(found)][1:] == [f"not as expected: {line}" for line in unmet]
    assert closing(found).endswith("expected failures: 1, expectations not met: 2")


def test_a_run_that_was_broken_off_says_nothing_of_what_it_has_not_judged(tmp_path: Path) -> None:
    lost = replace(PASSED, status=Status.LOST, reason="interrupted", message="interrupted")
    found = report_of(tmp_path, "softmax operation.oracle float64\nsoftmax operation.shape *", FAILED, lost)
    assert (found.verdict, found.exit_status, found.unmet) == ("unusable", 2, [])


def test_other_failures_violate_as_before(tmp_path: Path) -> None:
    found = report_of(tmp_path, "softmax operation.oracle float32", FAILED)
    assert (found.verdict, found.exit_status) == ("violates", 1)
    assert violations(found)[0].plain.startswith("\noperation.oracle is violated by softmax")


def test_a_plan_without_a_known_failure_is_refused(tmp_path: Path) -> None:
    path = known(tmp_path, "softmax operation.oracle float64\nsoftmax operation.oracle float16\n")
    settings = Settings(expect=path)
    with pytest.raises(
        BackendError, match=r"^expect: known\.txt:2: softmax operation\.oracle float16: nothing that is"
    ):
        check_expectations(Plan.of(contract(), settings), settings)
    narrow = replace(settings, dtypes=("float64",))
    check_expectations(Plan.of(contract(), narrow), narrow)


LAWS = ("--law", "operation.oracle", "--law", "operation.shape", "--workers", "2")
CASES = {
    "as it says": (
        "* operation.oracle *  # divides by d\n",
        0,
        "expected: known.txt:1: * operation.oracle *: 2 of its laws",
    ),
    "one holds": ("* operation.* *\n", 1, "operation.shape by scaled_dot_product_attention (float32) holds"),
    "another fails": (
        "* operation.oracle float32\n",
        1,
        "operation.oracle is violated by scaled_dot_product_attention",
    ),
    "no such law": ("* operation.orakle *\n", 2, "known.txt:1: law: expected one of operation.oracle, "),
}


@pytest.mark.parametrize(("text", "status", "said"), CASES.values(), ids=CASES)
def test_the_command_takes_known_failures(tmp_path: Path, text: str, status: int, said: str) -> None:
    known(tmp_path, text)
    call = ("check", written(tmp_path, ATTENTION), "--expect", "known.txt", *LAWS)
    done = attnspec(*call, folder=tmp_path, COLUMNS="400")
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert ("violated operation.oracle" in done.stderr) == (text == CASES["another fails"][0])


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    files = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
    done = attnspec("check", written(tmp_path, RIGHT), "--expect", "no.txt", *files, folder=tmp_path)
    assert all((tmp_path / name).stat().st_size for name in files[1::2])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--expect: expected a file that can be read; got 'no.txt': No such file" in done.stderr


PYTEST = {
    "as it says": ("* operation.oracle *\n", 0, "2 passed"),
    "one holds": (
        "* operation.* *\n",
        1,
        "expected to fail, and holds: operation.shape by scaled_dot_product_attention-",
    ),
    "never judged": ("* * *\nsoftmax * *\n", 2, "expect: known.txt:2: softmax * *: nothing that is judged"),
}


@pytest.mark.parametrize(("text", "status", "said"), PYTEST.values(), ids=PYTEST)
@pytest.mark.parametrize("way", ["suite", "option"])
def test_pytest_takes_known_failures(tmp_path: Path, text: str, status: int, said: str, way: str) -> None:
    written(tmp_path, ATTENTION)
    known(tmp_path, text)
    (tmp_path / "test_mine.py").write_text(
        "import backend\nfrom attnspec.conformance import ConformanceSuite\n"
        "class TestMine(ConformanceSuite):\n    backend = backend\n    laws = ('operation.oracle', 'operation.shape')\n"
        "    expect = 'known.txt'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["test_mine.py"] if way == "suite" else [
        *("--pyargs", "attnspec.conformance", "-o", "consider_namespace_packages=true", "--attn-backend=backend.py"),
        *("--attn-law=operation.oracle", "--attn-law=operation.shape", "--attn-expect=known.txt", "--attn-json=r.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    if way == "option" and status == 0:
        document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        assert (document["exit_status"], document["summary"]["expected"]) == (0, 2)
