"""Runs with `--fail-fast`, and `attnspec replay`, which judges the failures of a report again."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from attnspec.conformance.cli import app
from attnspec.conformance.judging.results import Status
from attnspec.conformance.remote.processes import process_of
from attnspec.conformance.reporting.failed_before import FailedBefore, print_new_verdicts
from attnspec.conformance.reporting.report import Report
from attnspec.conformance.running.settings import Settings
from attnspec.spec import LAWS

from .test_cli import RIGHT, WRONG_ATTENTION, attnspec, read_report, write_backend
from .test_expectations import FAILED
from .test_report import contract

pytestmark = pytest.mark.slow

STOPPED = "stopped at the first violation"


@pytest.mark.parametrize("name", ["attnspec", "attnspec.conformance.cli"])
def test_the_command_can_be_run_as_a_module(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", name, "show", "softmaxx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "attnspec: show: expected one of softmax, lstm, storage, …; got 'softmaxx'\n",
    )


# The first violation --------------------------------------------------------------------------------------------------


def fail_fast(folder: Path, code: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    call = ("check", write_backend(folder, code), "--fail-fast", "--json", "r.json", *options)
    return attnspec(*call, folder=folder), read_report(folder / "r.json")


def test_fail_fast_stops_at_the_first_violation(tmp_path: Path) -> None:
    done, report = fail_fast(tmp_path, WRONG_ATTENTION, "--workers", "1")
    assert done.returncode == 1, done.stderr
    (failed,) = [r for r in report["results"] if r["status"] == "failed"]
    assert failed["law"] == "operation.oracle"
    assert "sys.exit(" in failed["counterexample"]["snippet"]
    lost = [r for r in report["results"] if r["status"] == "lost"]
    assert {(r["reason"], r["message"]) for r in lost} == {("interrupted", STOPPED)}
    assert {r["dtype"] for r in lost} == {"float64", "float32"}
    assert not [r for r in report["results"] if r["status"] == "passed"]
    assert (report["verdict"], report["exit_status"]) == ("violates", 1)
    assert f"{STOPPED}, {len(lost)} laws have no verdict" in done.stdout
    assert f"attnspec: {STOPPED}; the report has what was judged\n" in done.stderr
    assert "lost:" not in done.stdout


def test_a_run_without_violations_is_judged_to_its_end(tmp_path: Path) -> None:
    done, report = fail_fast(tmp_path, RIGHT, "--law", "operation.oracle", "--law", "operation.shape", "--workers", "2")
    assert (done.returncode, report["verdict"], report["summary"]["lost"]) == (0, "conforms", 0)


def test_an_expected_failure_does_not_end_a_run(tmp_path: Path) -> None:
    (tmp_path / "known.txt").write_text("* operation.oracle *\n")
    laws = ("--law", "operation.oracle", "--law", "operation.shape")
    done, report = fail_fast(tmp_path, WRONG_ATTENTION, "--expect", "known.txt", *laws, "--workers", "1")
    assert (done.returncode, report["summary"]["expected"], report["summary"]["lost"]) == (0, 2, 0), done.stdout


def test_a_crash_is_a_violation_that_ends_a_run(tmp_path: Path) -> None:
    code = "import os\nname = 'bad'\ndef dot_scores(query, key):\n    os._exit(1)\n"
    done, report = fail_fast(tmp_path, code, "--law", "operation.oracle", "--law", "operation.dtype", "--workers", "1")
    assert done.returncode == 1
    assert [r["reason"] for r in report["results"] if r["status"] == "failed"] == ["crashed"]
    assert [r["message"] for r in report["results"] if r["status"] == "lost"] == [STOPPED] * 3


def test_fail_fast_does_not_wait_for_other_workers(tmp_path: Path) -> None:
    code = RIGHT + (
        "import pathlib, os, time\n"
        "def softmax(scores, *, axis=-1):\n"
        "    pathlib.Path(f'{os.getpid()}.slow').touch()\n"
        "    time.sleep(60)\n"
        "right = dot_scores\n"
        "def dot_scores(query, key):\n"
        "    deadline = time.monotonic() + 60\n"
        "    while not list(pathlib.Path().glob('*.slow')) and time.monotonic() < deadline:\n"
        "        time.sleep(0.1)\n"
        "    return right(query, key) + 1\n"
    )
    started = time.monotonic()
    options = (
        "--law",
        "operation.oracle",
        "--dtype",
        "float64",
        "--hang-after",
        "300",
        "--workers",
        "2",
        "--sandbox",
        "off",
    )
    done, report = fail_fast(tmp_path, code, *options)
    assert done.returncode == 1
    assert time.monotonic() - started < 55
    statuses = {r["operation"]: r["status"] for r in report["results"] if r["status"] != "not-provided"}
    assert statuses == {"dot_scores": "failed", "softmax": "lost"}
    (slow_pid,) = (int(path.stem) for path in tmp_path.glob("*.slow"))
    slow_process = process_of(slow_pid)
    assert slow_process is None or slow_process.state in "ZX"  # its new parent may not have read its status yet


# Judged again --------------------------------------------------------------------------------------------------------

TWO_LAWS = ("--law", "operation.oracle", "--law", "operation.rejection", "--workers", "2")
REPAIRED = WRONG_ATTENTION.replace("query.shape[-1], query.dtype)", "query.shape[-1] ** 0.5, query.dtype)")


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wrong backend and a report of three failures."""
    folder = tmp_path_factory.mktemp("failed")
    attnspec("check", write_backend(folder, WRONG_ATTENTION), "--json", "r.json", *TWO_LAWS, folder=folder)
    assert read_report(folder / "r.json")["summary"]["failed"] == 3
    return folder


