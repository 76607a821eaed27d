"""Expected failures: their file, their effect on verdicts, and runs that do not meet them."""

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
from attnspec.conformance.reporting.table import closing_line, violations
from attnspec.conformance.running.expectations import expectations, expected, unexpected_passes, unmatched_lines
from attnspec.conformance.running.planning import Plan
from attnspec.conformance.running.settings import Settings
from attnspec.conformance.running.suite import check_expectations

from .test_cli import RIGHT, WRONG_ATTENTION, attnspec, write_backend
from .test_report import SCHEMA, contract

pytestmark = pytest.mark.slow

FAILED = Result("softmax", "operation.oracle", "float64", Status.FAILED, "value", "1 is not 2", 3)
PASSED = replace(FAILED, dtype="float32", status=Status.PASSED, reason=None, message="")


def write_expectations(folder: Path, text: str) -> str:
    path = folder / "known.txt"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_reason_of_a_line_is_its_comment_or_those_above(tmp_path: Path) -> None:
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
    lines = expectations(write_expectations(tmp_path, text))
    manual = "Shapes are the caller's, says the manual."
    assert [(x.place, x.operation, x.law, x.dtype, x.reason) for x in lines] == [
        ("known.txt:6", "softmax", "operation.dtype", "float32", manual),
        ("known.txt:7", "softmax", "operation.shape", "*", "an issue"),
        ("known.txt:9", "soft*", "operation.*", "float64", "Another one."),
        ("known.txt:11", "softmax", "operation.oracle", "bfloat16", ""),
    ]
    assert expectations(None) == ()


def test_the_example_in_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    text = page.partition("## Known failures")[2].split("```\n")[1]
    assert [line.reason for line in expectations(write_expectations(tmp_path, text))] == [
        "The kernel does not check shapes: its caller does.",
        "raises for masks with a batch of their own",
        "sums in bfloat16",
    ]


@pytest.mark.parametrize(("text", "message"), [
    ("softmax operation.oracle", "known.txt:1: expected an operation, a law and a dtype; got 'softmax operation.or"),
    ("\nsoftmaxx * *", "known.txt:2: operation: expected one of softmax, "),
    ("softmax operation.orakel *", "known.txt:1: law: expected one of operation.oracle, "),
    ("softmax * float8*", "known.txt:1: dtype: expected one of float64, float32, bfloat16, float16, bool, default;"),
    ("softmax recurrent.* *", "known.txt:1: expected a law that governs softmax; got 'recurrent.*'"),
])  # fmt: skip
def test_a_line_that_can_match_no_verdict_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BackendError, match=f"^{re.escape(message)}"):
        expectations(write_expectations(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"^--expect: expected a file that can be read; got 'no.txt': No such file"):
        expectations("no.txt", "--expect")
    (tmp_path / "latin.txt").write_bytes(b"# \xe4\n")
    with pytest.raises(BackendError, match=r"^expect: .*latin\.txt': it is not UTF-8$"):
        expectations(str(tmp_path / "latin.txt"))


def test_lines_are_matched_with_results(tmp_path: Path) -> None:
    lines = expectations(write_expectations(tmp_path, "softmax operation.oracle *\nsoftmax operation.shape float64\n"))
    oracle, shape = lines
    lost, absent = (replace(FAILED, status=status) for status in (Status.LOST, Status.NOT_APPLICABLE))
    assert [expected(r, lines) for r in (FAILED, PASSED, lost, absent)] == [oracle, None, None, None]
    assert unexpected_passes([FAILED, PASSED, lost], lines) == [(oracle, PASSED)]
    assert unmatched_lines([FAILED, replace(absent, law="operation.shape")], lines) == [shape]


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
def test_only_lines_within_the_selection_are_selected(tmp_path: Path, settings: Settings, selected: bool) -> None:
    (line,) = expectations(write_expectations(tmp_path, "softmax operation.shape float64"))
    assert line.selected(settings) == selected


def report_of(folder: Path, text: str, *results: Result) -> Report:
    return Report(contract(), Settings(expect=write_expectations(folder, text)), results, 1.0)


def test_an_expected_failure_is_no_violation(tmp_path: Path) -> None:
    report = report_of(tmp_path, "softmax operation.oracle float64 # rounds twice", FAILED, PASSED)
    line = "known.txt:1: softmax operation.oracle float64"
    assert (report.verdict, report.exit_status, report.unmet) == ("conforms", 0, [])
    document = report.as_json()
    jsonschema.validate(document, SCHEMA)
    assert [r["status"] for r in document["results"]] == ["failed", "passed"]
    assert [r["expected"] for r in document["results"]] == [{"line": line, "reason": "rounds twice"}, None]
    assert document["summary"]["expected"] == document["summary"]["failed"] == 1
    assert [x.plain for x in violations(report)] == [f"expected failure: {line}: 1 of its laws failed (rounds twice)"]
    assert closing_line(report).endswith(
        "1 of 2 laws hold on 6 examples, largest error ratio 0, 1.0 s, expected failures: 1"
    )


def test_a_run_with_expected_failures_only_conforms(tmp_path: Path) -> None:
    assert report_of(tmp_path, "* * *", FAILED).verdict == "conforms"


def test_an_expectation_that_passes_or_is_not_judged_fails_the_run(tmp_path: Path) -> None:
    report = report_of(tmp_path, "softmax operation.oracle *\nsoftmax operation.shape float16\n", FAILED, PASSED)
    unmet = [
        "known.txt:1: softmax operation.oracle *: operation.oracle by softmax (float32) holds",
        "known.txt:2: softmax operation.shape float16: matches nothing that was judged",
    ]
    assert (report.verdict, report.exit_status, report.unmet, report.as_json()["unmet"]) == (
        "conforms",
        1,
        unmet,
        unmet,
    )
    assert [x.plain for x in violations(report)][1:] == [f"stale expected failure: {line}" for line in unmet]
    assert closing_line(report).endswith("expected failures: 1, stale expected failures: 2")


def test_an_interrupted_run_reports_no_unmet_expectations(tmp_path: Path) -> None:
    lost = replace(PASSED, status=Status.LOST, reason="interrupted", message="interrupted")
    report = report_of(tmp_path, "softmax operation.oracle float64\nsoftmax operation.shape *", FAILED, lost)
    assert (report.verdict, report.exit_status, report.unmet) == ("unusable", 2, [])


def test_an_unexpected_failure_is_a_violation(tmp_path: Path) -> None:
    report = report_of(tmp_path, "softmax operation.oracle float32", FAILED)
    assert (report.verdict, report.exit_status) == ("violates", 1)
    assert violations(report)[0].plain.startswith("\noperation.oracle is violated by softmax")


def test_an_expectation_outside_of_the_plan_is_refused(tmp_path: Path) -> None:
    path = write_expectations(tmp_path, "softmax operation.oracle float64\nsoftmax operation.oracle float16\n")
    settings = Settings(expect=path)
    with pytest.raises(
        BackendError, match=r"^expect: known\.txt:2: softmax operation\.oracle float16: matches nothing that is judged"
    ):
        check_expectations(Plan.of(contract(), settings), settings)
    narrow = replace(settings, dtypes=("float64",))
    check_expectations(Plan.of(contract(), narrow), narrow)


LAWS = ("--law", "operation.oracle", "--law", "operation.shape", "--workers", "2")
COMMAND_RUNS = {
    "as it says": (
        "* operation.oracle *  # divides by d\n",
        0,
        "expected failure: known.txt:1: * operation.oracle *: 2 of its laws",
    ),
    "one holds": ("* operation.* *\n", 1, "operation.shape by scaled_dot_product_attention (float32) holds"),
    "another fails": (
        "* operation.oracle float32\n",
        1,
        "operation.oracle is violated by scaled_dot_product_attention",
    ),
    "no such law": ("* operation.orakle *\n", 2, "known.txt:1: law: expected one of operation.oracle, "),
}


@pytest.mark.parametrize(("text", "status", "message"), COMMAND_RUNS.values(), ids=COMMAND_RUNS)
def test_the_command_reads_expected_failures(tmp_path: Path, text: str, status: int, message: str) -> None:
    write_expectations(tmp_path, text)
    call = ("check", write_backend(tmp_path, WRONG_ATTENTION), "--expect", "known.txt", *LAWS)
    done = attnspec(*call, folder=tmp_path, COLUMNS="400")
    assert done.returncode == status, done.stderr
    assert message in done.stdout + done.stderr
    assert ("violated operation.oracle" in done.stderr) == (text == COMMAND_RUNS["another fails"][0])


def test_a_missing_file_of_expectations_is_refused_in_one_line(tmp_path: Path) -> None:
    files = ("--json", "r.json", "--html", "r.html", "--junit", "r.xml")
    done = attnspec("check", write_backend(tmp_path, RIGHT), "--expect", "no.txt", *files, folder=tmp_path)
    assert all((tmp_path / name).stat().st_size for name in files[1::2])
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--expect: expected a file that can be read; got 'no.txt': No such file" in done.stderr


PYTEST_RUNS = {
    "as it says": ("* operation.oracle *  # rounds twice\n", 0, "XFAIL"),
    "one holds": (
        "* operation.* *\n",
        1,
        "expected to fail, but holds: operation.shape by scaled_dot_product_attention-",
    ),
    "never judged": ("* * *\nsoftmax * *\n", 2, "expect: known.txt:2: softmax * *: matches nothing that is judged"),
}


@pytest.mark.parametrize(("text", "status", "message"), PYTEST_RUNS.values(), ids=PYTEST_RUNS)
@pytest.mark.parametrize("way", ["suite", "option"])
def test_pytest_reads_expected_failures(tmp_path: Path, text: str, status: int, message: str, way: str) -> None:
    write_backend(tmp_path, WRONG_ATTENTION)
    write_expectations(tmp_path, text)
    (tmp_path / "test_mine.py").write_text(
        "import backend\nfrom attnspec.conformance import ConformanceSuite\n"
        "class TestMine(ConformanceSuite):\n    backend = backend\n    laws = ('operation.oracle', 'operation.shape')\n"
        "    expect = 'known.txt'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-rx", "-p", "no:cacheprovider"]
    command += ["test_mine.py"] if way == "suite" else [
        *("--pyargs", "attnspec.conformance", "-o", "consider_namespace_packages=true", "--attn-backend=backend.py"),
        *("--attn-law=operation.oracle", "--attn-law=operation.shape", "--attn-expect=known.txt", "--attn-json=r.json"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    if status == 0:
        assert done.stdout.count("operation.oracle: rounds twice") == 2
    if way == "option" and status == 0:
        document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        assert (document["exit_status"], document["summary"]["expected"]) == (0, 2)