def test_the_failures_of_a_report_are_judged_again(failed_run: Path) -> None:
    write_backend(failed_run, WRONG_ATTENTION)
    done = attnspec("replay", "r.json", folder=failed_run)
    assert done.returncode == 1, done.stderr
    assert "backend.py: 3 of 3 failures remain\n" in done.stdout
    assert "operation.oracle is violated by scaled_dot_product_attention (float32)" in done.stdout
    assert "operation.shape" not in done.stdout
    assert "holds now" not in done.stdout


def test_a_failure_that_was_repaired_holds_now(failed_run: Path) -> None:
    write_backend(failed_run, REPAIRED)
    done = attnspec("replay", "r.json", folder=failed_run)
    assert done.returncode == 1, done.stderr
    for dtype in ("float32", "float64"):
        assert f"holds now: operation.oracle by scaled_dot_product_attention ({dtype})\n" in done.stdout
    assert "operation.rejection is violated by scaled_dot_product_attention (float32)" in done.stdout
    assert "backend.py: 1 of 3 failures remain, 2 hold now\n" in done.stdout


def test_replay_judges_only_the_selected_laws_and_dtypes(failed_run: Path) -> None:
    write_backend(failed_run, REPAIRED)
    done = attnspec("replay", "r.json", "--law", "operation.oracle", "--dtype", "float64", folder=failed_run)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "backend.py: 0 of 1 failures remain, 1 hold now",
    )


def test_replay_refuses_a_backend_without_the_failed_operations(failed_run: Path) -> None:
    write_backend(failed_run, RIGHT)
    done = attnspec("replay", "r.json", folder=failed_run)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "nothing to judge" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [Settings(sandbox="off"), Settings(in_process=True, time_limit=30.0), Settings(time_limit=1.5, hang_after=2.0)],
)
def test_failures_are_judged_again_with_the_settings_of_their_run(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnspec.conformance.reporting.report.sandbox_error", lambda: None)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(Report(contract(), settings, (FAILED,), 1.0).as_json()), encoding="utf-8")
    assert FailedBefore.read(path).settings == settings


def test_options_override_the_settings_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(Report(contract(), Settings(), (FAILED,), 1.0).as_json()), encoding="utf-8")
    chosen: list[Settings] = []

    def record_settings(backend: str, settings: Settings, *arguments: Any, **options: Any) -> Report:
        chosen.append(settings)
        return Report.without_verdicts(backend, settings, 0.0, "tried")

    monkeypatch.setattr("attnspec.conformance.reporting.command_run.report_of_run", record_settings)
    # Nothing is judged, so the tests keep their own signal handlers.
    monkeypatch.setattr("attnspec.conformance.cli.INTERRUPTION", SimpleNamespace(hold=lambda: None))
    command = ["replay", str(path), "--sandbox", "off", "--time-limit", "7", "--in-process"]
    assert CliRunner().invoke(app, command).exit_code == 2
    assert [(x.sandbox, x.time_limit, x.in_process) for x in chosen] == [("off", 7.0, True)]


def test_replay_reports_the_new_state_of_every_failure(tmp_path: Path) -> None:
    laws = ("operation.oracle", "operation.shape", "operation.dtype", "operation.batch-invariance")
    before = FailedBefore("mine.py", Settings(), tuple(replace(FAILED, law=law) for law in laws))
    oracle, shape, dtype, _ = before.failures
    now = (
        oracle,
        replace(shape, status=Status.PASSED),
        replace(dtype, status=Status.NOT_APPLICABLE, reason="no vjp", message=""),
    )
    with (tmp_path / "out").open("w") as file:
        console = Console(file=file, width=200)
        assert print_new_verdicts(before, Report(contract(), Settings(), now, 1.0), console) == 1
    assert (tmp_path / "out").read_text().splitlines() == [
        "holds now: operation.shape by softmax (float64)",
        "not judged: operation.dtype by softmax (float64): no vjp",
        "not judged: operation.batch-invariance by softmax (float64): the backend or its limits no longer have it",
        "",
        "operation.oracle is violated by softmax (float64)",
        f"  {LAWS['operation.oracle'].statement}",
        "  1 is not 2",
        "",
        "mine.py: 1 of 4 failures remain, 1 hold now, 2 not judged",
    ]


NOT_REPLAYED = {
    "no.json": "replay: expected a report; got 'no.json': No such file or directory",
    "text.json": "replay: text.json: expected a report, as --json writes it; got no JSON",
    "list.json": "replay: list.json: expected a report with schema 'attnspec-report/1'; got None",
    "other.json": "replay: other.json: expected a report with schema 'attnspec-report/1'; got 'attnspec-report/9'",
    "half.json": "replay: half.json: expected a report as attnspec wrote it: 'verdict' is a required property",
    "seed.json": "replay: seed.json: expected a report as attnspec wrote it: seed: 1.5 is not of type 'integer'",
    "origin.json": "replay: origin.json: expected a report as attnspec wrote it: backend.origin: 7 is not of type "
    "'string'",
    "deep.json": "replay: deep.json: expected a report, as --json writes it; got no JSON",
    "gone.json": "backend 'gone.py': cannot be imported: FileNotFoundError",
}


@pytest.mark.parametrize(("name", "message"), NOT_REPLAYED.items())
def test_a_report_that_cannot_be_replayed_is_refused_in_one_line(failed_run: Path, name: str, message: str) -> None:
    report = (failed_run / "r.json").read_text()
    texts = {
        "text.json": "not a report",
        "list.json": "[]",
        "other.json": report.replace("attnspec-report/1", "attnspec-report/9"),
        "half.json": '{"schema": "attnspec-report/1"}',
        "seed.json": report.replace('"seed": 0', '"seed": 1.5'),
        "origin.json": report.replace('"origin": "backend.py"', '"origin": 7'),
        "deep.json": "[" * 100_000,
        "gone.json": report.replace('"backend.py"', '"gone.py"'),
    }
    for file, text in texts.items():
        (failed_run / file).write_text(text)
    done = attnspec("replay", name, folder=failed_run)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr


@pytest.mark.parametrize(("options", "message"), [
    (("--law", "operation.shape"),
     "--law: expected one of operation.oracle, operation.rejection; got 'operation.shape'"),
    (("--law", "operation.rejection", "--dtype", "float64"),
     "replay: expected options that together select a failure of r.json; they select none"),
    (("--workers", "0"), "--workers: expected at least 1; got 0"),
])  # fmt: skip
def test_a_selection_that_has_not_failed_is_refused(failed_run: Path, options: tuple[str, ...], message: str) -> None:
    done = attnspec("replay", "r.json", *options, folder=failed_run)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr


def test_a_backend_beside_its_report_is_found(failed_run: Path, tmp_path: Path) -> None:
    write_backend(failed_run, REPAIRED)
    done = attnspec("replay", str(failed_run / "r.json"), "--law", "operation.oracle", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 hold now" in done.stdout


def test_expected_failures_are_not_judged_again(failed_run: Path, tmp_path: Path) -> None:
    document = read_report(failed_run / "r.json")
    for result in document["results"]:
        result["expected"] = {"line": "known.txt:1", "reason": ""} if result["status"] == "failed" else None
    (tmp_path / "r.json").write_text(json.dumps(document), encoding="utf-8")
    done = attnspec("replay", "r.json", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "r.json: no failures\n")


def test_a_report_without_failures_has_nothing_to_replay(tmp_path: Path) -> None:
    call = ("--law", "operation.shape", "--dtype", "float64", "--workers", "1", "--json", "r.json")
    attnspec("check", write_backend(tmp_path, RIGHT), *call, folder=tmp_path)
    done = attnspec("replay", "r.json", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "r.json: no failures\n")
